//! The keys that `[defaults]` and a `[[trial]]` share: what a workload leaves open, and when cohorts are measured.

use std::time::Duration;

use crate::suite::problem::Problem;
use crate::suite::reader::{Faults, Fields, Value, named, small, span};
use crate::trial::Timing;
use crate::units::Span;
use crate::workload::{Cudnn, Input, MemoryFormat, Model, Precision, Wait};

/// The keys, for tables that have others beside them.
macro_rules! option_keys {
    ($($own:literal),*) => {
        &[
            $($own,)*
            "precision", "input", "memory-format", "wait", "cudnn", "sequence-length", "warmup-batches", "warmup",
            "settle", "window", "longest-window", "minimum-batches", "ready-limit",
        ]
    };
}
pub(super) use option_keys;

const fn milliseconds(value: u64) -> Span {
    Span(Duration::from_millis(value))
}

/// The longest of everything that takes time.
pub(super) const DAY: Span = milliseconds(86_400_000);
const HOUR: Span = milliseconds(3_600_000);
/// A settle phase shorter than this is allowed and warned about.
pub(super) const CAREFUL_SETTLE: Span = milliseconds(3_000);
/// Where nothing is said, the window may be extended to this many times its length.
const EXTENSION: u32 = 3;

/// What was written at one level; absent: not written there.
#[derive(Debug, Clone, Default)]
pub(super) struct Options {
    pub(super) precision: Option<Precision>,
    pub(super) input: Option<Input>,
    pub(super) memory_format: Option<MemoryFormat>,
    pub(super) wait: Option<Wait>,
    pub(super) cudnn: Option<Cudnn>,
    pub(super) sequence_length: Option<u32>,
    warmup_batches: Option<u32>,
    warmup: Option<Span>,
    settle: Option<Span>,
    window: Option<Span>,
    longest_window: Option<Span>,
    minimum_batches: Option<u32>,
    ready_limit: Option<Span>,
}

/// Reads a key that takes one value, with a word of advice where a list was written.
fn single<'t, T>(
    fields: &Fields<'_, '_>,
    key: &'static str,
    faults: &mut Faults<'t>,
    read: impl Fn(&'static str, &Value<'_>, &mut Faults<'t>) -> Option<T>,
) -> Option<T> {
    let value = fields.get(key)?;
    if value.get_ref().is_array() {
        faults.add(&value.span(), Problem::ListInDefaults { key });
        return None;
    }
    read(key, value, faults)
}

impl Options {
    /// The longest sequence that any model has positions for.
    pub(super) fn longest_sequence() -> u32 {
        Model::ALL.iter().filter_map(|model| model.longest_sequence()).max().unwrap_or(1)
    }

    /// What is written in `fields`, and `base` where nothing is.
    pub(super) fn read(fields: &Fields<'_, '_>, base: &Self, faults: &mut Faults<'_>) -> Self {
        macro_rules! span_of {
            ($key:literal, $low:expr, $high:expr) => {
                single(fields, $key, faults, |key, value, faults| span(key, $low..=$high, value, faults))
            };
        }
        macro_rules! count_of {
            ($key:literal, $range:expr) => {
                single(fields, $key, faults, |key, value, faults| small(key, $range, value, faults))
            };
        }
        let merged = Self {
            precision: single(fields, "precision", faults, named).or(base.precision),
            input: single(fields, "input", faults, named).or(base.input),
            memory_format: single(fields, "memory-format", faults, named).or(base.memory_format),
            wait: single(fields, "wait", faults, named).or(base.wait),
            cudnn: single(fields, "cudnn", faults, named).or(base.cudnn),
            sequence_length: count_of!("sequence-length", 1..=Self::longest_sequence()).or(base.sequence_length),
            warmup_batches: count_of!("warmup-batches", 1..=100_000).or(base.warmup_batches),
            warmup: span_of!("warmup", milliseconds(0), HOUR).or(base.warmup),
            settle: span_of!("settle", milliseconds(500), HOUR).or(base.settle),
            window: span_of!("window", milliseconds(100), DAY).or(base.window),
            longest_window: span_of!("longest-window", milliseconds(100), DAY).or(base.longest_window),
            minimum_batches: count_of!("minimum-batches", 1..=1_000_000).or(base.minimum_batches),
            ready_limit: span_of!("ready-limit", milliseconds(1_000), HOUR).or(base.ready_limit),
        };
        if let Some(written) = fields.get("longest-window").or_else(|| fields.get("window")) {
            let Timing { window, longest_window: longest, .. } = merged.timing();
            if longest < window {
                faults.add(&written.span(), Problem::Windows { longest, window });
            }
        }
        merged
    }

    /// The whole timing: the documented default wherever nothing is written.
    pub(super) fn timing(&self) -> Timing {
        let window = self.window.unwrap_or(milliseconds(45_000));
        Timing {
            warmup_batches: self.warmup_batches.unwrap_or(20),
            warmup: self.warmup.unwrap_or(milliseconds(3_000)),
            settle: self.settle.unwrap_or(CAREFUL_SETTLE),
            window,
            longest_window: self
                .longest_window
                .unwrap_or_else(|| Span(window.0.saturating_mul(EXTENSION)).min(DAY.max(window))),
            minimum_batches: self.minimum_batches.unwrap_or(30),
            ready_limit: self.ready_limit.unwrap_or(milliseconds(120_000)),
        }
    }
}
