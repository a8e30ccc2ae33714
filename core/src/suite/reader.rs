//! Typed reading of TOML values, collecting every problem with its place instead of stopping at the first.

use std::ops::Range;
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::suite::problem::{Problem, SuiteError};
use crate::units::Span;
use crate::workload::{UnknownName, nearest};

pub(super) type Value<'i> = Spanned<DeValue<'i>>;

/// Bytes of the text, from and to.
pub(super) type Place = Range<usize>;

/// A value and where it was written.
#[derive(Debug, Clone)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

/// Problems found so far.
#[derive(Debug)]
pub(super) struct Faults<'t> {
    text: &'t str,
    found: Vec<SuiteError>,
}

/// Past this many problems the rest is noise.
const MOST_FAULTS: usize = 100;

impl<'t> Faults<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, found: Vec::new() }
    }

    pub(super) fn add(&mut self, place: &Place, problem: Problem) {
        let (line, column) = self.position(place.start);
        let error = SuiteError { line, column, problem };
        if self.found.len() < MOST_FAULTS && !self.found.contains(&error) {
            self.found.push(error);
        }
    }

    /// Line and character of a byte, both from 1.
    pub(super) fn position(&self, byte: usize) -> (u32, u32) {
        let before = &self.text.as_bytes()[..byte.min(self.text.len())];
        let line = before.iter().filter(|b| **b == b'\n').count() + 1;
        let start = before.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let column = String::from_utf8_lossy(&before[start..]).chars().count() + 1;
        (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// All problems, in the order of the text.
    pub(super) fn into_sorted(mut self) -> Vec<SuiteError> {
        self.found.sort_by_key(|error| (error.line, error.column));
        self.found
    }
}

/// Keys that have one home; used to answer a key in the wrong place.
const HOMES: &[(&[&str], &str)] = &[
    (&["version", "name", "description"], "at the top of the file, before the first section"),
    (&["repeats", "seed"], "in [defaults]"),
    (&["metric", "at-most", "at-least", "of"], "in [objective]"),
    (&["sharing", "workers", "members", "only-on"], "in a [[trial]]"),
    (&["workload"], "in a [[trial]] or a member"),
    (&["count"], "in a member: members = [ { count = 6, workload = { ... } } ]"),
    (&["model", "task", "batch-size"], "in a workload: workload = { model = \"resnet18\", ... }"),
    (&["mode", "layout", "active-thread-percentage"], "in a sharing: sharing = { mode = \"mps\", ... }"),
    (
        &[
            "warmup-batches",
            "warmup",
            "settle",
            "window",
            "longest-window",
            "minimum-batches",
            "ready-limit",
            "precision",
            "input",
            "memory-format",
            "wait",
            "cudnn",
            "sequence-length",
        ],
        "in [defaults] or a [[trial]]",
    ),
];

/// A table whose keys are all known.
#[derive(Debug)]
pub(super) struct Fields<'a, 'i> {
    table: &'a DeTable<'i>,
    known: &'static [&'static str],
    /// Known keys that unknown ones most resemble: they are not missing, but misspelt.
    misspelt: Vec<&'static str>,
    pub(super) place: Place,
    pub(super) what: &'static str,
}

impl<'a, 'i> Fields<'a, 'i> {
    /// Takes a table and reports keys that it can't have.
    pub(super) fn of_table(
        table: &'a DeTable<'i>,
        place: Place,
        what: &'static str,
        known: &'static [&'static str],
        faults: &mut Faults<'_>,
    ) -> Self {
        let mut misspelt = Vec::new();
        for key in table.keys() {
            let name = key.get_ref().as_ref();
            if known.contains(&name) {
                continue;
            }
            let home = HOMES.iter().find(|(keys, _)| keys.contains(&name)).map(|(_, home)| *home);
            let key_text = name.to_owned();
            let problem = match home {
                Some(home) => Problem::Misplaced { key: key_text, place: what, home },
                None => {
                    misspelt.extend(nearest(name, known));
                    Problem::UnknownKey { key: key_text, place: what, known }
                }
            };
            faults.add(&key.span(), problem);
        }
        Self { table, known, misspelt, place, what }
    }

    /// The same of a value, which must be a table.
    pub(super) fn of_value(
        value: &'a Value<'i>,
        what: &'static str,
        known: &'static [&'static str],
        faults: &mut Faults<'_>,
    ) -> Option<Self> {
        match value.get_ref() {
            DeValue::Table(table) => Some(Self::of_table(table, value.span(), what, known, faults)),
            other => {
                let problem = Problem::Type { what: what.to_owned(), wanted: "a table", found: kind(other) };
                faults.add(&value.span(), problem);
                None
            }
        }
    }

    pub(super) fn get(&self, key: &'static str) -> Option<&'a Value<'i>> {
        debug_assert!(self.known.contains(&key), "{key} is not listed as a key of {}", self.what);
        self.table.get(key)
    }

    /// Whether a key that is missing has been written in another spelling, which is reported already.
    pub(super) fn misspells(&self, key: &str) -> bool {
        self.misspelt.contains(&key)
    }

    /// The value of a key that must be there.
    pub(super) fn need(
        &self,
        key: &'static str,
        example: &'static str,
        faults: &mut Faults<'_>,
    ) -> Option<&'a Value<'i>> {
        let value = self.get(key);
        if value.is_none() && !self.misspells(key) {
            faults.add(&self.place, Problem::Missing { key, place: self.what, example });
        }
        value
    }
}

