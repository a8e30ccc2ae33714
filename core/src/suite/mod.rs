//! The suite file, version 1: what a person asks to be measured. Text in, checked cells out; no files, no device.
//!
//! Reading is strict and reports everything that is wrong at once, each with its line and column. The format is
//! documented in `docs/suite.md`.

mod matrix;
mod objective;
mod options;
mod problem;
mod reader;
mod sharing;
mod write;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toml::de::{DeTable, DeValue};

pub use self::objective::{Judged, Metric, MetricUnit, Objective, QuantityError};
pub use self::problem::{Problem, SuiteError, SuiteErrors};

use self::matrix::Matrix;
use self::options::{CAREFUL_SETTLE, Options, option_keys};
use self::reader::{At, Faults, Fields, Value, integer, kind, named, one_or_many, small, string};
use crate::trial::{Sharing, TrialSpec};
use crate::workload::{UnknownName, Workload, named_enum};

/// The version of the format that is read and written.
pub const VERSION: u32 = 1;
/// Bytes in a suite at most.
pub const LONGEST_SUITE: usize = 1 << 20;
/// Members of a cohort at most: the clients that one MPS server takes (up to CUDA 13.0).
pub const MOST_MEMBERS: usize = 48;
/// Cells that a suite may ask for, and trials that a plan may have.
pub const MOST_TRIALS: usize = 10_000;
const LONGEST_DESCRIPTION: usize = 2_000;
const MOST_REPEATS: u32 = 1_000;
const DEFAULT_SEED: u64 = 1;

named_enum!(
    /// What a plan is for.
    Target {
        /// One GPU.
        Gpu = "gpu",
        /// The host's processors.
        Cpu = "cpu",
    }
);

impl Target {
    /// Where a way of sharing can be.
    #[must_use]
    pub fn of(sharing: &Sharing) -> Self {
        if *sharing == Sharing::Cpu { Self::Cpu } else { Self::Gpu }
    }

    /// How people call it in a sentence.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Cpu => "CPU",
        }
    }
}

/// A suite that has been read and checked. Lists are expanded; nothing is ordered, added or left out yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Suite {
    /// Its short name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// How many fresh cohorts measure each cell.
    pub repeats: u32,
    /// Seed of parameters and inputs.
    pub seed: u64,
    /// What the answer is judged by.
    pub objective: Option<Objective>,
    /// Its `[[trial]]` sections, in order. Never empty.
    pub trials: Vec<SuiteTrial>,
}

/// One `[[trial]]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuiteTrial {
    /// The line of its header, from 1.
    pub line: u32,
    /// The only target for which it is measured; none: it must be measured.
    pub only_on: Option<Target>,
    /// What it asks for, in the documented order of expansion. Never empty, all for the same target.
    pub cells: Vec<TrialSpec>,
}

impl SuiteTrial {
    /// Where its sharing modes can be.
    #[must_use]
    pub fn target(&self) -> Target {
        self.cells.first().map_or(Target::Gpu, |cell| Target::of(&cell.sharing))
    }

    /// Whether its settle phase is shorter than the three seconds that steady clocks need.
    #[must_use]
    pub fn settles_hastily(&self) -> bool {
        self.cells.iter().any(|cell| cell.timing.settle < CAREFUL_SETTLE)
    }
}

impl Suite {
    /// Reads a suite.
    ///
    /// # Errors
    /// Everything that is wrong, each with its line, column and remedy. A text that is not TOML is reported as such first.
    pub fn parse(text: &str) -> Result<Self, SuiteErrors> {
        let mut faults = Faults::new(text);
        if text.len() > LONGEST_SUITE {
            faults.add(&(0..0), Problem::TooLong { length: text.len(), limit: LONGEST_SUITE });
            return Err(SuiteErrors(faults.into_sorted()));
        }
        let (document, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let place = error.span().unwrap_or(text.len()..text.len());
            faults.add(&place, Problem::Syntax(error.message().to_owned()));
        }
        if !faults.is_empty() {
            return Err(SuiteErrors(faults.into_sorted()));
        }
        match read(document.get_ref(), &mut faults) {
            Some(suite) if faults.is_empty() => Ok(suite),
            _ => Err(SuiteErrors(faults.into_sorted())),
        }
    }

    /// The suite as TOML: one `[[trial]]` for each cell, every key written out. Reading it gives the same cells.
    #[must_use]
    pub fn to_toml(&self) -> String {
        write::suite(self)
    }
}

