//! What the answer is judged by: one metric, perhaps a bound on it, perhaps of one kind of work only.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toml::de::DeValue;

use crate::suite::problem::Problem;
use crate::suite::reader::{At, Faults, Fields, Value, kind, named};
use crate::workload::{Model, Task, UnknownName, Workload, named_enum};

named_enum!(
    /// A number that a report has for each group of members.
    Metric {
        /// Mean latency of a batch.
        Mean = "mean",
        /// Median latency of a batch.
        P50 = "p50",
        /// 90th percentile of a batch's latency.
        P90 = "p90",
        /// 95th percentile of a batch's latency.
        P95 = "p95",
        /// 99th percentile of a batch's latency.
        P99 = "p99",
        /// 99.9th percentile of a batch's latency.
        P999 = "p99.9",
        /// Items per second of all members of the group together.
        Throughput = "throughput",
        /// The device's energy per item.
        EnergyPerSample = "energy-per-sample",
    }
);

/// What a metric counts; numbers are always kept in this unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricUnit {
    /// Milliseconds.
    Milliseconds,
    /// Items per second.
    PerSecond,
    /// Joules for one item.
    Joules,
}

impl Metric {
    /// The unit of this metric's numbers.
    #[must_use]
    pub fn unit(self) -> MetricUnit {
        match self {
            Self::Throughput => MetricUnit::PerSecond,
            Self::EnergyPerSample => MetricUnit::Joules,
            Self::Mean | Self::P50 | Self::P90 | Self::P95 | Self::P99 | Self::P999 => MetricUnit::Milliseconds,
        }
    }

    /// Whether more is better: true of throughput only.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        self == Self::Throughput
    }
}

impl MetricUnit {
    /// Suffixes that people may write, with how many of this unit one of them is; the first is this unit itself.
    fn suffixes(self) -> &'static [(&'static str, f64)] {
        match self {
            Self::Milliseconds => &[("ms", 1.0), ("us", 1e-3), ("s", 1e3)],
            Self::PerSecond => &[("/s", 1.0), ("/min", 1.0 / 60.0)],
            Self::Joules => &[("J", 1.0), ("mJ", 1e-3)],
        }
    }
}

impl fmt::Display for MetricUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.suffixes()[0].0)
    }
}

/// Why a bound can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no positive number with a unit that {metric} has; write it as {}", examples(*.metric))]
pub struct QuantityError {
    text: String,
    metric: Metric,
}

fn examples(metric: Metric) -> String {
    let suffixes: Vec<String> = metric.unit().suffixes().iter().map(|(suffix, _)| format!("\"20{suffix}\"")).collect();
    format!("{}, or 20 for 20{}", suffixes.join(", "), metric.unit())
}

fn quantity(metric: Metric, text: &str) -> Result<f64, QuantityError> {
    let error = || QuantityError { text: text.to_owned(), metric };
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let factor = match trimmed[end..].trim_start() {
        "" => 1.0,
        unit => metric.unit().suffixes().iter().find(|(suffix, _)| *suffix == unit).ok_or_else(error)?.1,
    };
    let number: f64 = trimmed[..end].parse().map_err(|_| error())?;
    Some(number * factor).filter(|value| value.is_finite() && *value > 0.0).ok_or_else(error)
}

/// Which work an objective judges; what is absent is not asked about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Judged {
    /// Only work of this model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Model>,
    /// Only work of this task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
}

impl Judged {
    /// Whether a workload is judged.
    #[must_use]
    pub fn includes(&self, workload: &Workload) -> bool {
        self.model.is_none_or(|model| model == workload.model) && self.task.is_none_or(|task| task == workload.task)
    }
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.model, self.task) {
            (Some(model), Some(task)) => write!(f, "{model} {task}"),
            (Some(model), None) => write!(f, "{model}"),
            (None, Some(task)) => write!(f, "{task}"),
            (None, None) => f.write_str("all work"),
        }
    }
}

