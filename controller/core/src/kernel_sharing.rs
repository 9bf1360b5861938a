//! The service order of jobs whose kernels share a slice: by their priority, their class, and the
//! measured load of their tasks.

use crate::colocation::client;
use crate::predictions::TaskFacts;
use std::collections::BTreeMap;
use tessera_model::spec::Priority;
use tessera_placement::{KernelLengths, KernelSharer, SharingRequest, TaskLoad};

/// Measured loads are rounded up to multiples of this many thousandths, so that a round has few
/// kinds of jobs to place.
pub(crate) const STEP: u16 = 50;

/// Maximum number of tasks whose load is kept: as many as the store has profiles. Further tasks are
/// ignored, and nothing is predicted for them.
pub(crate) const TASKS_MAX: usize = 10_000;

pub(crate) fn service_order(
    loads: &BTreeMap<String, TaskLoad>,
    facts: &TaskFacts,
    priority: Priority,
) -> KernelSharer {
    let load = loads.get(&facts.task);
    KernelSharer {
        priority,
        online: facts.online,
        busy: load.map(|load| load.busy),
        lengths: load.map_or(KernelLengths::UNKNOWN, |load| load.lengths),
        exclusive: facts.kernel_exclusive,
    }
}

pub(crate) fn set_service_order(share: Option<&mut SharingRequest>, turn: KernelSharer) {
    if let Some(sharer) = share.filter(|sharer| sharer.share.is_kernel()) {
        sharer.kernel_sharer = Some(turn);
    }
}

pub(crate) fn set_mps_client(
    share: Option<&mut SharingRequest>,
    loads: &BTreeMap<String, TaskLoad>,
    facts: &TaskFacts,
) {
    if let Some(sharer) = share {
        sharer.client = client(sharer.share, facts, loads.get(&facts.task).map(|load| load.busy));
    }
}

#[cfg(test)]
mod tests {
    use tessera_model::lease::LeaseTerms;
    use tessera_model::share::{KernelShare, MpsShare, SliceShare, SmPercent};
    use tessera_model::spec::GpuRequest;
    use tessera_model::{Bytes, ControllerId, JobId, Millis};
    use uuid::Uuid;

    use super::*;
    use crate::ClusterState;
    use crate::rows::snapshot::StoreSnapshot;
    use crate::rows::submitted::SubmittedJob;
    use std::sync::Arc;

    fn waits(number: u64, share: SliceShare) -> SubmittedJob {
        let facts =
            TaskFacts { task: format!("task{number}"), online: true, ..TaskFacts::default() };
        SubmittedJob {
            job: JobId::from_number(number),
            gang: None,
            array: None,
            gpu: GpuRequest::Memory(share.memory()),
            user: "ada".into(),
            share: Some(SharingRequest::new("ada", share)),
            queue_rank: Priority::HIGHEST.into(),
            attempts: 0,
            facts: Arc::new(facts),
            waited: Millis::ZERO,
            done: 0,
            own: crate::rows::submitted::OwnMemory::default(),
        }
    }

    #[test]
    fn a_kernel_level_sharing_job_gets_the_load_of_its_task_as_soon_as_it_is_known() {
        let memory = Bytes::from_mib(1_024);
        let kernel = SliceShare::Kernel(KernelShare { memory });
        let under_mps = SliceShare::Mps(MpsShare { sm: SmPercent::DEFAULT, memory });
        let waiting = vec![waits(1, kernel), waits(2, kernel), waits(3, under_mps)];
        let snapshot = StoreSnapshot { waiting, ..StoreSnapshot::default() };
        let controller = ControllerId::from_uuid(Uuid::from_u128(9));
        let policy = tessera_placement::by_name("tessera").unwrap();
        let mut cluster =
            ClusterState::new(5, controller, LeaseTerms::default(), policy, snapshot, Millis::ZERO);
        let told = |cluster: &ClusterState| -> Vec<Option<(bool, Option<u16>)>> {
            let turn = |waiting: &crate::state::queue::WaitingJob| {
                let turn = waiting.job.share.as_ref()?.kernel_sharer?;
                Some((turn.online, turn.busy))
            };
            cluster.queue.waiting.values().map(turn).collect()
        };
        assert_eq!(told(&cluster), [Some((true, None)), Some((true, None)), None]);

        let lengths = KernelLengths { half_us: 200_000, gap_us: 8_000, ..KernelLengths::UNKNOWN };
        let load = |busy| TaskLoad { busy, lengths };
        cluster.record_task_load(vec![
            ("task1".to_owned(), load(312)),
            ("task3".to_owned(), load(700)),
        ]);

        assert_eq!(told(&cluster), [Some((true, Some(350))), Some((true, None)), None]);
        let known = cluster.queue.waiting.values().next().unwrap();
        let known = known.job.share.as_ref().unwrap().kernel_sharer.unwrap();
        assert_eq!(known.lengths, lengths.rounded());
    }
}
