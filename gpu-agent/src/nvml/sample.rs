//! Sampling a GPU: few calls, and only those that don't hold anything open. Runs in the worker
//! process.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlProcessInfo_t};
use tessera_model::mig::Slot;
use tessera_model::{AttemptId, Bytes, GpuId};

use super::activity::InstanceCounters;
use super::calls::NvmlLibrary;
use super::read;
use tessera_agent_core::nvml::error::{ErrorHandling, NvmlCallError};
use tessera_agent_core::nvml::sample::{GpuSample, InstanceSample, ProcessSample};

/// How long a layout is used at most. Our own changes are known at once, and those of others
/// when an instance of it fails to answer or a process names one that it lacks.
const LAYOUT_KEPT: Duration = Duration::from_secs(60);
/// How long the owner of a process is used: pids come back only after thousands of others.
const OWNER_KEPT: Duration = Duration::from_secs(5);
/// Maximum number of processes whose owners are remembered.
const OWNERS_MAX: usize = 4096;
/// What stands for "no instance" in a process's entry.
const NO_INSTANCE: u32 = u32::MAX;
/// What stands for "the driver doesn't know" in a process's memory.
const NO_MEMORY: u64 = u64::MAX;

/// Remembers between samples what takes long to look up.
#[derive(Default)]
pub struct Sampler {
    layouts: BTreeMap<GpuId, SampledLayout>,
    /// Up to when the driver's samples of processes are known, in its microseconds.
    loads_upto: BTreeMap<GpuId, u64>,
    owners: BTreeMap<u32, (Instant, ProcessOwner)>,
    counters: InstanceCounters,
}

struct SampledLayout {
    read: Instant,
    places: Vec<SampledInstance>,
}

struct SampledInstance {
    number: u32,
    slot: Slot,
    mig: Option<nvmlDevice_t>,
}

impl Sampler {
    /// Forgets the layout of a GPU.
    pub fn forget(&mut self, gpu: &GpuId) {
        self.layouts.remove(gpu);
    }

