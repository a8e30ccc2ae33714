//! What can be wrong with a suite, where, and what to do about it.

use std::fmt;

use crate::mig::layout::LayoutError;
use crate::mig::profile::Profile;
use crate::suite::objective::QuantityError;
use crate::trial::Sharing;
use crate::units::{Span, SpanError};
use crate::workload::{Family, Model, UnknownName, nearest};

/// One thing that is wrong with a suite.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The text is longer than a suite may be.
    #[error("the suite is {length} bytes long; the limit is {limit}")]
    TooLong {
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The text is not TOML; the parser's own words.
    #[error("this is not TOML: {0}")]
    Syntax(String),
    /// A key that belongs nowhere near.
    #[error("{place} has no key `{key}`; {}", hint(.key, .known))]
    UnknownKey {
        /// What was written.
        key: String,
        /// Where it was written.
        place: &'static str,
        /// What could have been.
        known: &'static [&'static str],
    },
    /// A key that belongs elsewhere.
    #[error("{place} has no key `{key}`; it belongs {home}")]
    Misplaced {
        /// What was written.
        key: String,
        /// Where it was written.
        place: &'static str,
        /// Where it belongs.
        home: &'static str,
    },
    /// A key that must be there is not.
    #[error("{place} needs `{key}`, such as {example}")]
    Missing {
        /// The key.
        key: &'static str,
        /// What lacks it.
        place: &'static str,
        /// How it could be written.
        example: &'static str,
    },
    /// A value of the wrong type.
    #[error("{what} must be {wanted}, not {found}")]
    Type {
        /// What has the value.
        what: String,
        /// What it should be.
        wanted: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A number outside its range.
    #[error("`{key}` is {value}; it must be {low} to {high}")]
    Range {
        /// The key.
        key: &'static str,
        /// What was written.
        value: String,
        /// The least.
        low: u64,
        /// The most.
        high: u64,
    },
    /// A span of time outside its range.
    #[error("`{key}` is {value}; it must be {low} to {high}")]
    SpanRange {
        /// The key.
        key: &'static str,
        /// What was written.
        value: Span,
        /// The least.
        low: Span,
        /// The most.
        high: Span,
    },
    /// A span of time that can't be read.
    #[error("`{key}`: {reason}")]
    Span {
        /// The key.
        key: &'static str,
        /// Why not.
        reason: SpanError,
    },
    /// A value that is none of the known names.
    #[error("`{key}`: {reason}")]
    Name {
        /// The key.
        key: &'static str,
        /// Which, and what could have been.
        reason: UnknownName,
    },
    /// A list with nothing in it.
    #[error("`{key}` is an empty list; give at least one value")]
    EmptyList {
        /// The key.
        key: &'static str,
    },
    /// A list where only one value makes sense.
    #[error("`{key}` takes one value here; a list of values belongs in a workload")]
    ListInDefaults {
        /// The key.
        key: &'static str,
    },
    /// A text with characters that names may not have.
    #[error("`name` must be 1 to 64 letters, digits, `-`, `_` or `.`, and start with a letter or digit")]
    SuiteName,
    /// A text that would disturb a terminal or a report.
    #[error("`description` must be at most {limit} characters, without control characters other than line breaks")]
    Description {
        /// The limit in characters.
        limit: usize,
    },
    /// A version that this program does not read.
    #[error("this is a suite of version {0}; this program reads version 1")]
    Version(String),
    /// A suite without trials.
    #[error("the suite has no trials; add a [[trial]] with `sharing` and `workload`")]
    NoTrials,
    /// The longest window is shorter than the window.
    #[error("`longest-window` is {longest}, shorter than the `window` of {window}; make it at least as long")]
    Windows {
        /// The longest window.
        longest: Span,
        /// The window.
        window: Span,
    },
    /// Two keys of which only one makes sense.
    #[error("{place} has both `{first}` and `{second}`; keep one: {which}")]
    Both {
        /// What has them.
        place: &'static str,
        /// One.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// How to choose.
        which: &'static str,
    },
    /// An exclusive cohort of several.
    #[error("exclusive takes exactly one worker, this cohort has {0}; use `time-slice`, `mps` or `mig` for several")]
    ExclusiveCrowd(usize),
    /// More members than a GPU can serve.
    #[error("a cohort of {members} workers is over the limit of {limit}, which MPS sets")]
    Crowd {
        /// Its members.
        members: usize,
        /// The limit.
        limit: usize,
    },
    /// More workers than instances.
    #[error(
        "{members} workers can't each have an instance of `{layout}`, which has {instances}{}; add instances or \
             take fewer workers",
        if *.clients == 1 { String::new() } else { format!(" for {} clients each", .clients) }
    )]
    TooFewInstances {
        /// Members of the cohort.
        members: usize,
        /// The layout.
        layout: String,
        /// Its instances.
        instances: usize,
        /// Workers on each.
        clients: usize,
    },
    /// A text that is no layout.
    #[error("`layout`: {0}")]
    Layout(LayoutError),
    /// A layout without instances.
    #[error("`{0}` has no instance that a worker could have; write `7x1g`, or a mode such as `exclusive`")]
    NoInstances(String),
    /// A GPU instance on which nothing can run.
    #[error("a `{0}` without compute instances can't run a worker; leave the empty parentheses out")]
    HalfMade(Profile),
    /// A cap where there is no MPS.
    #[error("`active-thread-percentage` caps MPS clients; add `clients = N` for MPS on each instance, or leave it out")]
    CapWithoutClients,
    /// A layout outside of MIG.
    #[error("`{key}` belongs to mode `{home}`, this sharing is `{mode}`")]
    ForeignOption {
        /// The key.
        key: &'static str,
        /// The mode that has it.
        home: &'static str,
        /// The mode it was given to.
        mode: &'static str,
    },
    /// MIG as a plain string.
    #[error("`mig` needs a layout; write {{ mode = \"mig\", layout = \"7x1g\" }}")]
    BareMig,
    /// MPS with a cap as reports print it.
    #[error("a cap is an option of `mps`; write {{ mode = \"mps\", active-thread-percentage = 14 }}")]
    MpsShorthand,
    /// CPU and GPU in one trial.
    #[error("one trial can't be both on the CPU and on a GPU; write `cpu` in a [[trial]] of its own")]
    MixedTargets,
    /// A trial that is kept to a target where its sharing can't be.
    #[error("`only-on` is `{only_on}`, but `{sharing}` runs only on the {other}")]
    Contradiction {
        /// The target.
        only_on: &'static str,
        /// The sharing.
        sharing: Sharing,
        /// Where the sharing can be.
        other: &'static str,
    },
    /// A sequence length for a model without sequences.
    #[error("`sequence-length` is given, but {0} takes no sequences; give it a workload of its own without the key")]
    NoSequences(Model),
    /// A sequence longer than the model has positions for.
    #[error("`sequence-length` is {length}; {model} has positions for 1 to {longest}")]
    SequenceLength {
        /// What was asked.
        length: u32,
        /// The model.
        model: Model,
        /// The most it has.
        longest: u32,
    },
    /// A memory format for a model without convolutions.
    #[error("`memory-format` is given, but {0} has no convolutions; give it a workload of its own without the key")]
    NoConvolutions(Model),
    /// Too many trials.
    #[error("the suite's trials come to more than {limit}; shorten a list or split the suite")]
    TooManyTrials {
        /// The limit.
        limit: usize,
    },
    /// A bound on the wrong side.
    #[error("`{metric}` is better {better}: write `{right}` instead of `{wrong}`")]
    WrongSide {
        /// The metric.
        metric: &'static str,
        /// What is better.
        better: &'static str,
        /// What to write.
        right: &'static str,
        /// What was written.
        wrong: &'static str,
    },
    /// A bound that can't be read.
    #[error("`{key}`: {reason}")]
    Quantity {
        /// The key.
        key: &'static str,
        /// Why not.
        reason: QuantityError,
    },
    /// An objective of work that the suite has not.
    #[error("`of` names work that no trial of this suite has ({0}); the objective would judge nothing")]
    ObjectiveOfNothing(String),
}