fn read(table: &DeTable<'_>, faults: &mut Faults<'_>) -> Option<Suite> {
    let known = &["version", "name", "description", "defaults", "objective", "trial"];
    let top = Fields::of_table(table, 0..0, "a suite", known, faults);
    if let Some(value) = top.need("version", "version = 1", faults) {
        version(value, faults);
    }
    let name = top.need("name", "name = \"my-suite\"", faults).and_then(|value| suite_name(value, faults));
    let description = top.get("description").and_then(|value| description(value, faults));
    let mut base = Options::default();
    let (mut repeats, mut seed) = (1, DEFAULT_SEED);
    if let Some(value) = top.get("defaults")
        && let Some(fields) = Fields::of_value(value, "[defaults]", option_keys!("repeats", "seed"), faults)
    {
        base = Options::read(&fields, &base, faults);
        let written = fields.get("repeats").and_then(|value| small("repeats", 1..=MOST_REPEATS, value, faults));
        repeats = written.unwrap_or(repeats);
        let written = fields.get("seed").and_then(|value| integer("seed", 0..=i64::MAX as u64, value, faults));
        seed = written.unwrap_or(seed);
    }
    let trials = trials(&top, &base, faults);
    let objective = top.get("objective").and_then(|value| objective::read(value, faults));
    if let Some(At { value: Objective { of, .. }, place }) = &objective
        && faults.is_empty()
    {
        let judged = |cell: &TrialSpec| cell.members.iter().any(|member| of.includes(member));
        if !trials.iter().flat_map(|trial| &trial.cells).any(judged) {
            faults.add(place, Problem::ObjectiveOfNothing(of.to_string()));
        }
    }
    let objective = objective.map(|objective| objective.value);
    Some(Suite { name: name?, description, repeats, seed, objective, trials })
}

fn version(value: &Value<'_>, faults: &mut Faults<'_>) {
    match value.get_ref() {
        DeValue::Integer(number) if number.radix() == 10 && number.as_str() == "1" => {}
        DeValue::Integer(number) => faults.add(&value.span(), Problem::Version(number.to_string())),
        other => {
            let problem = Problem::Type { what: "`version`".to_owned(), wanted: "the number 1", found: kind(other) };
            faults.add(&value.span(), problem);
        }
    }
}

fn suite_name(value: &Value<'_>, faults: &mut Faults<'_>) -> Option<String> {
    let text = string("name", value, faults)?;
    let plain = text.len() <= 64
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if !plain {
        faults.add(&value.span(), Problem::SuiteName);
    }
    plain.then(|| text.to_owned())
}

fn description(value: &Value<'_>, faults: &mut Faults<'_>) -> Option<String> {
    let text = string("description", value, faults)?;
    let harmless = |c: char| c == '\n' || !c.is_control();
    if text.chars().count() > LONGEST_DESCRIPTION || !text.chars().all(harmless) {
        faults.add(&value.span(), Problem::Description { limit: LONGEST_DESCRIPTION });
    }
    Some(text.to_owned())
}

fn trials(top: &Fields<'_, '_>, base: &Options, faults: &mut Faults<'_>) -> Vec<SuiteTrial> {
    let Some(value) = top.get("trial") else {
        if !top.misspells("trial") {
            faults.add(&top.place, Problem::NoTrials);
        }
        return Vec::new();
    };
    let DeValue::Array(sections) = value.get_ref() else {
        let problem = Problem::Type {
            what: "`trial`".to_owned(),
            wanted: "a list of sections, each headed [[trial]] in double brackets",
            found: kind(value.get_ref()),
        };
        faults.add(&value.span(), problem);
        return Vec::new();
    };
    if sections.is_empty() {
        faults.add(&value.span(), Problem::NoTrials);
    }
    let mut room = MOST_TRIALS;
    sections.iter().filter_map(|section| trial(section, base, &mut room, faults)).collect()
}

/// The members of a cohort before expansion: so many workers of each of these workloads.
type Groups = Vec<(usize, Matrix)>;

