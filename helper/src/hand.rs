//! The hand: a child process in which every NVML call is made, so that one that does not return can be left behind.
//!
//! Requests and answers are lines of JSON on its standard input and output. It lives as long as one operation, and the
//! kernel ends it with the helper: no call goes on after the one who wrote down what it is for.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use migperf_core::chain::chain;
use migperf_core::device::GpuProcess;
use migperf_core::ids::{DeviceUuid, GpuUuid, MigUuid};
use migperf_core::mig::offer::Placement;
use migperf_gpu::layout::{Division, LayoutError, PartOffer, ProfileOffer, Refusal};
use migperf_gpu::library::{Nvml, NvmlError};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

/// How long a killed hand may take to be gone before it is taken for stuck in the driver.
const DEATH_LIMIT: Duration = Duration::from_secs(5);

/// What a hand is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// All GPUs.
    Gpus,
    /// How a GPU is divided.
    Look(GpuUuid),
    /// What a GPU may be divided into.
    Profiles(GpuUuid),
    /// What a GPU instance may be divided into.
    Parts(GpuUuid, u32),
    /// Who has a context on a GPU.
    Processes(GpuUuid),
    /// Whether a MIG device is there.
    Exists(MigUuid),
    /// Switch the MIG mode.
    SetMode(GpuUuid, bool),
    /// Create a GPU instance of a profile's id at a place.
    CreateGpuInstance(GpuUuid, u32, Placement),
    /// Destroy a GPU instance.
    DestroyGpuInstance(GpuUuid, u32),
    /// Create a compute instance in a GPU instance, of a profile's id, perhaps at a place.
    CreateComputeInstance(GpuUuid, u32, u32, Option<Placement>),
    /// Destroy a compute instance of a GPU instance.
    DestroyComputeInstance(GpuUuid, u32, u32),
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// To [`Request::Gpus`].
    Gpus(Vec<GpuUuid>),
    /// To [`Request::Look`].
    Division(Division),
    /// To [`Request::Profiles`].
    Profiles(Vec<ProfileOffer>),
    /// To [`Request::Parts`].
    Parts(Vec<PartOffer>),
    /// To [`Request::Processes`].
    Processes(Vec<GpuProcess>),
    /// The id of what was created.
    Created(u32),
    /// It was done.
    Done,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum HandError {
    /// NVML said no.
    #[error(transparent)]
    Refused(Refusal),
    /// There is no such device.
    #[error("there is no device {0}")]
    NoSuchDevice(String),
    /// NVML can't be used or its answers make no sense.
    #[error("{0}")]
    Failed(String),
    /// The call took too long; the hand was killed.
    #[error("NVML did not answer within {0:?}")]
    NoAnswer(Duration),
    /// The call took too long, and the hand can't be killed.
    #[error("a call to the driver does not return: process {0} can't be killed")]
    Stuck(u32),
    /// The hand died or could not be started.
    #[error("the process that calls NVML ended: {0}")]
    Gone(String),
}

/// Something that makes NVML calls.
pub trait Hand: Send {
    /// Makes one call.
    ///
    /// # Errors
    /// If there is no answer; after anything but a refusal another hand must be taken.
    fn ask(&mut self, request: &Request) -> Result<Answer, HandError>;
}

/// Where hands come from.
pub trait Hands: Send + Sync {
    /// A new hand, with an NVML of its own.
    ///
    /// # Errors
    /// If it can't be started.
    fn start(&self) -> Result<Box<dyn Hand>, HandError>;
}

/// Makes one call with an open NVML.
///
/// # Errors
/// What NVML says.
pub fn perform(nvml: &Nvml, request: &Request) -> Result<Answer, HandError> {
    let done = |()| Answer::Done;
    let answer = match request {
        Request::Gpus => return nvml.gpus().map(Answer::Gpus).map_err(HandError::Failed),
        Request::Look(gpu) => nvml.division(gpu).map(Answer::Division),
        Request::Profiles(gpu) => nvml.profiles(gpu).map(Answer::Profiles),
        Request::Parts(gpu, id) => nvml.parts(gpu, *id).map(Answer::Parts),
        Request::Processes(gpu) => {
            nvml.processes(&DeviceUuid::Gpu(gpu.clone())).map(Answer::Processes).map_err(LayoutError::from)
        }
        Request::Exists(mig) => {
            nvml.processes(&DeviceUuid::Mig(mig.clone())).map(|_| Answer::Done).map_err(LayoutError::from)
        }
        Request::SetMode(gpu, on) => nvml.set_mig_mode(gpu, *on).map(done),
        Request::CreateGpuInstance(gpu, profile, at) => {
            nvml.create_gpu_instance(gpu, *profile, *at).map(Answer::Created)
        }
        Request::DestroyGpuInstance(gpu, id) => nvml.destroy_gpu_instance(gpu, *id).map(done),
        Request::CreateComputeInstance(gpu, within, profile, at) => {
            nvml.create_compute_instance(gpu, *within, *profile, *at).map(Answer::Created)
        }
        Request::DestroyComputeInstance(gpu, within, id) => nvml.destroy_compute_instance(gpu, *within, *id).map(done),
    };
    answer.map_err(|error| match error {
        LayoutError::Refused(refusal) => HandError::Refused(refusal),
        LayoutError::Nvml(NvmlError::NoSuchDevice { device }) => HandError::NoSuchDevice(device.to_string()),
        other => HandError::Failed(chain(&other)),
    })
}

