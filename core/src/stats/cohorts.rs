//! Numbers of which each comes from a fresh cohort, and fairness among the members of one.

use super::special::student_t;
use super::{Bounds, Estimate, Kind, LEVEL, Unavailable};

/// The mean of one number per cohort, with Student's interval on n - 1 degrees of freedom from two cohorts on.
///
/// # Errors
/// Without a number, or if one is not finite.
pub fn between_cohorts(values: &[f64]) -> Result<Estimate, Unavailable> {
    let n = values.len();
    if n == 0 {
        return Err(Unavailable::TooFew { what: "a mean", of: "cohorts", needed: 1, had: 0 });
    }
    if values.iter().any(|value| !value.is_finite()) {
        return Err(Unavailable::NotFinite);
    }
    let value = values.iter().sum::<f64>() / n as f64;
    let interval = if n < 2 {
        Err(Unavailable::TooFew { what: "an interval between cohorts", of: "cohorts", needed: 2, had: n })
    } else {
        let variance = values.iter().map(|x| (x - value).powi(2)).sum::<f64>() / (n - 1) as f64;
        let half = student_t(LEVEL, (n - 1) as f64) * (variance / n as f64).sqrt();
        Ok(Bounds { low: value - half, high: value + half })
    };
    Ok(Estimate { value, interval, n, effective_n: n as f64, kind: Kind::BetweenCohorts })
}

/// Jain's fairness index (Jain, Chiu, Hawe 1984): (Σx)² / (n Σx²), 1 when all get the same, 1/n when one gets all.
///
/// # Errors
/// Without a number, if one is negative or not finite, or if all are zero.
pub fn jain(amounts: &[f64]) -> Result<f64, Unavailable> {
    if amounts.is_empty() {
        return Err(Unavailable::TooFew { what: "fairness", of: "members", needed: 1, had: 0 });
    }
    if amounts.iter().any(|amount| !amount.is_finite()) {
        return Err(Unavailable::NotFinite);
    }
    let squares: f64 = amounts.iter().map(|amount| amount * amount).sum();
    if squares <= 0.0 || amounts.iter().any(|amount| *amount < 0.0) {
        return Err(Unavailable::NotAmounts);
    }
    Ok(amounts.iter().sum::<f64>().powi(2) / (amounts.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_interval_between_cohorts_is_students() {
        // Mean 10, standard deviation 1, three values: 10 ± 4.302653 / √3.
        let estimate = between_cohorts(&[9.0, 10.0, 11.0]).unwrap();
        let bounds = estimate.interval.unwrap();
        assert!((estimate.value - 10.0).abs() < 1e-12);
        assert!((bounds.high - 12.484_137_7).abs() < 1e-6, "{bounds:?}");
        assert!((bounds.low - 7.515_862_3).abs() < 1e-6, "{bounds:?}");
        assert_eq!((estimate.n, estimate.kind), (3, Kind::BetweenCohorts));
    }

    #[test]
    fn one_cohort_has_no_interval_between_cohorts() {
        let estimate = between_cohorts(&[9.0]).unwrap();
        assert_eq!(
            estimate.interval.unwrap_err().to_string(),
            "an interval between cohorts needs 2 cohorts, there is 1"
        );
        assert!(between_cohorts(&[]).is_err());
        assert_eq!(between_cohorts(&[1.0, f64::NAN]), Err(Unavailable::NotFinite));
    }

    #[test]
    fn fairness_of_known_shares() {
        for (amounts, index) in
            [(&[5.0, 5.0, 5.0][..], 1.0), (&[7.0, 0.0, 0.0, 0.0], 0.25), (&[1.0, 2.0, 3.0], 36.0 / 42.0)]
        {
            assert!((jain(amounts).unwrap() - index).abs() < 1e-12, "{amounts:?}");
        }
        for amounts in [&[][..], &[0.0, 0.0], &[1.0, -1.0], &[f64::INFINITY]] {
            assert!(jain(amounts).is_err(), "{amounts:?}");
        }
    }

    proptest! {
        #[test]
        fn fairness_lies_between_one_nth_and_one(amounts in prop::collection::vec(0.001..1e6_f64, 1..20), unit in 0.01..100.0_f64) {
            let index = jain(&amounts).unwrap();
            prop_assert!(index <= 1.0 + 1e-12 && index >= 1.0 / amounts.len() as f64 - 1e-12);
            let scaled: Vec<_> = amounts.iter().map(|amount| amount * unit).collect();
            prop_assert!((jain(&scaled).unwrap() - index).abs() < 1e-9);
        }

        #[test]
        fn an_interval_encloses_its_mean(values in prop::collection::vec(-1e6..1e6_f64, 2..20)) {
            let estimate = between_cohorts(&values).unwrap();
            let bounds = estimate.interval.unwrap();
            prop_assert!(bounds.low <= estimate.value && estimate.value <= bounds.high);
        }
    }
}
