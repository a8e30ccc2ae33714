//! Names, paths and documented strings of the interface.

/// The bus name of the daemon.
pub const SERVICE: &str = "org.migperf1";
/// The manager's object, root of every other.
pub const ROOT: &str = "/org/migperf1";

/// The object path of a job.
#[must_use]
pub fn job_path(job: u32) -> String {
    format!("{ROOT}/job/{job}")
}

/// The number of the job at a path, if it is a job's.
#[must_use]
pub fn job_of_path(path: &str) -> Option<u32> {
    path.strip_prefix(ROOT)?.strip_prefix("/job/")?.parse().ok()
}

/// The object path of a GPU, by NVML's index.
#[must_use]
pub fn gpu_path(index: u32) -> String {
    format!("{ROOT}/gpu/{index}")
}

/// Keys of the options of `SubmitJob` and `PlanJob`.
pub mod submit {
    /// `s`: `auto` (a GPU if there is one, else the CPU), `cpu`, or a GPU's UUID or index.
    pub const DEVICE: &str = "device";
    /// `b`: the job is cancelled when the connection that submitted it closes.
    pub const ATTACHED: &str = "attached";
    /// `t`: seed of parameters and inputs; instead of the suite's.
    pub const SEED: &str = "seed";
    /// `b`: MIG instances that are there may be destroyed where a layout needs it, and are created anew at the end with
    /// other UUIDs.
    pub const REPLACE_EXISTING: &str = "replace-existing";
}

/// Keys of the options of `PlanLayout` and `ApplyLayout`.
pub mod layout {
    /// `b`: instances that are there may be destroyed where the layout needs it.
    pub const REPLACE_EXISTING: &str = "replace-existing";
}

/// Keys of a job in `ListJobs`, and of the `Progress` property.
pub mod job {
    /// `u`: its number.
    pub const ID: &str = "id";
    /// `s`: its identity, unique between hosts.
    pub const UID: &str = "uid";
    /// `s`: the suite's name.
    pub const NAME: &str = "name";
    /// `u`: user id of who submitted it.
    pub const OWNER: &str = "owner";
    /// `s`: its state.
    pub const STATE: &str = "state";
    /// `s`: why it waits or how it failed.
    pub const REASON: &str = "reason";
    /// `t`: when it was submitted, microseconds since the epoch.
    pub const SUBMITTED_USEC: &str = "submitted-usec";
    /// `t`: when it ended, microseconds since the epoch.
    pub const ENDED_USEC: &str = "ended-usec";
    /// `u`: trials planned.
    pub const TRIALS_TOTAL: &str = "trials-total";
    /// `u`: trials that ended, whatever their outcome.
    pub const TRIALS_DONE: &str = "trials-done";
    /// `u`: trials that ended without a valid result.
    pub const TRIALS_FAILED: &str = "trials-failed";
    /// `s`: what the current trial measures.
    pub const TRIAL: &str = "trial";
    /// `s`: the current trial's phase: `preparing`, `warming`, `settling`, `measuring`, `collecting`.
    pub const PHASE: &str = "phase";
    /// `t`: estimated end of the job, microseconds since the epoch.
    pub const ESTIMATED_END_USEC: &str = "estimated-end-usec";
}

/// Keys of the filter of `ListJobs`.
pub mod filter {
    /// `s`: only jobs in this state.
    pub const STATE: &str = "state";
    /// `u`: only jobs of this user id.
    pub const OWNER: &str = "owner";
}
