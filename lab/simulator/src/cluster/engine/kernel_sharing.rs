//! Kernel-level sharing on an instance: how busy jobs are there, and how that slows them.

use tessera_model::Millis;
use tessera_model::spec::Priority;
use tessera_placement::{KernelSharer, kernel_sharing};

use super::SimulationRun;
use crate::cluster::job::{JobClass, SimulatedJob};
use crate::cluster::overheads::KernelSharingModel;
use crate::kernel_device::rates::{ServiceOrder, slowdowns};

impl SimulationRun<'_> {
    /// Returns a job as a kernel-level sharer of an instance with this many compute slices.
    pub(super) fn kernel_sharer(
        &self,
        task: usize,
        priority: Priority,
        model: &str,
        slices: u8,
    ) -> KernelSharer {
        let job = &self.setup.jobs[task];
        let online = job.class == JobClass::Online;
        KernelSharer::new(priority, online, busy(job, model, slices))
    }

    /// Returns how much longer each takes than alone, in thousandths.
    pub(super) fn slowdown_of_kernel_sharers(&self, sharers: &[KernelSharer]) -> Vec<u64> {
        match (self.setup.overheads.kernel_sharing, sharers) {
            (KernelSharingModel::Queue, [one, other]) => by_the_queue(one, other).to_vec(),
            (KernelSharingModel::Modelled | KernelSharingModel::Queue, _) => {
                kernel_sharing::by_priority(sharers)
            }
            (KernelSharingModel::Slices, _) => kernel_sharing::sliced(sharers),
        }
    }
}

fn by_the_queue(one: &KernelSharer, other: &KernelSharer) -> [u64; 2] {
    let busy = |sharer: &KernelSharer| sharer.busy.unwrap_or(1_000);
    match one.priority.cmp(&other.priority) {
        std::cmp::Ordering::Less => slowdowns(ServiceOrder::Priority, [busy(one), busy(other)]),
        std::cmp::Ordering::Equal => slowdowns(ServiceOrder::Slices, [busy(one), busy(other)]),
        std::cmp::Ordering::Greater => {
            let [other, one] = slowdowns(ServiceOrder::Priority, [busy(other), busy(one)]);
            [one, other]
        }
    }
}

/// Returns the part of its time on such an instance in which a job's kernels run.
fn busy(job: &SimulatedJob, model: &str, slices: u8) -> Option<u16> {
    let whole = job.times_on(model)?.values().next_back().copied()?;
    let here = job.time(model, slices)?;
    Some(kernel_sharing::on_slice(job.busy?, Millis::new(whole), Millis::new(here)))
}
