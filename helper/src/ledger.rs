//! The ledger: one file per GPU that says what was found there, what is wanted, what was made and what is being done.
//!
//! It is written before each change, whole and synchronised, so that whoever comes after a crash knows what is ours. A
//! lock beside it is held while the entry is open: two helpers never act on one GPU.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use migperf_core::device::MigMode;
use migperf_core::ids::{GpuUuid, MigUuid};
use migperf_core::mig::offer::Placement;
use migperf_core::mig::profile::Profile;
use migperf_gpu::layout::{ComputeInstance, Division, GpuInstance};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

/// The format of an entry; one of another version is left alone.
const VERSION: u32 = 1;

/// Which life of the machine and its driver an entry is of: instance numbers mean nothing in another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Identity {
    /// The kernel's boot id.
    pub boot: String,
    /// Changes when the driver is loaded again.
    pub driver: String,
}

/// How long a change lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hold {
    /// As long as its liveness descriptor.
    WhileAlive,
    /// Until somebody restores, by a later helper too.
    UntilRestored,
}

/// What is going on with a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// On its way to what is wanted.
    Changing,
    /// There.
    Settled,
    /// On its way back.
    Restoring,
    /// The way back failed.
    RollbackFailed,
    /// A call to the driver does not return.
    Quarantined,
}

/// One change of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Step {
    /// The MIG mode.
    SetMode(bool),
    /// A compute instance goes.
    DestroyCompute {
        /// Its GPU instance.
        gpu_instance: u32,
        /// Its number.
        id: u32,
        /// Its identity.
        uuid: MigUuid,
    },
    /// A GPU instance goes.
    DestroyGpu {
        /// Its number.
        id: u32,
        /// Its profile.
        profile: Profile,
        /// Its place.
        placement: Placement,
    },
    /// A GPU instance comes.
    CreateGpu {
        /// Its profile's id.
        profile_id: u32,
        /// Its profile.
        profile: Profile,
        /// Its place.
        placement: Placement,
    },
    /// A compute instance comes.
    CreateCompute {
        /// Its GPU instance.
        gpu_instance: u32,
        /// Its profile, as devices name it.
        profile: Profile,
        /// Its profile's id, where it is known.
        profile_id: Option<u32>,
        /// Its place, where one is wanted.
        placement: Option<Placement>,
    },
}

/// A GPU instance that the helper made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MadeGpu {
    /// Its number.
    pub id: u32,
    /// Its profile's id.
    pub profile_id: u32,
    /// Its place.
    pub placement: Placement,
}

/// All that is known of a GPU that is not as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Entry {
    version: u32,
    /// Whose life this is about.
    pub identity: Identity,
    /// How long it lasts.
    pub hold: Hold,
    /// For whom, as the caller claims.
    pub on_behalf_of: Option<u32>,
    /// What for, as the caller claims.
    pub purpose: Option<String>,
    /// What was there.
    pub found: Division,
    /// What is wanted, as it was written.
    pub wanted: String,
    /// The acquire hook was started.
    pub acquired: bool,
    /// The helper switched the MIG mode.
    pub switched: bool,
    /// GPU instances that the helper made.
    pub made: Vec<MadeGpu>,
    /// Compute instances that the helper made.
    pub made_compute: Vec<MigUuid>,
    /// Numbers of found GPU instances that the helper destroyed.
    pub gone: Vec<u32>,
    /// Found compute instances that the helper destroyed.
    pub gone_compute: Vec<MigUuid>,
    /// Device nodes that the helper made.
    pub nodes: Vec<PathBuf>,
    /// What is being done: it may have happened or not.
    pub pending: Option<Step>,
    /// What is going on.
    pub state: State,
    /// What is not as it was found, for people; of a failed way back.
    pub left: Vec<String>,
    /// The process that a quarantine waits for, and when it started (clock ticks since boot).
    pub stuck: Option<(u32, u64)>,
}

impl Entry {
    /// An entry for a GPU on which nothing was done yet.
    #[must_use]
    pub fn new(identity: Identity, found: Division, wanted: String, hold: Hold) -> Self {
        Self {
            version: VERSION,
            identity,
            hold,
            on_behalf_of: None,
            purpose: None,
            found,
            wanted,
            acquired: false,
            switched: false,
            made: Vec::new(),
            made_compute: Vec::new(),
            gone: Vec::new(),
            gone_compute: Vec::new(),
            nodes: Vec::new(),
            pending: None,
            state: State::Changing,
            left: Vec::new(),
            stuck: None,
        }
    }

    /// Whether MIG was on.
    #[must_use]
    pub fn found_on(&self) -> bool {
        is_on(self.found.mode)
    }

    /// Whether this compute instance was found.
    #[must_use]
    pub fn found_compute(&self, uuid: &MigUuid) -> bool {
        self.found.instances.iter().flat_map(|gpu| &gpu.compute).any(|compute| compute.uuid == *uuid)
    }

    /// Whether the helper made this compute instance.
    #[must_use]
    pub fn owns_compute(&self, compute: &ComputeInstance) -> bool {
        self.made_compute.contains(&compute.uuid)
    }

