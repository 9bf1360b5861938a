//! How busy each GPU instance is, by the driver's counters where the GPU has them. Runs in the worker process.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::nvmlDevice_t;
use tessera_model::GpuId;

use super::calls::NvmlLibrary;
use super::calls::gpm::CounterSample;

/// Shortest time between two samples of an instance: NVML's reference requires more than 100 ms.
const BETWEEN_MIN: Duration = Duration::from_millis(110);

/// The counters of the GPUs' instances.
#[derive(Default)]
pub struct InstanceCounters {
    gpus: BTreeMap<GpuId, GpuCounters>,
}

#[derive(Default)]
struct GpuCounters {
    /// Whether the GPU has counters; `None` before it was queried.
    is_supported: Option<bool>,
    /// By the driver's numbers of the instances.
    instances: BTreeMap<u32, InstanceCounter>,
}

struct InstanceCounter {
    taken: Instant,
    /// The newest sample, and memory for the next one.
    newest: CounterSample,
    spare: CounterSample,
    busy: Option<u16>,
}

impl InstanceCounters {
    /// Removes the instances of a GPU, since its layout may have changed.
    pub fn forget(&mut self, library: &NvmlLibrary, gpu: &GpuId) {
        let counters = self.gpus.get_mut(gpu).map(|gpu| std::mem::take(&mut gpu.instances));
        for counter in counters.into_iter().flat_map(BTreeMap::into_values) {
            library.free_counters(counter.newest);
            library.free_counters(counter.spare);
        }
    }

    /// Returns how busy an instance was since its last sample, in thousandths of its multiprocessors; `None` if the
    /// driver does not report it, or not yet.
    #[expect(
        clippy::disallowed_methods,
        reason = "the driver's counters need a real time between two samples"
    )]
    pub fn busy(
        &mut self,
        library: &NvmlLibrary,
        (device, gpu): (nvmlDevice_t, &GpuId),
        instance: u32,
    ) -> Option<u16> {
        let counters = self.gpus.entry(gpu.clone()).or_default();
        if !*counters.is_supported.get_or_insert_with(|| library.has_counters(device)) {
            return None;
        }
        let Some(counter) = counters.instances.get_mut(&instance) else {
            let counter = begin(library, device, instance)?;
            counters.instances.insert(instance, counter);
            return None;
        };
        if counter.taken.elapsed() < BETWEEN_MIN {
            return counter.busy;
        }
        if library.sample_counters(device, instance, counter.spare).is_err() {
            return None;
        }
        counter.taken = Instant::now();
        counter.busy = library.busy_between(counter.newest, counter.spare);
        std::mem::swap(&mut counter.newest, &mut counter.spare);
        counter.busy
    }
}

#[expect(clippy::disallowed_methods, reason = "as for the next samples")]
fn begin(library: &NvmlLibrary, device: nvmlDevice_t, instance: u32) -> Option<InstanceCounter> {
    let newest = library.new_counters().ok()?;
    let Ok(spare) = library.new_counters() else {
        library.free_counters(newest);
        return None;
    };
    let counter = InstanceCounter { taken: Instant::now(), newest, spare, busy: None };
    if library.sample_counters(device, instance, newest).is_err() {
        library.free_counters(newest);
        library.free_counters(spare);
        return None;
    }
    Some(counter)
}
