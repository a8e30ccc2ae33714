//! Whether two things differ: the ratio of positive numbers from fresh cohorts, and what many such comparisons at once
//! may claim.
//!
//! Ratios are taken on logarithms, where being twice as fast and half as fast lie equally far from no difference.

use super::special::{student_t, student_tails};
use super::{Bounds, LEVEL, Unavailable};

/// The ratio of one mean to another, as the geometric means of cohorts give it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// The ratio; 1 is no difference.
    pub value: f64,
    /// Its interval at [`LEVEL`], for this comparison alone.
    pub interval: Bounds,
    /// The probability of a ratio at least as far from 1, both ways, if there were no difference.
    pub p: f64,
    /// Cohorts on both sides together.
    pub n: usize,
}

/// What a comparison says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The whole interval lies within the least effect that matters.
    Same,
    /// More, by what matters, beyond chance.
    More,
    /// Less, by what matters, beyond chance.
    Less,
    /// The numbers don't say.
    CantTell,
}

/// `a` over `b`, pair by pair: cohorts that ran near each other in time.
///
/// Student's test of the logarithms' differences on n - 1 degrees of freedom.
///
/// # Errors
/// With fewer than two pairs, or if a number is not positive and finite.
pub fn paired_ratio(pairs: &[(f64, f64)]) -> Result<Ratio, Unavailable> {
    let logs: Vec<f64> = pairs.iter().map(|(a, b)| Ok(log(*a)? - log(*b)?)).collect::<Result<_, _>>()?;
    let n = logs.len();
    if n < 2 {
        return Err(Unavailable::TooFew { what: "a comparison", of: "pairs of cohorts", needed: 2, had: n });
    }
    let (mean, variance) = moments(&logs);
    Ok(Ratio::of(mean, variance / n as f64, (n - 1) as f64, 2 * n))
}

/// `a` over `b`, whose cohorts have nothing to do with each other.
///
/// Welch's test of the logarithms' means: variances may differ, degrees of freedom after Satterthwaite (Welch 1947).
///
/// # Errors
/// With fewer than two numbers on a side, or if one is not positive and finite.
pub fn independent_ratio(a: &[f64], b: &[f64]) -> Result<Ratio, Unavailable> {
    let side = |numbers: &[f64]| {
        let logs: Vec<f64> = numbers.iter().map(|number| log(*number)).collect::<Result<_, _>>()?;
        if logs.len() < 2 {
            let had = logs.len();
            return Err(Unavailable::TooFew { what: "a comparison", of: "cohorts on each side", needed: 2, had });
        }
        let (mean, variance) = moments(&logs);
        Ok((mean, variance / logs.len() as f64, (logs.len() - 1) as f64))
    };
    let ((a_mean, a_square, a_free), (b_mean, b_square, b_free)) = (side(a)?, side(b)?);
    let square = a_square + b_square;
    let degrees = if square > 0.0 {
        square.powi(2) / (a_square.powi(2) / a_free + b_square.powi(2) / b_free)
    } else {
        a_free + b_free
    };
    Ok(Ratio::of(a_mean - b_mean, square, degrees, a.len() + b.len()))
}

fn log(number: f64) -> Result<f64, Unavailable> {
    if number.is_finite() && number > 0.0 { Ok(number.ln()) } else { Err(Unavailable::NotAmounts) }
}

fn moments(numbers: &[f64]) -> (f64, f64) {
    let n = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / n;
    (mean, numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / (n - 1.0))
}

impl Ratio {
    /// From a mean of logarithms, the square of its standard error, and that one's degrees of freedom.
    fn of(mean: f64, square: f64, degrees: f64, n: usize) -> Self {
        let error = square.sqrt();
        let half = student_t(LEVEL, degrees) * error;
        let p = match (error > 0.0, mean == 0.0) {
            (true, _) => student_tails(mean / error, degrees),
            (false, true) => 1.0,
            (false, false) => 0.0,
        };
        Self { value: mean.exp(), interval: Bounds { low: (mean - half).exp(), high: (mean + half).exp() }, p, n }
    }