/// What the answer is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Objective {
    /// The number that is judged; without a bound, the best one wins.
    pub metric: Metric,
    /// At most this (latency, energy) or at least this (throughput), in the metric's unit: see [`Metric::unit`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<f64>,
    /// Which work is judged.
    #[serde(default)]
    pub of: Judged,
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.metric, self.of)?;
        match (self.bound, self.metric.more_is_better()) {
            (Some(bound), true) => write!(f, " at least {bound}{}", self.metric.unit()),
            (Some(bound), false) => write!(f, " at most {bound}{}", self.metric.unit()),
            (None, true) => f.write_str(", the highest"),
            (None, false) => f.write_str(", the lowest"),
        }
    }
}

fn bound(metric: Metric, key: &'static str, value: &Value<'_>, faults: &mut Faults<'_>) -> Option<f64> {
    let text = match value.get_ref() {
        DeValue::String(text) => text.as_ref().to_owned(),
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        other => {
            let problem =
                Problem::Type { what: format!("`{key}`"), wanted: "a number with a unit", found: kind(other) };
            faults.add(&value.span(), problem);
            return None;
        }
    };
    match quantity(metric, &text) {
        Ok(value) => Some(value),
        Err(reason) => {
            faults.add(&value.span(), Problem::Quantity { key, reason });
            None
        }
    }
}

fn judged(value: &Value<'_>, faults: &mut Faults<'_>) -> Option<Judged> {
    let Some(text) = value.get_ref().as_str() else {
        let fields = Fields::of_value(value, "`of`", &["model", "task"], faults)?;
        return Some(Judged {
            model: fields.get("model").and_then(|value| named("model", value, faults)),
            task: fields.get("task").and_then(|value| named("task", value, faults)),
        });
    };
    match (Task::from_str(text), Model::from_str(text)) {
        (Ok(task), _) => Some(Judged { task: Some(task), model: None }),
        (_, Ok(model)) => Some(Judged { model: Some(model), task: None }),
        (Err(tasks), Err(models)) => {
            let known: Vec<&'static str> = tasks.known.into_iter().chain(models.known).collect();
            let reason = UnknownName { text: text.to_owned(), known };
            faults.add(&value.span(), Problem::Name { key: "of", reason });
            None
        }
    }
}

/// Reads [objective]; its place is that of `of`.
pub(super) fn read(value: &Value<'_>, faults: &mut Faults<'_>) -> Option<At<Objective>> {
    let fields = Fields::of_value(value, "[objective]", &["metric", "at-most", "at-least", "of"], faults)?;
    let of = fields.get("of").map_or(Some(Judged::default()), |value| judged(value, faults));
    let metric: Metric = named("metric", fields.need("metric", "metric = \"p99\"", faults)?, faults)?;
    let (better, right, wrong) = match metric.more_is_better() {
        true => ("when it is higher", "at-least", "at-most"),
        false => ("when it is lower", "at-most", "at-least"),
    };
    if let Some(value) = fields.get(wrong) {
        faults.add(&value.span(), Problem::WrongSide { metric: metric.name(), better, right, wrong });
    }
    let bound = match fields.get(right) {
        Some(value) => Some(bound(metric, right, value, faults)?),
        None => None,
    };
    let place = fields.get("of").unwrap_or(value).span();
    Some(At { value: Objective { metric, bound, of: of? }, place })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_carry_their_unit() {
        for (metric, text, value) in [
            (Metric::P99, "20ms", Some(20.0)),
            (Metric::P99, "1.5 s", Some(1500.0)),
            (Metric::Mean, "800us", Some(0.8)),
            (Metric::Mean, "7", Some(7.0)),
            (Metric::Throughput, "6000/min", Some(100.0)),
            (Metric::Throughput, "20ms", None),
            (Metric::EnergyPerSample, "250mJ", Some(0.25)),
            (Metric::P99, "0ms", None),
            (Metric::P99, "-1ms", None),
            (Metric::P99, "", None),
            (Metric::P99, "1e400", None),
            (Metric::P99, "1.2.3ms", None),
            (Metric::P99, "infms", None),
        ] {
            assert_eq!(quantity(metric, text).ok(), value, "{metric} {text}");
        }
    }
}