/// Is a hand, until standard input ends.
///
/// # Errors
/// If the helper is gone or the lines can't be read or written.
pub fn be(library: Option<&Path>, parent: i32) -> std::io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    if nix::unistd::getppid().as_raw() != parent {
        return Err(std::io::Error::other("the helper that started this hand has ended"));
    }
    let nvml = Nvml::open(library).map_err(|error| HandError::Failed(chain(&error)));
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let answer = nvml.as_ref().map_err(Clone::clone).and_then(|nvml| perform(nvml, &request));
        let mut text = serde_json::to_string(&answer)?;
        text.push('\n');
        output.write_all(text.as_bytes())?;
        output.flush()?;
    }
    Ok(())
}

/// Hands that are processes of this program.
#[derive(Debug, Clone)]
pub struct ProcessHands {
    /// This program.
    pub program: PathBuf,
    /// NVML, if not where the dynamic loader finds it.
    pub library: Option<PathBuf>,
    /// How long one call may take.
    pub limit: Duration,
}

impl Hands for ProcessHands {
    fn start(&self) -> Result<Box<dyn Hand>, HandError> {
        let mut command = Command::new(&self.program);
        command.args(["--hand", &std::process::id().to_string()]);
        if let Some(library) = &self.library {
            command.arg("--nvml").arg(library);
        }
        // What root loads is not the environment's to say.
        for name in ["LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().map_err(|error| HandError::Gone(error.to_string()))?;
        let input = child.stdin.take().expect("standard input is a pipe");
        let output = child.stdout.take().expect("standard output is a pipe");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Box::new(ProcessHand { child, input: Some(input), lines, limit: self.limit }))
    }
}

/// A hand that is a process.
#[derive(Debug)]
struct ProcessHand {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    limit: Duration,
}

impl Hand for ProcessHand {
    fn ask(&mut self, request: &Request) -> Result<Answer, HandError> {
        let gone = |error: String| HandError::Gone(error);
        let mut line = serde_json::to_string(request).map_err(|error| gone(error.to_string()))?;
        line.push('\n');
        let input = self.input.as_mut().ok_or_else(|| gone("it was given up before".to_owned()))?;
        input.write_all(line.as_bytes()).map_err(|error| gone(error.to_string()))?;
        match self.lines.recv_timeout(self.limit) {
            Ok(line) => {
                let answer: Result<Answer, HandError> =
                    serde_json::from_str(&line).map_err(|error| gone(error.to_string()))?;
                answer
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                Err(gone(status))
            }
            Err(RecvTimeoutError::Timeout) => {
                if self.kill() {
                    Err(HandError::NoAnswer(self.limit))
                } else {
                    Err(HandError::Stuck(self.child.id()))
                }
            }
        }
    }
}

impl ProcessHand {
    /// Says whether it is gone.
    fn kill(&mut self) -> bool {
        self.input = None;
        // It may have ended by itself.
        let _ = self.child.kill();
        self.ends_by(Instant::now() + DEATH_LIMIT)
    }

    fn ends_by(&mut self, deadline: Instant) -> bool {
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                Ok(None) => return false,
                Ok(Some(_)) | Err(_) => return true,
            }
        }
    }
}

impl Drop for ProcessHand {
    /// It closes NVML when its input ends, so that nothing of ours holds the GPU afterwards.
    fn drop(&mut self) {
        self.input = None;
        if !self.ends_by(Instant::now() + self.limit.min(DEATH_LIMIT)) {
            self.kill();
        }
    }
}
