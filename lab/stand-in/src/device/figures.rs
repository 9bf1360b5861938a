//! Memory, load, power and energy.

use std::collections::BTreeMap;

use tessera_model::board_power::BoardPower;

use super::{ClaimPlace, DeviceClaim, DeviceGpu, DeviceState, GpuInstance};

/// The memory of one place, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFigures {
    /// All of it.
    pub total_bytes: u64,
    /// What clients have allocated.
    pub used_bytes: u64,
    /// The rest.
    pub free_bytes: u64,
}

impl DeviceState {
    /// Returns the memory of a place. All of it is used where the place is gone.
    pub fn memory(&self, place: ClaimPlace) -> MemoryFigures {
        let (total_bytes, used_bytes) = match place {
            ClaimPlace::Gpu(gpu) => {
                (self.gpu_memory_bytes(gpu), self.claims_on_gpu(gpu).map(bytes).sum())
            }
            ClaimPlace::Compute(serial) => match self.compute_instance(serial) {
                None => (0, 0),
                Some((gpu, instance, _)) => {
                    let profile = &instance.profile(&self.gpus[gpu]).profile;
                    let siblings = instance.compute.iter();
                    let used = siblings.flat_map(|c| self.claims_on_compute(c.serial));
                    (profile.memory.get(), used.map(bytes).sum())
                }
            },
        };
        let free_bytes = total_bytes.saturating_sub(used_bytes);
        MemoryFigures { total_bytes, used_bytes, free_bytes }
    }

    /// Returns how busy a GPU is, in percent: the load that its clients state, by the compute
    /// slices they hold, rounded down.
    pub fn load_percent(&self, gpu: usize) -> u64 {
        let slices = u64::from(self.gpus[gpu].whole().profile.compute_slices);
        self.slice_percents(gpu) / slices
    }

    /// Returns how busy a GPU instance is, in percent of its own compute slices, by the driver's number of the instance;
    /// `None` if there is none.
    pub fn instance_load(&self, gpu: usize, number: u32) -> Option<u32> {
        let target = self.gpus.get(gpu)?;
        let instance = target.instances.iter().find(|instance| instance.id == number)?;
        let slices = u64::from(instance.profile(target).profile.compute_slices).max(1);
        u32::try_from(self.busy_slices(target, instance) / slices).ok()
    }

    /// Returns how busy each process keeps a GPU whose MIG mode is off, in percent, by pid. That is
    /// the load that it states, reduced in proportion if all of them together state more than 100
    /// %.
    pub fn process_loads(&self, gpu: usize) -> BTreeMap<u32, u64> {
        let mut stated = BTreeMap::new();
        for claim in self.claims.iter().filter(|c| c.place == ClaimPlace::Gpu(gpu)) {
            *stated.entry(claim.process.pid).or_insert(0) += u64::from(claim.load_percent);
        }
        let all = stated.values().sum::<u64>().max(100);
        stated.values_mut().for_each(|load| *load = *load * 100 / all);
        stated
    }

    /// Returns the power that a GPU draws, in milliwatts: that of an idle board of its model, and a share for
    /// each busy compute slice.
    pub fn power_milliwatts(&self, gpu: usize) -> u64 {
        self.board(gpu).idle_milliwatts() + self.busy_milliwatts(gpu)
    }

    /// Returns the temperature in degrees Celsius: 30 when idle, one more for each 5 W. A rule of
    /// thumb for programs that need a number.
    pub fn temperature_celsius(&self, gpu: usize) -> u64 {
        30 + self.busy_milliwatts(gpu) / 5_000
    }

    /// Returns the energy used since the node was made, in millijoules.
    pub fn energy_millijoules(&self, gpu: usize, running_ms: u64) -> u64 {
        self.microjoules_at(gpu, running_ms) / 1_000
    }

    /// Adds up the energy until now, at the power of the clients in the state.
    pub(crate) fn settle_energy(&mut self, running_ms: u64) {
        for gpu in 0..self.gpus.len() {
            let microjoules = self.microjoules_at(gpu, running_ms);
            let target = &mut self.gpus[gpu];
            target.microjoules = microjoules;
            // Also after a restart of the machine: or the counter would stand until it caught up.
            target.settled_ms = running_ms;
        }
    }

    fn microjoules_at(&self, gpu: usize, running_ms: u64) -> u64 {
        let target = &self.gpus[gpu];
        let elapsed_ms = running_ms.saturating_sub(target.settled_ms);
        target.microjoules.saturating_add(self.power_milliwatts(gpu).saturating_mul(elapsed_ms))
    }

    /// Returns what the busy compute slices of a GPU add, in milliwatts.
    fn busy_milliwatts(&self, gpu: usize) -> u64 {
        let slices = self.gpus[gpu].whole().profile.compute_slices;
        self.slice_percents(gpu) * self.board(gpu).slice_milliwatts(slices) / 100
    }

    fn board(&self, gpu: usize) -> BoardPower {
        BoardPower::find(&self.gpus[gpu].model).unwrap_or(BoardPower::UNLISTED)
    }

    fn gpu_memory_bytes(&self, gpu: usize) -> u64 {
        self.gpus.get(gpu).map_or(0, |target| {
            target.model().memory.unwrap_or(target.whole().profile.memory).get()
        })
    }

    /// Sums load times compute slices over all places of a GPU. Clients that share a place can keep
    /// it at most fully busy.
    fn slice_percents(&self, gpu: usize) -> u64 {
        let target = &self.gpus[gpu];
        let whole = load(&mut self.claims.iter().filter(|c| c.place == ClaimPlace::Gpu(gpu)))
            * u64::from(target.whole().profile.compute_slices);
        let parts = target.instances.iter().map(|instance| self.busy_slices(target, instance));
        whole + parts.sum::<u64>()
    }

    /// Sums load times compute slices over the compute instances of a GPU instance.
    fn busy_slices(&self, target: &DeviceGpu, instance: &GpuInstance) -> u64 {
        let parts = instance.compute.iter().map(|compute| {
            let slices = instance
                .compute_profile(target, compute.profile)
                .map_or(0, |p| u64::from(p.compute_slices));
            load(&mut self.claims_on_compute(compute.serial)) * slices
        });
        parts.sum()
    }
}

/// Returns how busy clients keep the place that they share, in percent.
fn load(claims: &mut dyn Iterator<Item = &DeviceClaim>) -> u64 {
    claims.map(|c| u64::from(c.load_percent)).sum::<u64>().min(100)
}

const fn bytes(claim: &DeviceClaim) -> u64 {
    claim.memory_bytes
}
