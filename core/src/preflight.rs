//! Whether a plan can be measured on a device as it is now; if not, what is in the way and what to do about it.
//!
//! Everything is checked at once, so that an administrator puts right in one go what can be put right.

use crate::device::{ComputeMode, Gpu, GpuProcess, MigMode, ProcessKind, Virtualization};
use crate::job::Refusal;
use crate::plan::Plan;
use crate::trial::Sharing;

/// What a daemon has and may.
#[derive(Debug, Clone, Copy)]
pub struct Means<'a> {
    /// The MPS control program was found.
    pub mps_program: bool,
    /// What may be done to the GPU's layout.
    pub layout: LayoutMeans<'a>,
    /// Processes of this daemon.
    pub ours: &'a [u32],
}

/// What a daemon may do to a GPU's layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutMeans<'a> {
    /// Nothing; why, and what to do about that.
    None {
        /// Why.
        why: &'a str,
        /// What to do.
        remedy: &'a str,
    },
    /// Change it, but for the instances that are there.
    KeepInstances,
    /// Change it, and put the instances back afterwards with other UUIDs.
    ReplaceInstances,
}

/// What a GPU is like now that a plan must not meet.
#[must_use]
pub fn check(plan: &Plan, gpu: &Gpu, means: Means<'_>) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let mut refuse = |problem: String, remedy: &str| refusals.push(Refusal { problem, remedy: remedy.to_owned() });
    let uses = |wanted: fn(&Sharing) -> bool| plan.cells.iter().any(|cell| wanted(&cell.sharing));
    let name = format!("GPU {} ({})", gpu.index, gpu.uuid);

    match gpu.virtualization.value() {
        Some(Virtualization::Vgpu) => refuse(
            format!("{name} is a virtual GPU: its share of the hardware is not this machine's to know"),
            "measure on the host, or on a machine that has the whole GPU",
        ),
        Some(Virtualization::HostVgpu | Virtualization::HostVsga) => {
            refuse(format!("{name} serves virtual GPUs to guests"), "measure a GPU that no guest uses");
        }
        _ => {}
    }
    match gpu.compute_mode.value() {
        Some(ComputeMode::Prohibited) => refuse(
            format!("{name} is in compute mode Prohibited: no process may use it"),
            "an administrator can allow it with `nvidia-smi -c DEFAULT`; migperf leaves the compute mode alone",
        ),
        Some(ComputeMode::ExclusiveProcess | ComputeMode::ExclusiveThread) => {
            let several = plan.cells.iter().any(|c| c.members.len() > 1 && matches!(c.sharing, Sharing::TimeSlice));
            if several {
                refuse(
                    format!(
                        "{name} is in compute mode Exclusive_Process, so that time-slicing can't have several workers"
                    ),
                    "an administrator can change it with `nvidia-smi -c DEFAULT`; or leave time-slice out of the suite",
                );
            }
        }
        _ => {}
    }
    let whole = uses(|sharing| matches!(sharing, Sharing::Exclusive | Sharing::TimeSlice | Sharing::Mps { .. }));
    let mig = uses(|sharing| matches!(sharing, Sharing::Mig { .. }));
    match gpu.mig.value() {
        Some(MigMode::Pending { current, pending }) => {
            let word = |on: &bool| if *on { "enabled" } else { "disabled" };
            refuse(
                format!("{name}: MIG is {} and will be {} after a reset", word(current), word(pending)),
                "an administrator must finish or undo the change (`nvidia-smi --gpu-reset`, or `nvidia-smi -mig 0|1`)",
            );
        }
        Some(MigMode::Enabled) if whole => match means.layout {
            LayoutMeans::None { why, remedy } => refuse(
                format!("{name} has MIG enabled, so that no process can use the whole GPU; {why}"),
                &format!("leave exclusive, time-slice and mps out of the suite, or disable MIG; {remedy}"),
            ),
            LayoutMeans::KeepInstances if gpu.instances.value().is_none_or(|there| !there.is_empty()) => refuse(
                format!(
                    "{name} has MIG instances that are not migperf's: the whole GPU can be used when they are gone"
                ),
                "leave exclusive, time-slice and mps out of the suite; or let them be replaced (--replace-existing): they \
                 are destroyed and created anew at the end, with other UUIDs",
            ),
            LayoutMeans::KeepInstances | LayoutMeans::ReplaceInstances => {}
        },
        Some(MigMode::Unsupported) if mig => refuse(
            format!("{name} can't be divided: it has no MIG"),
            "leave mig out of the suite, or choose another GPU (--device)",
        ),
        Some(MigMode::Disabled) if mig => {
            if let LayoutMeans::None { why, remedy } = means.layout {
                refuse(
                    format!("{name} has MIG disabled; {why}"),
                    &format!(
                        "create the instances first (`nvidia-smi -mig 1`, `nvidia-smi mig -cgi 1g -C`), or leave mig out of \
                         the suite; {remedy}"
                    ),
                );
            }
        }
        _ => {}
    }
    if uses(|sharing| matches!(sharing, Sharing::Mps { .. } | Sharing::Mig { mps: Some(_), .. })) && !means.mps_program
    {
        refuse(
            "nvidia-cuda-mps-control is not installed, so that MPS can't be measured".to_owned(),
            "install the driver's compute programs (Debian: nvidia-cuda-mps; they come with the driver elsewhere)",
        );
    }
    occupants(gpu, &name, means.ours, &mut refuse);
    refusals
}

fn occupants(gpu: &Gpu, name: &str, ours: &[u32], refuse: &mut impl FnMut(String, &str)) {
    let foreign: Vec<&GpuProcess> =
        gpu.processes.value().into_iter().flatten().filter(|process| !ours.contains(&process.pid)).collect();
    if let Some(server) = foreign.iter().find(|process| process.is_mps_server()) {
        refuse(
            format!("{name} is served by somebody else's MPS daemon (server pid {})", server.pid),
            "stop it when its clients are done (`echo quit | nvidia-cuda-mps-control`, as its user)",
        );
    }
    let others: Vec<String> = foreign
        .iter()
        .filter(|process| !process.is_mps_server())
        .map(|process| {
            let kind = match process.kind {
                ProcessKind::Compute => "",
                ProcessKind::Graphics => ", graphics",
                ProcessKind::MpsClient => ", MPS client",
            };
            format!(
                "pid {}{}{kind}",
                process.pid,
                process.program.as_ref().map(|p| format!(" {p}")).unwrap_or_default()
            )
        })
        .collect();
    if !others.is_empty() {
        refuse(
            format!("{name} is in use: {}", others.join("; ")),
            "wait until they end, or choose another GPU (--device); migperf never ends other people's processes",
        );
    }
}