fn hint(key: &str, known: &[&str]) -> String {
    match nearest(key, known) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("its keys are {}", known.join(", ")),
    }
}

/// Whether `memory-format` means anything to a model of this family.
pub(super) fn has_convolutions(family: Family) -> bool {
    matches!(family, Family::Resnet | Family::Unet | Family::Vit)
}

/// A problem at its place in the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {}", printable(.problem))]
pub struct SuiteError {
    /// The line, from 1.
    pub line: u32,
    /// The character in the line, from 1.
    pub column: u32,
    /// What is wrong.
    pub problem: Problem,
}

/// A message cut to a length that can be read, with control characters made visible.
fn printable(problem: &Problem) -> String {
    const LONGEST: usize = 600;
    let text = problem.to_string();
    let visible = text.chars().flat_map(|c| {
        let escaped = c.is_control().then(|| c.escape_default());
        let plain = (!c.is_control()).then_some(c);
        escaped.into_iter().flatten().chain(plain)
    });
    let mut cut: String = visible.clone().take(LONGEST).collect();
    if visible.count() > LONGEST {
        cut.push_str("...");
    }
    cut
}

/// Everything that is wrong with a suite, in the order of the text. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuiteErrors(pub(super) Vec<SuiteError>);

impl SuiteErrors {
    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[SuiteError] {
        &self.0
    }
}

impl fmt::Display for SuiteErrors {
    /// One problem a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SuiteErrors {}
