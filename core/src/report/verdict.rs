//! What may be believed: one verdict per trial, the faults that make a trial invalid, and the flags that say what to be
//! careful about. Each has a code, a cause and a remedy.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal, $cause:literal, $remedy:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $text)] $variant,)*
        }

        impl $name {
            /// All of them, in the order in which they are documented.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The code in every output.
            #[must_use]
            pub fn code(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// What it means, in general.
            #[must_use]
            pub fn cause(self) -> &'static str {
                match self { $(Self::$variant => $cause,)* }
            }

            /// What to do about it.
            #[must_use]
            pub fn remedy(self) -> &'static str {
                match self { $(Self::$variant => $remedy,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.code())
            }
        }
    };
}

codes!(
    /// Why a trial's numbers are not given.
    Fault {
        /// The cohort is not whole.
        MissingMember = "missing-member",
            "a member of the cohort left no record",
            "look at the trial's outcome; measure the cell again";
        /// One process stands for two members.
        DuplicateMember = "duplicate-member",
            "two members have the same process or the same MIG device",
            "measure the cell again; if it comes back, report it";
        /// A member acted on another configuration.
        Configuration = "configuration",
            "a member was not ready with the configuration it was given, or its batches have another size",
            "use a worker of the same version as the daemon";
        /// Not all members were on the same GPU.
        OtherDevice = "other-device",
            "members that should share one GPU ran on different ones",
            "measure the cell again on one GPU";
        /// Batches are missing.
        LostSamples = "lost-samples",
            "a member ran more batches than it had memory to record",
            "shorten the window or enlarge the batch";
        /// Results are not numbers.
        NotFinite = "not-finite",
            "a member's last output or loss was infinite or not a number",
            "use another precision: the work that was timed is not the work that was meant";
        /// There is no window.
        NoWindow = "no-window",
            "the trial ran through without a window in which batches count",
            "measure the cell again; if it comes back, report it";
        /// A member has no whole batch in the window.
        NoBatches = "no-batches",
            "a member completed no batch inside the window",
            "lengthen the window or its limit, or make batches smaller";
        /// Members did not run together for long enough.
        ThinOverlap = "thin-overlap",
            "the time in which every member had whole batches is less than 80 % of the window",
            "lengthen the window so that it holds many of the slowest member's batches";
    }
);

codes!(
    /// What to be careful about in a trial's numbers.
    Flag {
        /// Too few batches for statistics.
        FewBatches = "few-batches",
            "a member has fewer whole batches in the window than the suite asks for",
            "raise longest-window, or make batches smaller";
        /// Something slowed the clocks down.
        Throttled = "throttled",
            "power, heat or hardware held the clocks down for part of the common interval",
            "check cooling and the power limit; under a constant limit the numbers describe the device at that limit";
        /// Time between batches.
        BatchGaps = "batch-gaps",
            "a member spent more than 5 % of its time between batches, outside of any measured latency",
            "give the workers processors of their own; check the host's load";
        /// Throughput and latency contradict each other.
        ThroughputLatency = "throughput-latency",
            "in a closed loop throughput must be batch size over mean latency, less gaps; it is off by more than 5 %",
            "do not use these numbers; report it";
        /// Device samples are missing.
        TelemetryGaps = "telemetry-gaps",
            "the device was not sampled during more than 10 % of the common interval",
            "check the host's load; means of device quantities speak of the sampled part only";
        /// The window is too short for the energy counter.
        CoarseEnergy = "coarse-energy",
            "the energy counter's steps leave an uncertainty of more than 5 % of the energy",
            "lengthen the window";
        /// GRACT contradicts itself.
        GractRange = "gract-range",
            "the activity counter gave a mean outside [0, 1], so it is left out",
            "update the driver; the counter is wrong, the latencies are not";
        /// The window was made longer; a note only.
        WindowExtended = "window-extended",
            "the window was extended for want of batches (a note: the verdict does not depend on it)",
            "none needed; set a longer window if all trials are to have the same";
        /// Members share host processors; a note only.
        SharedProcessors = "shared-processors",
            "members' host processors overlap, so that they also compete for those (a note: the verdict does not depend on it)",
            "measure on a host with more processors, or with fewer workers";
    }
);

impl Flag {
    /// Whether it only informs and leaves the verdict as it is.
    #[must_use]
    pub fn is_note(self) -> bool {
        matches!(self, Self::WindowExtended | Self::SharedProcessors)
    }
}

/// A fault or flag raised in a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remark<C> {
    /// Which.
    pub code: C,
    /// The member it is about; null: the whole cohort or the device.
    pub member: Option<u32>,
    /// What was found, with its numbers.
    pub text: String,
}

impl<C> Remark<C> {
    /// About the cohort or the device.
    pub fn of_all(code: C, text: impl Into<String>) -> Self {
        Self { code, member: None, text: text.into() }
    }

    /// About one member.
    pub fn of_member(code: C, member: usize, text: impl Into<String>) -> Self {
        Self { code, member: u32::try_from(member).ok(), text: text.into() }
    }
}

/// What may be done with a trial's numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// Use them.
    Valid,
    /// Use them with the flags in mind.
    Flagged,
    /// There are none: the run did not happen as configured.
    Invalid {
        /// Why.
        faults: Vec<Remark<Fault>>,
    },
    /// The workload needs more memory than there is: a result.
    DoesNotFit {
        /// Which member said so.
        member: u32,
        /// What the allocator said.
        reason: String,
    },
    /// The cohort failed.
    Failed {
        /// Why.
        reason: String,
    },
    /// The job was cancelled meanwhile.
    Cancelled {
        /// By whom.
        reason: String,
    },
    /// Somebody else's process was on the device.
    Contaminated {
        /// Whose.
        reason: String,
    },
}

impl Verdict {
    /// The name in every output.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Flagged => "flagged",
            Self::Invalid { .. } => "invalid",
            Self::DoesNotFit { .. } => "does-not-fit",
            Self::Failed { .. } => "failed",
            Self::Cancelled { .. } => "cancelled",
            Self::Contaminated { .. } => "contaminated",
        }
    }

    /// Whether there are numbers.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        matches!(self, Self::Valid | Self::Flagged)
    }

    /// Why there are no numbers, in one line.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::Valid | Self::Flagged => None,
            Self::Invalid { faults } => {
                Some(faults.iter().map(|fault| fault.text.as_str()).collect::<Vec<_>>().join("; "))
            }
            Self::DoesNotFit { member, reason } => Some(format!("member {member}: {reason}")),
            Self::Failed { reason } | Self::Cancelled { reason } | Self::Contaminated { reason } => {
                Some(reason.clone())
            }
        }
    }
}
