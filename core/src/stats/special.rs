//! The few special functions that intervals need, by their textbook series (NIST Digital Library of Mathematical
//! Functions, chapters 5 and 8). A statistics crate would bring a linear-algebra or random-number stack for these lines.

use std::f64::consts::PI;

/// The logarithm of the gamma function for positive arguments, to about 13 digits.
///
/// Stirling's series (DLMF 5.11.1) from 15 on, reached by the recurrence Γ(x+1) = xΓ(x).
fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut shift) = (x, 0.0);
    while x < 15.0 {
        shift += x.ln();
        x += 1.0;
    }
    let inverse = 1.0 / x;
    let square = inverse * inverse;
    let series = inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0)));
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * PI).ln() + series - shift
}

/// The regularised incomplete beta function I_x(a, b).
///
/// The continued fraction DLMF 8.17.22 evaluated from the front (modified Lentz), on the side where it converges fast.
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let front = (a * x.ln() + b * (-x).ln_1p() + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b)).exp() / a;
    const TINY: f64 = 1e-300;
    let away_from_zero = |value: f64| if value.abs() < TINY { TINY } else { value };
    let (mut value, mut c, mut d) = (1.0, 1.0, 0.0);
    for term in 1..100_000_u32 {
        let m = f64::from(term / 2);
        let coefficient = if term % 2 == 0 {
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        } else {
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        };
        d = 1.0 / away_from_zero(1.0 + coefficient * d);
        c = away_from_zero(1.0 + coefficient / c);
        value *= c * d;
        if (c * d - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front / value
}

/// The probability of Student's |T| being at least |t|.
pub(super) fn student_tails(t: f64, degrees: f64) -> f64 {
    incomplete_beta(degrees / (degrees + t * t), degrees / 2.0, 0.5)
}

/// The t of Student's distribution for which |T| ≤ t has the probability `level`.
pub(super) fn student_t(level: f64, degrees: f64) -> f64 {
    let outside = |t: f64| student_tails(t, degrees);
    let (mut low, mut high) = (0.0, 1.0);
    while outside(high) > 1.0 - level {
        (low, high) = (high, high * 2.0);
    }
    while high - low > 1e-11 * high {
        let middle = f64::midpoint(low, high);
        if outside(middle) > 1.0 - level {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The probability of at most `k` successes in `n` independent trials of probability `p` (DLMF 8.17.5).
pub(super) fn binomial_at_most(k: usize, n: usize, p: f64) -> f64 {
    if k >= n { 1.0 } else { incomplete_beta(1.0 - p, (n - k) as f64, k as f64 + 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gamma_of_whole_numbers_is_the_factorial() {
        let mut factorial = 0.0;
        for n in 1..60_u32 {
            assert!((ln_gamma(f64::from(n)) - factorial).abs() < 1e-11, "{n}");
            factorial += f64::from(n).ln();
        }
        assert!((ln_gamma(0.5) - PI.sqrt().ln()).abs() < 1e-12);
    }

    /// Two-sided 95 % and 99 % points as every table of Student's t prints them.
    #[test]
    fn student_t_agrees_with_the_tables() {
        for (level, degrees, table) in [
            (0.95, 1.0, 12.706_204_736),
            (0.95, 2.0, 4.302_652_730),
            (0.95, 4.0, 2.776_445_105),
            (0.95, 9.0, 2.262_157_163),
            (0.95, 19.0, 2.093_024_054),
            (0.95, 29.0, 2.045_229_642),
            (0.95, 120.0, 1.979_930_405),
            (0.99, 1.0, 63.656_741_162),
            (0.99, 9.0, 3.249_835_542),
            (0.90, 5.0, 2.015_048_373),
        ] {
            let t = student_t(level, degrees);
            assert!((t - table).abs() < 2e-9 * table, "{level} {degrees}: {t} is not {table}");
        }
    }

    #[test]
    fn binomial_probabilities_agree_with_their_sums() {
        for (n, p) in [(10_usize, 0.5), (37, 0.9), (400, 0.99), (3_000, 0.95)] {
            let mut mass = (n as f64 * (1.0_f64 - p).ln()).exp();
            let mut sum = mass;
            // Small masses underflow to a start that the recurrence can't leave; skip those.
            if mass < 1e-290 {
                continue;
            }
            for k in 0..n {
                assert!((binomial_at_most(k, n, p) - sum).abs() < 1e-10, "{k} of {n} at {p}");
                mass *= (n - k) as f64 / (k + 1) as f64 * p / (1.0 - p);
                sum += mass;
            }
        }
        // By symmetry half of what the middle leaves; the middle's mass is 1 / sqrt(π n / 2).
        let middle = 1.0 / (PI * 500_000.0).sqrt();
        let found = binomial_at_most(499_999, 1_000_000, 0.5);
        assert!((found - (1.0 - middle) / 2.0).abs() < 1e-8, "{found}");
    }
}
