//! How jobs take turns whose kernels share a slice: by their priority, their class, and how busy their
//! tasks were measured to be.

use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_model::spec::Priority;
use tessera_placement::{Sharer, Turn};

use super::Cluster;
use super::company::client;
use super::foresight::Facts;

/// Parts of time are told apart by so many thousandths, so that a round has few kinds of jobs to place.
const STEP: u16 = 50;

/// Tasks of which it is known how busy they are: as many as the store keeps profiles of. Of more none
/// is taken in, and nothing is predicted of them.
const TASKS_MAX: usize = 10_000;

impl Cluster {
    /// Takes in how busy tasks are, and tells all that share slices.
    pub fn know_busy(&mut self, tasks: Vec<(String, u16)>) {
        let known = Arc::make_mut(&mut self.busy);
        for (task, busy) in tasks {
            if known.len() < TASKS_MAX || known.contains_key(&task) {
                known.insert(task, busy.min(1_000).div_ceil(STEP) * STEP);
            }
        }
        let busy = &*self.busy;
        for ((priority, _), waiting) in &mut self.queue {
            let share = waiting.asked.share.as_mut();
            give_turn(share, turn(busy, &waiting.facts, *priority));
            give_client(waiting.asked.share.as_mut(), busy, &waiting.facts);
        }
        for live in self.live.values_mut() {
            give_client(live.share.as_mut(), busy, &live.facts);
            let launched = live.share.as_ref().and_then(|sharer| sharer.turn);
            let Some(priority) = launched.map(|turn| turn.priority) else { continue };
            let turn = turn(busy, &live.facts, priority);
            give_turn(live.share.as_mut(), turn);
        }
    }

    /// Tells how a job takes turns, if it shares kernel by kernel, or what is known of it under MPS.
    pub(super) fn with_turn(
        &self,
        mut share: Option<Sharer>,
        facts: &Facts,
        priority: Priority,
    ) -> Option<Sharer> {
        give_turn(share.as_mut(), turn(&self.busy, facts, priority));
        give_client(share.as_mut(), &self.busy, facts);
        share
    }
}

fn turn(busy: &BTreeMap<String, u16>, facts: &Facts, priority: Priority) -> Turn {
    Turn { priority, online: facts.online, busy: busy.get(&facts.task).copied() }
}

fn give_turn(share: Option<&mut Sharer>, turn: Turn) {
    if let Some(sharer) = share.filter(|sharer| sharer.share.is_kernel()) {
        sharer.turn = Some(turn);
    }
}

fn give_client(share: Option<&mut Sharer>, busy: &BTreeMap<String, u16>, facts: &Facts) {
    if let Some(sharer) = share {
        sharer.client = client(sharer.share, facts, busy.get(&facts.task).copied());
    }
}

#[cfg(test)]
mod tests {
    use tessera_model::lease::LeaseTerms;
    use tessera_model::share::{KernelShare, MpsShare, Part, SmPercent};
    use tessera_model::spec::GpuAsk;
    use tessera_model::{Bytes, ControllerId, JobId, Millis};
    use uuid::Uuid;

    use super::*;
    use crate::store::load::Picture;
    use crate::store::submit::FreshJob;

    fn waits(number: u64, share: Part) -> FreshJob {
        let facts = Facts { task: format!("task{number}"), online: true, ..Facts::default() };
        FreshJob {
            job: JobId::from_number(number),
            gang: None,
            gpu: GpuAsk::Memory(share.memory()),
            user: "ada".into(),
            share: Some(Sharer::new("ada", share)),
            priority: Priority::HIGHEST,
            attempts: 0,
            facts: Arc::new(facts),
            waited: Millis::ZERO,
            done: 0,
        }
    }

    #[test]
    fn who_shares_kernel_by_kernel_is_told_how_busy_its_task_is_as_soon_as_that_is_known() {
        let memory = Bytes::from_mib(1_024);
        let kernel = Part::Kernel(KernelShare { memory });
        let under_mps = Part::Mps(MpsShare { sm: SmPercent::DEFAULT, memory });
        let waiting = vec![waits(1, kernel), waits(2, kernel), waits(3, under_mps)];
        let picture = Picture { waiting, ..Picture::default() };
        let controller = ControllerId::from_uuid(Uuid::from_u128(9));
        let policy = tessera_placement::by_name("tessera").unwrap();
        let mut cluster =
            Cluster::new(5, controller, LeaseTerms::default(), policy, picture, Millis::ZERO);
        let told = |cluster: &Cluster| -> Vec<Option<(bool, Option<u16>)>> {
            let turn = |waiting: &super::super::Waiting| {
                let turn = waiting.asked.share.as_ref()?.turn?;
                Some((turn.online, turn.busy))
            };
            cluster.queue.values().map(turn).collect()
        };
        assert_eq!(told(&cluster), [Some((true, None)), Some((true, None)), None]);

        cluster.know_busy(vec![("task1".to_owned(), 312), ("task3".to_owned(), 700)]);

        assert_eq!(told(&cluster), [Some((true, Some(350))), Some((true, None)), None]);
    }
}
