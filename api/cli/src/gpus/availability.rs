//! Which instances still fit on a GPU next to the existing ones.

use tessera_api_types::GpuDetails;

/// Describes which profiles fit into the free slices, and how many full layouts are reachable.
/// Returns `None` for a GPU without MIG.
pub fn line(gpu: &GpuDetails) -> Option<String> {
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
        true => "no further instance fits".to_owned(),
        false => format!("still fits: {}", fits.join(" or ")),
    };
    Some(match gpu.reachability {
        Some(1) => format!("{fits}; 1 full layout is reachable"),
        Some(count) => format!("{fits}; {count} full layouts are reachable"),
        None => fits,
    })
}
