//! One machine for many processes: the state is a file, replaced whole under a lock.

use std::fs::{File, Metadata};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::time::{ClockId, clock_gettime};

use crate::files::{self, Start};
use crate::machine::{Machine, MachineError};
use crate::state::State;

/// The variable that names the description.
pub const MACHINE: &str = "NVML_SIM_MACHINE";
/// The variable that names the state.
pub const STATE: &str = "NVML_SIM_STATE";

/// A simulated machine as one process sees it.
#[derive(Debug)]
pub struct Shared {
    machine: Machine,
    path: Option<PathBuf>,
    /// The state as last read, and which file it was read from; the state itself where there is no file.
    cache: Mutex<Option<(Version, State)>>,
}

/// Tells one version of the file from another: every write makes a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Version {
    inode: u64,
    changed_s: i64,
    changed_ns: i64,
}

impl From<Metadata> for Version {
    fn from(metadata: Metadata) -> Self {
        Self { inode: metadata.ino(), changed_s: metadata.ctime(), changed_ns: metadata.ctime_nsec() }
    }
}

/// Why a simulated machine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// Its description is no good.
    #[error("the simulated machine cannot be built")]
    Machine(#[from] MachineError),
    /// Its state cannot be read or written.
    #[error("the simulated machine's state {path} cannot be used")]
    State {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// CLOCK_MONOTONIC in nanoseconds, which all processes of a boot share.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux has this clock");
    u64::try_from(Duration::from(now).as_nanos()).unwrap_or(u64::MAX)
}

impl Shared {
    /// The machine that the environment names; one H200 of this process's own where it names none.
    ///
    /// # Errors
    /// If the description is no good.
    pub fn from_environment() -> Result<Self, SharedError> {
        let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let machine = path(MACHINE).map_or_else(|| Ok(Machine::plain()), |path| Machine::read(&path))?;
        Ok(Self::new(machine, path(STATE)))
    }

    /// A machine whose state is in a file, or in this process alone.
    #[must_use]
    pub fn new(machine: Machine, state: Option<PathBuf>) -> Self {
        Self { machine, path: state, cache: Mutex::new(None) }
    }

    /// What the machine is made of.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Looks at the state; boots the machine if it has not been.
    ///
    /// # Errors
    /// If the state's file cannot be used.
    pub fn read<R>(&self, look: impl FnOnce(&Machine, &State) -> R) -> Result<R, SharedError> {
        {
            let mut cache = self.lock();
            self.refresh(&mut cache)?;
            if let Some((_, state)) = cache.as_ref().filter(|(_, state)| !state.has_dead()) {
                return Ok(look(&self.machine, state));
            }
        }
        self.update(|machine, state| look(machine, state))
    }

    /// Changes the state, with all sums brought up to now and ended processes forgotten.
    ///
    /// # Errors
    /// If the state's file cannot be used.
    pub fn update<R>(&self, change: impl FnOnce(&Machine, &mut State) -> R) -> Result<R, SharedError> {
        let mut cache = self.lock();
        let _lock = self.path.as_deref().map(lock_file).transpose()?;
        self.refresh(&mut cache)?;
        let started = if cache.is_none() { Some(Start::Boot) } else { None };
        let (_, mut state) = cache.take().unwrap_or_else(|| (Version::default(), State::boot(&self.machine, now_ns())));
        state.advance(&self.machine, now_ns());
        let before = files::divided(&state);
        let result = change(&self.machine, &mut state);
        let version = match &self.path {
            Some(path) => {
                let failed = |source| SharedError::State { path: path.clone(), source };
                if let Some(start) = started {
                    files::start(path, &self.machine, start).map_err(failed)?;
                }
                if started.is_some() || files::divided(&state) != before {
                    files::capabilities(path, &state).map_err(failed)?;
                }
                write(path, &state).map_err(failed)?
            }
            None => Version::default(),
        };
        *cache = Some((version, state));
        Ok(result)
    }

    /// Restarts the machine, or only its driver: nothing that was created is there any more. Processes that go on have
    /// nothing open there.
    ///
    /// # Errors
    /// If the state's file cannot be used.
    pub fn restart(&self, start: Start) -> Result<(), SharedError> {
        self.update(|machine, state| *state = state.restarted(machine, now_ns()))?;
        let Some(path) = &self.path else { return Ok(()) };
        files::start(path, &self.machine, start).map_err(|source| SharedError::State { path: path.clone(), source })
    }

    /// Reads the file again if it is another than the one in the cache; a missing one is a machine that is off.
    fn refresh(&self, cache: &mut Option<(Version, State)>) -> Result<(), SharedError> {
        let Some(path) = &self.path else { return Ok(()) };
        let failed = |source| SharedError::State { path: path.clone(), source };
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                *cache = None;
                return Ok(());
            }
            Err(error) => return Err(failed(error)),
        };
        let version = Version::from(file.metadata().map_err(failed)?);
        if cache.as_ref().is_none_or(|(cached, _)| *cached != version) {
            let text = io::read_to_string(&mut file).map_err(failed)?;
            *cache = Some((version, serde_json::from_str(&text).map_err(|error| failed(error.into()))?));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Version, State)>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds the lock beside the state's file until it is dropped.
fn lock_file(state: &Path) -> Result<Flock<File>, SharedError> {
    let path = state.with_extension("lock");
    let failed = |source| SharedError::State { path: path.clone(), source };
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| failed(errno.into()))
}

fn write(path: &Path, state: &State) -> io::Result<Version> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(&serde_json::to_vec(state)?)?;
    std::fs::rename(&new, path)?;
    Ok(file.metadata()?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;
    use crate::state::{Context, Role};

    fn context(pid: u32) -> Context {
        Context { process: Process::find(pid).unwrap(), role: Role::Compute, instance: None, memory_mb: 1 }
    }

    #[test]
    fn what_one_writes_another_reads() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let (a, b) =
            (Shared::new(Machine::plain(), Some(path.clone())), Shared::new(Machine::plain(), Some(path.clone())));
        assert_eq!(b.read(|_, state| state.gpus[0].contexts.len()).unwrap(), 0);
        a.update(|_, state| state.gpus[0].contexts.push(context(std::process::id()))).unwrap();
        assert_eq!(b.read(|_, state| state.gpus[0].contexts.len()).unwrap(), 1);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(a.read(|_, state| state.gpus[0].contexts.len()).unwrap(), 0, "a reboot forgets");
    }

    #[test]
    fn contexts_end_with_their_process() {
        let shared = Shared::new(Machine::plain(), None);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        shared.update(|_, state| state.gpus[0].contexts.push(context(child.id()))).unwrap();
        assert_eq!(shared.read(|_, state| state.gpus[0].contexts.len()).unwrap(), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(shared.read(|_, state| state.gpus[0].contexts.len()).unwrap(), 0);
    }

    #[test]
    fn writers_do_not_lose_each_others_changes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let shared = Shared::new(Machine::plain(), Some(path.clone()));
                    for _ in 0..25 {
                        shared.update(|_, state| state.gpus[0].contexts.push(context(std::process::id()))).unwrap();
                    }
                });
            }
        });
        let shared = Shared::new(Machine::plain(), Some(path));
        assert_eq!(shared.read(|_, state| state.gpus[0].contexts.len()).unwrap(), 100);
    }
}