    /// Whether the helper made this GPU instance and everything in it: numbers are used again, UUIDs are not.
    #[must_use]
    pub fn owns(&self, gpu: &GpuInstance) -> bool {
        let made = MadeGpu { id: gpu.id, profile_id: gpu.profile_id, placement: gpu.placement };
        self.made.contains(&made) && gpu.compute.iter().all(|compute| self.owns_compute(compute))
    }

    /// Whether this GPU instance was found so, with nothing in it since but what was found or made by the helper.
    #[must_use]
    pub fn was_found(&self, gpu: &GpuInstance) -> bool {
        let same = |found: &&GpuInstance| {
            (found.id, found.profile_id, found.placement) == (gpu.id, gpu.profile_id, gpu.placement)
        };
        let known = |compute: &ComputeInstance| self.owns_compute(compute) || self.found_compute(&compute.uuid);
        !self.gone.contains(&gpu.id)
            && self.found.instances.iter().any(|found| same(&found))
            && gpu.compute.iter().all(known)
    }

    /// Takes in what a look shows of the pending step, and forgets what is no longer there.
    pub fn absorb(&mut self, now: &Division) {
        match self.pending.take() {
            Some(Step::SetMode(on)) => {
                self.switched |= current(now.mode) == on && on != self.found_on();
            }
            Some(Step::CreateGpu { profile_id, placement, .. }) => {
                // A GPU instance with something in it is somebody else's: this step makes it without.
                let new = now.instances.iter().find(|gpu| {
                    (gpu.profile_id, gpu.placement) == (profile_id, placement)
                        && gpu.compute.is_empty()
                        && !self.was_found(gpu)
                        && !self.owns(gpu)
                });
                self.made.extend(new.map(|gpu| MadeGpu { id: gpu.id, profile_id, placement }));
            }
            Some(Step::CreateCompute { gpu_instance, profile, .. }) => {
                let within = now.instances.iter().find(|gpu| gpu.id == gpu_instance);
                let unknown: Vec<&ComputeInstance> = within
                    .iter()
                    .flat_map(|gpu| &gpu.compute)
                    .filter(|compute| !self.owns_compute(compute) && !self.found_compute(&compute.uuid))
                    .collect();
                // More than one that nobody knows: then none is certainly ours.
                if let [new] = unknown.as_slice()
                    && new.profile == profile
                {
                    self.made_compute.push(new.uuid.clone());
                }
            }
            Some(Step::DestroyCompute { uuid, .. }) => {
                let there = now.instances.iter().flat_map(|gpu| &gpu.compute).any(|compute| compute.uuid == uuid);
                if !there && self.found_compute(&uuid) {
                    self.gone_compute.push(uuid);
                }
            }
            Some(Step::DestroyGpu { id, placement, .. }) => {
                let there = now.instances.iter().any(|gpu| gpu.id == id && gpu.placement == placement);
                let found = self.found.instances.iter().any(|gpu| gpu.id == id && gpu.placement == placement);
                let ours = self.made.iter().any(|made| made.id == id);
                if !there && found && !ours {
                    self.gone.push(id);
                }
            }
            None => {}
        }
        self.made.retain(|made| now.instances.iter().any(|gpu| gpu.id == made.id && gpu.placement == made.placement));
        let compute: Vec<&MigUuid> =
            now.instances.iter().flat_map(|gpu| &gpu.compute).map(|compute| &compute.uuid).collect();
        self.made_compute.retain(|uuid| compute.contains(&uuid));
    }

    /// Turns an entry of another life of the machine or its driver into one of this: nothing of that life's instances is
    /// left, whatever is there now is somebody else's, and only the mode may still be ours to put back.
    pub fn renew(&mut self, identity: Identity, now: &Division) {
        let switched = self.switched || matches!(self.pending, Some(Step::SetMode(_)));
        let found_on = self.found_on();
        self.identity = identity;
        self.pending = None;
        for list in [&mut self.made_compute, &mut self.gone_compute] {
            list.clear();
        }
        self.made.clear();
        self.gone.clear();
        self.stuck = None;
        // A mode that does not outlive the driver is off now, whoever switched it.
        let lost = now.resetless && found_on;
        let ours = switched && now.instances.is_empty() && !lost;
        let mode = if ours { self.found.mode } else { now.mode };
        self.switched = ours;
        self.found = Division { mode, ..now.clone() };
    }
}

/// Whether MIG is on, or will be.
#[must_use]
pub fn is_on(mode: MigMode) -> bool {
    matches!(mode, MigMode::Enabled | MigMode::Pending { current: true, .. })
}

fn current(mode: MigMode) -> bool {
    is_on(mode)
}

