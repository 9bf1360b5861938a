//! A job's load, from what was measured of it.

use tessera_model::number::clamped;

use super::{ContentionModel, slow_down};
use crate::number::{float, whole};

/// Returns the load on an instance of `slices`, from speeds alone on instances of several sizes, in rising order of
/// them; the speeds' unit has no effect. `None` if fewer than two sizes were measured, or that one was not.
///
/// On the smallest slice a job that gains in full from the next one fills its slice. One that gains nothing has
/// [`ContentionModel::unseen_load`] there. The work for the device is the same everywhere.
pub fn load_of_speeds(model: &ContentionModel, speeds: &[(u8, f64)], slices: u8) -> Option<u16> {
    let unseen = float(u64::from(model.unseen_load)) / 1_000.0;
    let (_, here) = speeds.iter().find(|(size, speed)| *size == slices && *speed > 0.0)?;
    let mut measured = speeds.iter().filter(|(size, speed)| *size > 0 && *speed > 0.0);
    let ((small, slow), (large, fast)) = (measured.next()?, measured.next()?);
    let (small, large) = (f64::from(*small), f64::from(*large));
    let gain = ((fast / slow).ln() / (large / small).ln()).clamp(0.0, 1.0);
    let smallest = gain + (1.0 - gain) * unseen;
    Some(per_mille(smallest * small / slow * here / f64::from(slices)))
}

/// Returns the load of a job that takes so many times as long next to another one like it, without percentages.
pub fn load_of_pair(model: &ContentionModel, slowed: f64) -> u16 {
    let exponent = float(u64::from(model.exponent)) / 100.0;
    let both = slow_down(exponent, 1.0, 2.0).powf(exponent) - 1.0;
    let contended = slowed.max(1.0).powf(exponent) - 1.0;
    per_mille((contended / both).powf(1.0 / exponent))
}

fn per_mille(load: f64) -> u16 {
    clamped(whole(load * 1_000.0).clamp(1, 1_000))
}
