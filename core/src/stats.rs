//! Statistics as a leaf: plain numbers in, estimates with their uncertainty out. Nothing here knows of benchmarks.
//!
//! What the numbers do not support is refused with the reason ([`Unavailable`]), never made up. An interval within one
//! window says how well that window pins its own mean or quantile; only an interval between cohorts says what another
//! run would give. [`Kind`] keeps the two apart.

mod cohorts;
mod distribution;
mod ratio;
mod special;

pub use cohorts::{between_cohorts, jain};
pub use distribution::{Definition, Distribution, Quantile};
pub use ratio::{Change, Ratio, beyond_chance, independent_ratio, paired_ratio};

use serde::{Deserialize, Serialize};

/// The confidence level of every interval.
pub const LEVEL: f64 = 0.95;

/// The ends of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// Where an estimate's uncertainty comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// From the variation inside one window: says nothing of what a fresh cohort would give.
    WithinWindow,
    /// From the variation between fresh cohorts.
    BetweenCohorts,
}

/// A value with what is known of its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The value, in the unit of the numbers it was made of.
    pub value: f64,
    /// Its interval at [`LEVEL`], or why there is none.
    pub interval: Result<Bounds, Unavailable>,
    /// Numbers it was made of.
    pub n: usize,
    /// How many independent numbers would pin the value as well; at most `n`, less where neighbours resemble each other.
    pub effective_n: f64,
    /// Where the uncertainty comes from.
    pub kind: Kind,
}

impl Estimate {
    /// The same estimate in another unit.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let interval = self.interval.map(|Bounds { low, high }| {
            let (a, b) = (low * factor, high * factor);
            Bounds { low: a.min(b), high: a.max(b) }
        });
        Self { value: self.value * factor, interval, ..*self }
    }
}

/// Why numbers do not give what was asked.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Unavailable {
    /// The quantile lies beyond what so few samples can show.
    #[error("{quantile} needs {needed} samples, there are {had}")]
    QuantileUnavailable {
        /// Which quantile.
        quantile: Quantile,
        /// The least number of samples that has one.
        needed: usize,
        /// How many there are.
        had: usize,
    },
    /// The quantile is there, but no order statistic bounds it with the level's probability.
    #[error("an interval of {quantile} needs {needed} independent samples, these are worth {had}")]
    QuantileInterval {
        /// Which quantile.
        quantile: Quantile,
        /// The least number of independent samples that bounds it.
        needed: usize,
        /// How many independent samples these are worth.
        had: usize,
    },
    /// Too few numbers.
    #[error("{what} needs {needed} {of}, there {} {had}", if *.had == 1 { "is" } else { "are" })]
    TooFew {
        /// What was asked for.
        what: &'static str,
        /// What it is made of.
        of: &'static str,
        /// The least number that gives one.
        needed: usize,
        /// How many there are.
        had: usize,
    },
    /// The numbers come from several sequences, whose order in time is not one.
    #[error("numbers of several sequences put together have no interval within a window")]
    Pooled,
    /// A number is infinite or not a number.
    #[error("a number is not finite")]
    NotFinite,
    /// All numbers are zero, or one is negative, where only amounts make sense.
    #[error("the numbers are not amounts of something")]
    NotAmounts,
}