/// Where entries are kept; tests stand in between to fail at any moment.
pub trait Storage: Send + Sync {
    /// Replaces a file whole, durably.
    ///
    /// # Errors
    /// If that fails; the old file is there then.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Removes a file, durably.
    ///
    /// # Errors
    /// If that fails.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// The file system.
#[derive(Debug, Clone, Copy)]
pub struct Disk;

impl Storage for Disk {
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let new = path.with_extension("new");
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        sync_parent(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)?;
        sync_parent(path)
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// Why the ledger can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// A file can't be read or written.
    #[error("the ledger {0} can't be used")]
    File(PathBuf, #[source] io::Error),
    /// An entry is not one.
    #[error("the ledger's entry {0} can't be read: look at the GPU, put it right by hand, and remove the file")]
    Malformed(PathBuf, #[source] serde_json::Error),
    /// An entry is of another release.
    #[error("the ledger's entry {0} is of version {1}, which this helper does not know: use the release that wrote it")]
    Version(PathBuf, u32),
    /// Another helper works on the GPU.
    #[error("another helper has {0}")]
    Held(GpuUuid),
}

/// The directory of entries.
#[derive(Clone)]
pub struct Ledger {
    directory: PathBuf,
    storage: Arc<dyn Storage>,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// A GPU's lock: its entry is nobody else's while this exists.
#[derive(Debug)]
pub struct GpuLock(#[expect(dead_code, reason = "held, not read")] Flock<File>);

impl Ledger {
    /// Opens the ledger, and makes its directory (for root alone) if it is not there.
    ///
    /// # Errors
    /// If it can't be made.
    pub fn open(directory: PathBuf, storage: Arc<dyn Storage>) -> Result<Self, LedgerError> {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(|error| LedgerError::File(directory.clone(), error))?;
        Ok(Self { directory, storage })
    }

    fn path(&self, gpu: &GpuUuid) -> PathBuf {
        self.directory.join(format!("{gpu}.json"))
    }

    /// Takes a GPU's lock.
    ///
    /// # Errors
    /// If another helper has it.
    pub fn lock(&self, gpu: &GpuUuid) -> Result<GpuLock, LedgerError> {
        let path = self.directory.join(format!("{gpu}.lock"));
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.map_err(|error| LedgerError::File(path.clone(), error))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(GpuLock(lock)),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Err(LedgerError::Held(gpu.clone())),
            Err((_, errno)) => Err(LedgerError::File(path, errno.into())),
        }
    }

    /// A GPU's entry, if it has one.
    ///
    /// # Errors
    /// If there is one that can't be read.
    pub fn read(&self, gpu: &GpuUuid) -> Result<Option<Entry>, LedgerError> {
        let path = self.path(gpu);
        let text = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| LedgerError::File(path.clone(), error))?,
        };
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let malformed = |error| LedgerError::Malformed(path.clone(), error);
        match serde_json::from_slice::<Versioned>(&text).map_err(malformed)?.version {
            VERSION => serde_json::from_slice(&text).map(Some).map_err(malformed),
            other => Err(LedgerError::Version(path, other)),
        }
    }

    /// Writes a GPU's entry.
    ///
    /// # Errors
    /// If it can't be written durably: then nothing may be changed.
    pub fn write(&self, entry: &Entry) -> Result<(), LedgerError> {
        let path = self.path(&entry.found.gpu);
        let bytes = serde_json::to_vec_pretty(entry).map_err(|error| LedgerError::Malformed(path.clone(), error))?;
        self.storage.write(&path, &bytes).map_err(|error| LedgerError::File(path, error))
    }

    /// Removes a GPU's entry: the GPU is as it was found, or nothing of ours is there.
    ///
    /// # Errors
    /// If it can't be removed.
    pub fn close(&self, gpu: &GpuUuid) -> Result<(), LedgerError> {
        let path = self.path(gpu);
        match self.storage.remove(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done.map_err(|error| LedgerError::File(path, error)),
        }
    }

    /// All GPUs that have an entry, with it or why it can't be read.
    ///
    /// # Errors
    /// If the directory can't be read.
    pub fn entries(&self) -> Result<BTreeMap<GpuUuid, Result<Entry, LedgerError>>, LedgerError> {
        let failed = |error| LedgerError::File(self.directory.clone(), error);
        let mut entries = BTreeMap::new();
        for file in std::fs::read_dir(&self.directory).map_err(failed)? {
            let name = file.map_err(failed)?.file_name();
            let gpu = name.to_str().and_then(|name| name.strip_suffix(".json")?.parse::<GpuUuid>().ok());
            let Some(gpu) = gpu else { continue };
            // It may have been closed since the directory was listed.
            if let Some(entry) = self.read(&gpu).transpose() {
                entries.insert(gpu, entry);
            }
        }
        Ok(entries)
    }
}

impl Identity {
    /// This life of the machine and of its driver. The driver's is a file's text, or the number of a directory such as
    /// `/sys/module/nvidia`, which the kernel makes anew when the module is loaded *(not tried on hardware)*.
    ///
    /// # Errors
    /// If the boot id can't be read.
    pub fn read(boot: &Path, driver: &Path) -> io::Result<Self> {
        let driver = match std::fs::metadata(driver) {
            Ok(found) if found.is_dir() => found.ino().to_string(),
            Ok(_) => std::fs::read_to_string(driver)?.trim().to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => "absent".to_owned(),
            Err(error) => return Err(error),
        };
        Ok(Self { boot: std::fs::read_to_string(boot)?.trim().to_owned(), driver })
    }
}
