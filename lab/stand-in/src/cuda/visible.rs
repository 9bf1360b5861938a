//! Which devices a process sees: `CUDA_VISIBLE_DEVICES`.

use uuid::Uuid;

use crate::client::ClientSlice;
use crate::device::{ClaimPlace, DeviceState};

/// A device as a process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisibleDevice {
    /// What it is.
    pub place: ClaimPlace,
    /// Name of the GPU, as the driver reports it.
    pub name: String,
    /// UUID as text, `GPU-…` or `MIG-…`.
    pub text: String,
    /// UUID of the GPU that has the device.
    pub gpu_uuid: [u8; 16],
    /// UUID of the MIG device, or of the GPU.
    pub uuid: [u8; 16],
    /// Index of the GPU on its node.
    pub gpu: usize,
    /// SMs; all of a small GPU where no source states them.
    pub sms: u32,
    /// Its SMs and its bandwidth, in thousandths of the GPU's.
    pub share: (u32, u32),
    /// Memory that a program can use.
    pub memory_bytes: u64,
    /// Compute capability.
    pub capability: (i32, i32),
}

/// SMs where no source states them: attributes of CUDA have no way to state "unknown".
const SMS_UNKNOWN: u32 = 16;

/// Returns the devices that a process sees, by `CUDA_VISIBLE_DEVICES`.
///
/// As in the driver:
///
/// - Entries are indices or UUIDs, or prefixes of UUIDs for GPUs.
/// - The first that names nothing ends the list.
/// - A repeated entry makes it empty.
/// - A process sees one MIG device at most, and then no GPU.
///
/// Unset, it is all GPUs that are not cut up, or else the first MIG device.
pub fn devices(state: &DeviceState, variable: Option<&str>) -> Vec<VisibleDevice> {
    let places = match variable {
        None => every(state),
        Some(list) => {
            let named: Vec<_> =
                list.split(',').map_while(|entry| named(state, entry.trim())).collect();
            let twice = (1..named.len()).any(|index| named[..index].contains(&named[index]));
            if twice { Vec::new() } else { named }
        }
    };
    let mig = places.iter().find(|place| matches!(place, ClaimPlace::Compute(_))).copied();
    let seen = mig.map_or(places, |place| vec![place]);
    seen.into_iter().filter_map(|place| describe(state, place)).collect()
}

fn every(state: &DeviceState) -> Vec<ClaimPlace> {
    let whole = (0..state.gpus.len()).filter(|gpu| !state.gpus[*gpu].mig).map(ClaimPlace::Gpu);
    let whole: Vec<_> = whole.collect();
    if whole.is_empty() { first_mig(state, None).into_iter().collect() } else { whole }
}

fn first_mig(state: &DeviceState, gpu: Option<usize>) -> Option<ClaimPlace> {
    let gpus = state.gpus.iter().enumerate().filter(|(index, _)| gpu.is_none_or(|g| g == *index));
    let compute = gpus.flat_map(|(_, gpu)| &gpu.instances).flat_map(|i| &i.compute);
    compute.min_by_key(|c| (c.mig_index, c.serial)).map(|c| ClaimPlace::Compute(c.serial))
}

fn named(state: &DeviceState, entry: &str) -> Option<ClaimPlace> {
    if let Ok(index) = entry.parse::<usize>() {
        let gpu = state.gpus.get(index)?;
        return if gpu.mig { first_mig(state, Some(index)) } else { Some(ClaimPlace::Gpu(index)) };
    }
    if entry.starts_with("GPU-") && entry.len() > "GPU-".len() {
        let mut found = (0..state.gpus.len())
            .filter(|gpu| state.gpu_uuid(*gpu).starts_with(entry) && !state.gpus[*gpu].mig);
        let first = found.next().map(ClaimPlace::Gpu);
        return first.filter(|_| found.next().is_none());
    }
    state.by_uuid(entry)
}

fn describe(state: &DeviceState, place: ClaimPlace) -> Option<VisibleDevice> {
    let index = state.gpu_of(place)?;
    let gpu = state.gpus.get(index)?;
    let slice = ClientSlice::of(state, place)?;
    let gpu_text = state.gpu_uuid(index);
    let gpu_uuid = uuid_of(&gpu_text)?;
    let all_sms = gpu.model().sms.map_or(SMS_UNKNOWN, u32::from).max(1);
    let sms = if slice.sms == 0 { all_sms } else { u32::from(slice.sms) };
    let (text, share) = match place {
        ClaimPlace::Gpu(_) => (gpu_text, (1_000, 1_000)),
        ClaimPlace::Compute(serial) => {
            let (_, instance, compute) = state.compute_instance(serial)?;
            let part = u32::from(instance.profile(gpu).profile.memory_slices) * 1_000;
            let whole = u32::from(gpu.whole().profile.memory_slices).max(1);
            (compute.mig_uuid(), (sms * 1_000 / all_sms, part / whole))
        }
    };
    let (major, minor) = gpu.model().compute_capability.split_once('.')?;
    Some(VisibleDevice {
        place,
        name: slice.name,
        uuid: uuid_of(&text)?,
        text,
        gpu_uuid,
        gpu: index,
        sms,
        share: (share.0.clamp(1, 1_000), share.1.clamp(1, 1_000)),
        memory_bytes: state.memory(place).total_bytes,
        capability: (major.parse().ok()?, minor.parse().ok()?),
    })
}

fn uuid_of(text: &str) -> Option<[u8; 16]> {
    let (_, uuid) = text.split_once('-')?;
    Some(*Uuid::parse_str(uuid).ok()?.as_bytes())
}
