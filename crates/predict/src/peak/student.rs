//! Quantiles of Student's t distribution, by the crate `statrs`.

use std::sync::LazyLock;

use statrs::distribution::{ContinuousCDF as _, StudentsT};

use crate::number::float;

/// Degrees of freedom with their own quantile. Beyond them it changes by less than a
/// thousandth, and the last one, which is larger, is used.
const FREEDOM_MAX: usize = 512;

/// The two-sided confidence of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confidence {
    /// 99 %.
    P99,
    /// 99.9 %.
    P999,
}

static P99: LazyLock<Vec<f64>> = LazyLock::new(|| table(0.995));
static P999: LazyLock<Vec<f64>> = LazyLock::new(|| table(0.9995));

/// Returns the largest error of a new value at this confidence, in standard errors.
///
/// No degree of freedom counts as one. The table is computed once: a quantile takes some microseconds.
pub fn quantile(confidence: Confidence, freedom: u64) -> f64 {
    let table = match confidence {
        Confidence::P99 => &P99,
        Confidence::P999 => &P999,
    };
    let place = tessera_model::number::index(freedom.max(1)).min(FREEDOM_MAX);
    table.get(place - 1).copied().unwrap_or(f64::INFINITY)
}

fn table(probability: f64) -> Vec<f64> {
    (1..=FREEDOM_MAX as u64)
        .map(|freedom| {
            StudentsT::new(0.0, 1.0, float(freedom))
                .map_or(f64::INFINITY, |distribution| distribution.inverse_cdf(probability))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantiles_are_those_of_printed_tables() {
        // NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2.
        for (freedom, printed) in [(1, 63.657), (2, 9.925), (4, 4.604), (10, 3.169), (100, 2.626)] {
            let found = quantile(Confidence::P99, freedom);
            assert!((found - printed).abs() < 1e-3, "{freedom}: {found}");
        }
        assert!((quantile(Confidence::P999, 10) - 4.587).abs() < 1e-3);
        assert!((quantile(Confidence::P99, 1_000_000) - 2.585).abs() < 1e-2);
    }
}