/// What people call a value's type.
pub(super) fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn wrong_type(key: &str, wanted: &'static str, value: &Value<'_>, faults: &mut Faults<'_>) {
    faults.add(&value.span(), Problem::Type { what: format!("`{key}`"), wanted, found: kind(value.get_ref()) });
}

/// A text.
pub(super) fn string<'a>(key: &'static str, value: &'a Value<'_>, faults: &mut Faults<'_>) -> Option<&'a str> {
    let text = value.get_ref().as_str();
    if text.is_none() {
        wrong_type(key, "a string", value, faults);
    }
    text
}

/// A whole number within a range.
pub(super) fn integer(
    key: &'static str,
    range: std::ops::RangeInclusive<u64>,
    value: &Value<'_>,
    faults: &mut Faults<'_>,
) -> Option<u64> {
    let DeValue::Integer(number) = value.get_ref() else {
        wrong_type(key, "a whole number", value, faults);
        return None;
    };
    match u64::from_str_radix(number.as_str(), number.radix()) {
        Ok(value) if range.contains(&value) => Some(value),
        _ => {
            let problem = Problem::Range { key, value: number.to_string(), low: *range.start(), high: *range.end() };
            faults.add(&value.span(), problem);
            None
        }
    }
}

/// The same for ranges that fit 32 bits.
pub(super) fn small(
    key: &'static str,
    range: std::ops::RangeInclusive<u32>,
    value: &Value<'_>,
    faults: &mut Faults<'_>,
) -> Option<u32> {
    let wide = u64::from(*range.start())..=u64::from(*range.end());
    integer(key, wide, value, faults).and_then(|value| u32::try_from(value).ok())
}

/// One of the names of a type.
pub(super) fn named<T: FromStr<Err = UnknownName>>(
    key: &'static str,
    value: &Value<'_>,
    faults: &mut Faults<'_>,
) -> Option<T> {
    match string(key, value, faults)?.parse() {
        Ok(named) => Some(named),
        Err(reason) => {
            faults.add(&value.span(), Problem::Name { key, reason });
            None
        }
    }
}

/// A span of time within a range.
pub(super) fn span(
    key: &'static str,
    range: std::ops::RangeInclusive<Span>,
    value: &Value<'_>,
    faults: &mut Faults<'_>,
) -> Option<Span> {
    let Some(text) = value.get_ref().as_str() else {
        wrong_type(key, "a span of time with its unit, such as \"45s\"", value, faults);
        return None;
    };
    match text.parse::<Span>() {
        Err(reason) => {
            faults.add(&value.span(), Problem::Span { key, reason });
            None
        }
        Ok(span) if range.contains(&span) => Some(span),
        Ok(span) => {
            let problem = Problem::SpanRange { key, value: span, low: *range.start(), high: *range.end() };
            faults.add(&value.span(), problem);
            None
        }
    }
}

/// One value or a list of them: those that could be read, or nothing if any could not.
pub(super) fn one_or_many<'t, T>(
    key: &'static str,
    value: &Value<'_>,
    faults: &mut Faults<'t>,
    read: impl Fn(&Value<'_>, &mut Faults<'t>) -> Option<T>,
) -> Option<Vec<At<T>>> {
    let mut at = |value: &Value<'_>| read(value, faults).map(|read| At { value: read, place: value.span() });
    match value.get_ref() {
        DeValue::Array(values) if values.is_empty() => {
            faults.add(&value.span(), Problem::EmptyList { key });
            None
        }
        DeValue::Array(values) => {
            let all: Vec<Option<At<T>>> = values.iter().map(at).collect();
            all.into_iter().collect()
        }
        _ => at(value).map(|one| vec![one]),
    }
}