fn trial(section: &Value<'_>, base: &Options, room: &mut usize, faults: &mut Faults<'_>) -> Option<SuiteTrial> {
    let known = option_keys!("sharing", "workers", "workload", "members", "only-on");
    let fields = Fields::of_value(section, "a [[trial]]", known, faults)?;
    let options = Options::read(&fields, base, faults);
    let only_on = fields.get("only-on").and_then(|value| named::<Target>("only-on", value, faults));
    let sharings =
        fields.need("sharing", "sharing = \"exclusive\"", faults).and_then(|value| sharing::read(value, faults));
    let cohorts = cohorts(&fields, &options, faults);
    let (sharings, cohorts) = (sharings?, cohorts?);

    let sizes: Vec<usize> = cohorts.iter().map(combinations).collect();
    let cells = sizes.iter().fold(0, |sum: usize, size| sum.saturating_add(*size)).saturating_mul(sharings.len());
    if cells > *room {
        faults.add(&fields.place, Problem::TooManyTrials { limit: MOST_TRIALS });
        return None;
    }
    *room -= cells;

    let mut specs = Vec::with_capacity(cells);
    for wanted in &sharings {
        if let Some(only_on) = only_on.filter(|target| *target != wanted.value.target())
            && let Ok(sharing) = wanted.value.fit(1)
        {
            let other = wanted.value.target().in_words();
            faults.add(&wanted.place, Problem::Contradiction { only_on: only_on.name(), sharing, other });
            continue;
        }
        for (groups, size) in cohorts.iter().zip(&sizes) {
            let members = groups.iter().map(|(count, _)| count).sum();
            match wanted.value.fit(members) {
                Err(problem) => faults.add(&wanted.place, problem),
                Ok(sharing) => specs.extend((0..*size).map(|index| TrialSpec {
                    sharing: sharing.clone(),
                    members: combination(groups, index),
                    timing: options.timing(),
                })),
            }
        }
    }
    let (line, _) = faults.position(fields.place.start);
    (!specs.is_empty()).then_some(SuiteTrial { line, only_on, cells: specs })
}

/// The cohorts of a trial: one for each number of workers, or the one that `members` lists.
fn cohorts(fields: &Fields<'_, '_>, options: &Options, faults: &mut Faults<'_>) -> Option<Vec<Groups>> {
    let Some(members) = fields.get("members") else {
        let example = "workload = { model = \"resnet18\", task = \"infer\", batch-size = 32 }";
        let workload = fields.need("workload", example, faults);
        let matrix = workload.and_then(|value| Matrix::read(value, options, faults));
        let workers: Option<Vec<usize>> = match fields.get("workers") {
            Some(value) => one_or_many("workers", value, faults, |value, faults| count("workers", value, faults))
                .map(|counts| counts.into_iter().map(|count| count.value).collect()),
            None => Some(vec![1]),
        };
        let (matrix, workers) = (matrix?, workers?);
        return Some(workers.into_iter().map(|count| vec![(count, matrix.clone())]).collect());
    };
    for (second, which) in [
        ("workload", "`workload` for workers that are alike, `members` for different ones"),
        ("workers", "each of `members` has a `count`"),
    ] {
        if fields.get(second).is_some() {
            faults.add(&members.span(), Problem::Both { place: fields.what, first: "members", second, which });
        }
    }
    let DeValue::Array(values) = members.get_ref() else {
        let found = kind(members.get_ref());
        faults.add(&members.span(), Problem::Type { what: "`members`".to_owned(), wanted: "a list of tables", found });
        return None;
    };
    if values.is_empty() {
        faults.add(&members.span(), Problem::EmptyList { key: "members" });
        return None;
    }
    let groups: Vec<Option<(usize, Matrix)>> = values.iter().map(|value| member(value, options, faults)).collect();
    let groups = groups.into_iter().collect::<Option<Groups>>()?;
    let crowd = groups.iter().map(|(count, _)| count).sum();
    if crowd > MOST_MEMBERS {
        faults.add(&members.span(), Problem::Crowd { members: crowd, limit: MOST_MEMBERS });
        return None;
    }
    Some(vec![groups])
}

/// Workers, as many as one cohort may have.
fn count(key: &'static str, value: &Value<'_>, faults: &mut Faults<'_>) -> Option<usize> {
    integer(key, 1..=MOST_MEMBERS as u64, value, faults).and_then(|count| usize::try_from(count).ok())
}

fn member(value: &Value<'_>, options: &Options, faults: &mut Faults<'_>) -> Option<(usize, Matrix)> {
    let fields = Fields::of_value(value, "a member", &["count", "workload"], faults)?;
    let count = match fields.get("count") {
        Some(value) => count("count", value, faults),
        None => Some(1),
    };
    let example = "workload = { model = \"resnet18\", task = \"infer\", batch-size = 32 }";
    let matrix = fields.need("workload", example, faults).and_then(|value| Matrix::read(value, options, faults));
    Some((count?, matrix?))
}

/// How many cohorts the groups' lists come to, saturating.
fn combinations(groups: &Groups) -> usize {
    groups.iter().fold(1, |product, (_, matrix)| product.saturating_mul(matrix.len()))
}

/// The cohort at a place of the documented order: the last group's lists expand fastest.
fn combination(groups: &Groups, mut index: usize) -> Vec<Workload> {
    let mut chosen: Vec<(usize, Workload)> = Vec::with_capacity(groups.len());
    for (count, matrix) in groups.iter().rev() {
        chosen.push((*count, matrix.workload(index % matrix.len())));
        index /= matrix.len();
    }
    chosen.into_iter().rev().flat_map(|(count, workload)| std::iter::repeat_n(workload, count)).collect()
}
