//! The MPS control daemons of one cohort: one for the GPU, or one for each MIG device that has several clients.

use migperf_core::ids::DeviceUuid;
use migperf_core::worker_wire::Allocation;
use tokio::sync::mpsc;

use super::{MpsDaemon, MpsError};
use crate::settings::Settings;

/// The control daemons that a cohort's members are clients of.
#[derive(Debug)]
pub struct MpsGroup {
    daemons: Vec<(DeviceUuid, MpsDaemon)>,
    deaths: mpsc::Receiver<String>,
}

impl MpsGroup {
    /// Starts a control daemon for each device on which members are to be MPS clients; none where no member is.
    ///
    /// # Errors
    /// If one can't be had; the others are ended.
    pub async fn start(settings: &Settings, allocations: &[Allocation]) -> Result<Option<Self>, MpsError> {
        let (sender, deaths) = mpsc::channel(1);
        let mut group = Self { daemons: Vec::new(), deaths };
        for allocation in allocations {
            let Some(device) = served(allocation) else { continue };
            if group.of(device).is_none() {
                let program = settings.mps_control.as_deref();
                let daemon = MpsDaemon::start(program, &settings.launcher, device).await?;
                let (mut end, sender, device) = (daemon.watch(), sender.clone(), device.clone());
                let watched = device.clone();
                tokio::spawn(async move {
                    let how = end.over().await;
                    // A cohort that is over does not listen any more.
                    let _ = sender.send(format!("the MPS control daemon of {watched} died: {how}")).await;
                });
                group.daemons.push((device, daemon));
            }
        }
        Ok((!group.daemons.is_empty()).then_some(group))
    }

    fn of(&self, device: &DeviceUuid) -> Option<&MpsDaemon> {
        self.daemons.iter().find(|(known, _)| known == device).map(|(_, daemon)| daemon)
    }

    /// What the environment of a client with this allocation must name; none where it is to be no client.
    #[must_use]
    pub fn environment(&self, allocation: &Allocation) -> Option<Vec<(String, String)>> {
        Some(self.of(served(allocation)?)?.environment())
    }

    /// Checks that every process is a client of the control daemon of its device.
    ///
    /// # Errors
    /// Says which are not, or why the question failed.
    pub async fn prove(&mut self, members: &[(u32, &Allocation)]) -> Result<(), String> {
        for (device, daemon) in &mut self.daemons {
            let of_device = |(_, allocation): &&(u32, &Allocation)| served(allocation) == Some(&*device);
            let pids: Vec<u32> = members.iter().filter(of_device).map(|(pid, _)| *pid).collect();
            daemon.prove(&pids).await?;
        }
        Ok(())
    }

    /// Waits until one of them dies, and says which and how.
    pub async fn died(&mut self) -> String {
        self.deaths.recv().await.unwrap_or_else(|| "nobody watches the MPS control daemons any more".to_owned())
    }

    /// Takes a client from its server before it is killed.
    pub async fn terminate_client(&mut self, pid: u32) {
        for (_, daemon) in &mut self.daemons {
            daemon.terminate_client(pid).await;
        }
    }

    /// Stops all of them. Returns the servers there were.
    pub async fn stop(self) -> Vec<u32> {
        let mut servers = Vec::new();
        for (_, daemon) in self.daemons {
            servers.extend_from_slice(&daemon.servers);
            daemon.stop().await;
        }
        servers
    }
}

/// The device on which an allocation's process is to be an MPS client.
fn served(allocation: &Allocation) -> Option<&DeviceUuid> {
    match allocation {
        Allocation::Cuda { uuid, mps: true, .. } => Some(uuid),
        Allocation::Cuda { .. } | Allocation::Cpu => None,
    }
}
