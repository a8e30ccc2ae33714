//! A reported number, or the reason why there is none: the two forms of everything that a report says in figures.

use serde::{Deserialize, Serialize};

use crate::device::Reading;
use crate::stats::{Bounds, Estimate, Kind, LEVEL, Unavailable};
use crate::telemetry::{EnergyEstimate, Summary};

/// A number of some form, or null with a reason. In JSON always an object: with a number in `value`, or with
/// `"value": null` and a `reason`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Finding<T> {
    /// There is one.
    Value(T),
    /// There is none.
    Absent(Absent),
}

/// Why a number is missing.
#[expect(clippy::manual_non_exhaustive, reason = "the null is a field of the JSON form")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Absent {
    value: (),
    /// For people.
    pub reason: String,
}

/// A number and nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plain {
    /// The number.
    pub value: f64,
}

/// A number that was estimated from several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Estimated {
    /// The number.
    pub value: f64,
    /// Its interval at `level`.
    pub interval: Option<Bounds>,
    /// Why there is no interval; null where there is one.
    pub no_interval: Option<String>,
    /// The confidence level.
    pub level: f64,
    /// How many numbers it was made of: batches within a window, cohorts between cohorts.
    pub n: u64,
    /// How many independent ones these are worth.
    pub effective_n: f64,
    /// What the interval speaks of.
    pub kind: Kind,
}

/// A quantity that was sampled over an interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampled {
    /// The mean over time.
    pub value: f64,
    /// The largest sample.
    pub peak: f64,
    /// The share of the interval that samples stand for, in [0, 1].
    pub coverage: f64,
    /// How many samples.
    pub samples: u64,
    /// What was read.
    pub source: String,
}

/// A number with a bound on its error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounded {
    /// The number.
    pub value: f64,
    /// The largest error that the counter's steps can cause; the sensor's own error is not in it.
    pub uncertainty: f64,
}

impl<T> Finding<T> {
    /// A missing number.
    pub fn absent(reason: impl Into<String>) -> Self {
        Self::Absent(Absent { value: (), reason: reason.into() })
    }

    /// What there is.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent(_) => None,
        }
    }

    /// Why there is nothing.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Value(_) => None,
            Self::Absent(absent) => Some(&absent.reason),
        }
    }

    /// The same with the number converted.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Finding<U> {
        match self {
            Self::Value(value) => Finding::Value(convert(value)),
            Self::Absent(absent) => Finding::Absent(absent),
        }
    }
}

/// The central number of each form.
pub trait Central {
    /// The number itself.
    fn central(&self) -> f64;
}

impl Central for Plain {
    fn central(&self) -> f64 {
        self.value
    }
}

impl Central for Estimated {
    fn central(&self) -> f64 {
        self.value
    }
}

impl Central for Sampled {
    fn central(&self) -> f64 {
        self.value
    }
}

impl Central for Bounded {
    fn central(&self) -> f64 {
        self.value
    }
}

impl<T: Central> Finding<T> {
    /// The number, if there is one.
    pub fn number(&self) -> Option<f64> {
        self.value().map(Central::central)
    }
}

impl Finding<Plain> {
    /// A number and nothing more; absent if it is not finite, which JSON could not say.
    #[must_use]
    pub fn plain(value: f64) -> Self {
        if value.is_finite() { Self::Value(Plain { value }) } else { Self::absent("the number is not finite") }
    }
}

impl From<Estimate> for Estimated {
    fn from(estimate: Estimate) -> Self {
        Self {
            value: estimate.value,
            interval: estimate.interval.ok(),
            no_interval: estimate.interval.err().map(|reason| reason.to_string()),
            level: LEVEL,
            n: estimate.n as u64,
            effective_n: estimate.effective_n,
            kind: estimate.kind,
        }
    }
}

impl From<Result<Estimate, Unavailable>> for Finding<Estimated> {
    fn from(result: Result<Estimate, Unavailable>) -> Self {
        match result {
            Ok(estimate) => Self::Value(estimate.into()),
            Err(reason) => Self::absent(reason.to_string()),
        }
    }
}

impl Finding<Sampled> {
    /// A summary in another unit, with what was read.
    #[must_use]
    pub fn sampled(reading: Reading<Summary>, factor: f64, source: &str) -> Self {
        match reading {
            Reading::Absent(reason) => Self::absent(reason),
            Reading::Value(Summary { mean, peak, coverage, samples }) => Self::Value(Sampled {
                value: mean * factor,
                peak: peak * factor,
                coverage: coverage.clamp(0.0, 1.0),
                samples: samples as u64,
                source: source.to_owned(),
            }),
        }
    }
}

impl Finding<Bounded> {
    /// Millijoules as joules.
    #[must_use]
    pub fn joules(reading: Reading<EnergyEstimate>) -> Self {
        match reading {
            Reading::Absent(reason) => Self::absent(reason),
            Reading::Value(EnergyEstimate { energy_mj, uncertainty_mj }) => {
                Self::Value(Bounded { value: energy_mj / 1e3, uncertainty: uncertainty_mj / 1e3 })
            }
        }
    }

    /// This amount for each of `count` things.
    #[must_use]
    pub fn per(&self, count: f64) -> Self {
        match self {
            Self::Value(_) if count <= 0.0 => Self::absent("there is nothing to share it among"),
            Self::Value(Bounded { value, uncertainty }) => {
                Self::Value(Bounded { value: value / count, uncertainty: uncertainty / count })
            }
            Self::Absent(absent) => Self::Absent(absent.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_its_absence_survive_json() {
        let given = Finding::plain(2.5);
        let missing: Finding<Plain> = Finding::absent("not measured");
        for (finding, text) in [(given, r#"{"value":2.5}"#), (missing, r#"{"value":null,"reason":"not measured"}"#)] {
            assert_eq!(serde_json::to_string(&finding).unwrap(), text);
            assert_eq!(serde_json::from_str::<Finding<Plain>>(text).unwrap(), finding);
        }
    }

    #[test]
    fn no_number_is_ever_made_of_infinity() {
        assert!(Finding::plain(f64::INFINITY).reason().is_some());
        assert!(Finding::Value(Bounded { value: 1.0, uncertainty: 0.1 }).per(0.0).reason().is_some());
    }
}