    /// Samples a GPU.
    ///
    /// # Errors
    ///
    /// The GPU is lost or in error. A figure that it merely doesn't have is `None`.
    pub fn sample(
        &mut self,
        library: &NvmlLibrary,
        device: nvmlDevice_t,
        gpu: &GpuId,
    ) -> Result<GpuSample, NvmlCallError> {
        let memory = match library.memory(device) {
            Err(fault) if fault.handling() == ErrorHandling::Faulty => return Err(fault),
            other => other.ok(),
        };
        let mut sample = GpuSample {
            mig: library.mig_mode(device).unwrap_or(false),
            memory_used: memory.map(|(_, used)| Bytes::new(used)),
            power_mw: library.power(device).ok().map(u64::from),
            energy_mj: library.energy(device).ok(),
            ..GpuSample::default()
        };
        let mut listed = library.compute_processes(device).unwrap_or_default();
        listed.extend(library.mps_processes(device).unwrap_or_default());
        let mut loads = BTreeMap::new();
        if sample.mig {
            sample.places = self.places(library, device, gpu)?;
            for place in &mut sample.places {
                place.busy = self.counters.busy(library, (device, gpu), place.number);
            }
        } else {
            self.forget(gpu);
            sample.busy_percent = library.utilization(device).ok().map(|rates| rates.gpu);
            if let Some(reported) = self.loads(library, device, gpu) {
                sample.loads_reported = true;
                loads = reported;
            }
        }
        sample.processes = self.processes(&listed, &loads);
        let known = |number| sample.places.iter().any(|place| place.number == number);
        if !sample.processes.iter().filter_map(|process| process.place).all(known) {
            self.forget(gpu);
        }
        Ok(sample)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a list of instances is used for a real time before it is read again"
    )]
    fn places(
        &mut self,
        library: &NvmlLibrary,
        device: nvmlDevice_t,
        gpu: &GpuId,
    ) -> Result<Vec<InstanceSample>, NvmlCallError> {
        let fresh = self.layouts.get(gpu).is_some_and(|l| l.read.elapsed() < LAYOUT_KEPT);
        if !fresh {
            let layout =
                SampledLayout { read: Instant::now(), places: read_places(library, device)? };
            // A new layout may use the numbers of earlier instances again.
            self.counters.forget(library, gpu);
            self.layouts.insert(gpu.clone(), layout);
        }
        let places = self.layouts.get(gpu).map_or(&[][..], |layout| &layout.places);
        let mut gone = false;
        let samples = places.iter().map(|place| {
            let memory = place.mig.map(|mig| library.memory(mig));
            gone |= matches!(memory, Some(Err(_)));
            let used = memory.and_then(Result::ok).map(|(_, used)| Bytes::new(used));
            InstanceSample { number: place.number, slot: place.slot, memory_used: used, busy: None }
        });
        let samples = samples.collect();
        if gone {
            // Somebody else changed the layout: the next sample looks.
            self.forget(gpu);
        }
        Ok(samples)
    }

    /// Returns the mean load of each process since the last sample; `None` if it isn't reported.
    fn loads(
        &mut self,
        library: &NvmlLibrary,
        device: nvmlDevice_t,
        gpu: &GpuId,
    ) -> Option<BTreeMap<u32, u32>> {
        let upto = self.loads_upto.entry(gpu.clone()).or_default();
        let samples = library.process_loads(device, *upto).ok()?;
        let mut sums = BTreeMap::<u32, (u32, u32)>::new();
        for sample in samples {
            *upto = sample.timeStamp.max(*upto);
            let (sum, count) = sums.entry(sample.pid).or_default();
            *sum += sample.smUtil.min(100);
            *count += 1;
        }
        Some(sums.into_iter().map(|(pid, (sum, count))| (pid, sum / count.max(1))).collect())
    }

    fn processes(
        &mut self,
        listed: &[nvmlProcessInfo_t],
        loads: &BTreeMap<u32, u32>,
    ) -> Vec<ProcessSample> {
        let mut found = BTreeMap::new();
        for process in listed {
            let memory = (process.usedGpuMemory != NO_MEMORY).then_some(process.usedGpuMemory);
            let place = (process.gpuInstanceId != NO_INSTANCE).then_some(process.gpuInstanceId);
            let owner = self.owner(process.pid);
            let sample = ProcessSample {
                pid: process.pid,
                place,
                memory: memory.map(Bytes::new),
                load_percent: loads.get(&process.pid).copied().unwrap_or(0),
                attempt: owner.attempt,
                mps_server: owner.mps_server,
            };
            found.insert((process.pid, place), sample);
        }
        found.into_values().collect()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the owner of a process is used for a real time before it is read again"
    )]
    fn owner(&mut self, pid: u32) -> ProcessOwner {
        if self.owners.len() >= OWNERS_MAX {
            self.owners.clear();
        }
        match self.owners.get(&pid) {
            Some((read, owner)) if read.elapsed() < OWNER_KEPT => *owner,
            Some(_) | None => {
                let owner = owner_of(pid);
                self.owners.insert(pid, (Instant::now(), owner));
                owner
            }
        }
    }
}

fn read_places(
    library: &NvmlLibrary,
    device: nvmlDevice_t,
) -> Result<Vec<SampledInstance>, NvmlCallError> {
    let geometry = read::mig_geometry(library, device)?;
    let migs = read::mig_devices(library, device)?;
    let standing = read::standing(library, device, &geometry)?;
    let places = standing.into_iter().map(|instance| {
        // Compute instances share their GPU instance's memory, so any of them reports it.
        let mig = migs.iter().find(|(number, _)| *number == instance.number).map(|(_, mig)| *mig);
        SampledInstance { number: instance.number, slot: instance.slot, mig }
    });
    Ok(places.collect())
}

#[derive(Clone, Copy, Debug, Default)]
struct ProcessOwner {
    attempt: Option<AttemptId>,
    mps_server: bool,
}

/// Returns the owner of a process, by its environment.
fn owner_of(pid: u32) -> ProcessOwner {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let value = |name: &str| {
        let named = |pair: &&[u8]| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(drop);
        let pair = environment.split(|byte| *byte == 0).find(|pair| named(pair).is_some())?;
        std::str::from_utf8(&pair[name.len() + 1..]).ok()
    };
    ProcessOwner {
        attempt: value("TESSERA_ATTEMPT_ID").and_then(|text| text.parse().ok()),
        mps_server: value(crate::mps::daemon::MARK).is_some(),
    }
}
