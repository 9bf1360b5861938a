//! What still fits on a GPU without touching what stands there.

use crate::types::{Gpu, ProfileView};

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
        .map(|profile| (profile, how_many(gpu, profile)))
        .filter(|(_, count)| *count > 0)
        .map(|(profile, count)| format!("{count}x {}", profile.name))
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

/// Counts how many instances of `profile` fit beside what stands on the GPU.
fn how_many(gpu: &Gpu, profile: &ProfileView) -> usize {
    let mut taken: Vec<(u8, u8)> =
        gpu.instances.iter().map(|i| (i.start, i.start.saturating_add(i.size))).collect();
    let mut compute = free_compute(gpu);
    let mut starts = profile.starts.clone();
    starts.sort_unstable();
    let mut count = 0;
    for start in starts {
        let end = start.saturating_add(profile.memory_slices);
        let collides = taken.iter().any(|(from, to)| start < *to && *from < end);
        if !collides && profile.compute_slices <= compute {
            taken.push((start, end));
            compute -= profile.compute_slices;
            count += 1;
        }
    }
    count
}

/// The largest profile has all compute slices; each instance takes those of its profile.
fn free_compute(gpu: &Gpu) -> u8 {
    let all = gpu.profiles.iter().map(|profile| profile.compute_slices).max().unwrap_or(0);
    gpu.instances.iter().fold(all, |left, instance| {
        let profile = gpu.profiles.iter().find(|profile| profile.name == instance.profile);
        left.saturating_sub(profile.map_or(0, |profile| profile.compute_slices))
    })
}