    /// What it says, given whether it is `beyond_chance` among all comparisons that were made with it, and the least
    /// relative effect that matters.
    #[must_use]
    pub fn change(&self, beyond_chance: bool, least: f64) -> Change {
        let (more, less) = (1.0 + least, 1.0 / (1.0 + least));
        match self.value {
            _ if self.interval.low > less && self.interval.high < more => Change::Same,
            value if beyond_chance && value >= more => Change::More,
            value if beyond_chance && value <= less => Change::Less,
            _ => Change::CantTell,
        }
    }
}

/// Which of many comparisons are beyond chance, so that one or more false ones among all have at most the probability
/// `1 - LEVEL`: Holm's step-down method (1979), which asks nothing of how they depend on each other.
#[must_use]
pub fn beyond_chance(probabilities: &[f64]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|a, b| probabilities[*a].total_cmp(&probabilities[*b]));
    let mut beyond = vec![false; probabilities.len()];
    for (step, at) in order.into_iter().enumerate() {
        if probabilities[at] > (1.0 - LEVEL) / (probabilities.len() - step) as f64 {
            break;
        }
        beyond[at] = true;
    }
    beyond
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paired_ratio_is_students() {
        // Logarithms 0.1, 0.2, 0.3: mean 0.2, standard error 0.1 / √3, t = 2√3 on 2 degrees: p = 0.0741799.
        let ratio = paired_ratio(&[(0.1_f64.exp(), 1.0), (0.2_f64.exp(), 1.0), (0.3_f64.exp(), 1.0)]).unwrap();
        assert!((ratio.value - 0.2_f64.exp()).abs() < 1e-12);
        assert!((ratio.p - 0.074_179_9).abs() < 1e-6, "{}", ratio.p);
        assert!((ratio.interval.low.ln() - (0.2 - 4.302_652_73 * 0.1 / 3.0_f64.sqrt())).abs() < 1e-8);
        assert!(paired_ratio(&[(1.0, 2.0)]).is_err());
        assert!(paired_ratio(&[(1.0, 2.0), (0.0, 1.0)]).is_err());
    }

    #[test]
    fn welch_agrees_with_a_worked_case() {
        // Logarithms 1, 2, 3 and 2, 4, 6, 8: t = -3 / √(1/3 + 5/3) on 4.0755 degrees of freedom.
        let exp = |logs: &[f64]| logs.iter().map(|log| log.exp()).collect::<Vec<_>>();
        let ratio = independent_ratio(&exp(&[1.0, 2.0, 3.0]), &exp(&[2.0, 4.0, 6.0, 8.0])).unwrap();
        assert!((ratio.value.ln() + 3.0).abs() < 1e-12);
        assert!((ratio.p - 0.099_912_864_3).abs() < 1e-8, "{}", ratio.p);
    }

    #[test]
    fn identical_cohorts_have_no_chance() {
        let same = paired_ratio(&[(5.0, 5.0), (7.0, 7.0)]).unwrap();
        assert_eq!((same.p, same.change(false, 0.02)), (1.0, Change::Same));
        let twice = independent_ratio(&[10.0, 10.0], &[5.0, 5.0]).unwrap();
        assert_eq!((twice.p, twice.change(true, 0.02)), (0.0, Change::More));
        assert_eq!(twice.change(false, 0.02), Change::CantTell);
    }

    #[test]
    fn small_effects_are_no_change_however_sure() {
        let ratio = Ratio { value: 1.015, interval: Bounds { low: 1.005, high: 1.03 }, p: 1e-9, n: 6 };
        assert_eq!(ratio.change(true, 0.02), Change::CantTell);
        assert_eq!(ratio.change(true, 0.01), Change::More);
        assert_eq!(ratio.change(true, 0.05), Change::Same);
    }

    #[test]
    fn holm_steps_down() {
        assert_eq!(beyond_chance(&[0.01, 0.04, 0.03, 0.005]), [true, false, false, true]);
        assert_eq!(beyond_chance(&[0.01, 0.02, 0.03]), [true, true, true]);
        assert_eq!(beyond_chance(&[0.06]), [false]);
        assert!(beyond_chance(&[]).is_empty());
    }
}
