//! What still fits on a GPU without touching what stands there.

use crate::types::Gpu;

/// Tells which profiles could be cut from what is free now, and how many full layouts stay
/// reachable; nothing for a GPU without MIG.
pub fn line(gpu: &Gpu) -> Option<String> {
    if gpu.memory_slices == 0 || gpu.profiles.is_empty() {
        return None;
    }
    let fits: Vec<String> = gpu
        .profiles
        .iter()
        // Variants with media engines (`+me`) only differ in what isn't drawn here.
        .filter(|profile| !profile.name.contains('+'))
        .filter(|profile| profile.fits_now > 0)
        .map(|profile| format!("{}x {}", profile.fits_now, profile.name))
        .collect();
    let fits = match fits.is_empty() {
        true => "nothing more can be cut".to_owned(),
        false => format!("could still be cut: {}", fits.join(" or ")),
    };
    Some(match gpu.reachability {
        Some(1) => format!("{fits}; 1 full layout is reachable"),
        Some(count) => format!("{fits}; {count} full layouts are reachable"),
        None => fits,
    })
}
