//! `mps-only`: nothing is cut; up to three jobs share each whole GPU under MPS. `mps-uncapped`: the
//! same, and each may use all of the SMs.
//!
//! Source: the MPS baseline of MISO's evaluation (three jobs a GPU, a third of its SMs each) and of
//! MMK's, whose jobs run "without SM constraints" (`mps-uncapped`). Jobs come in turn; the head goes to the GPU with the fewest jobs on which its memory
//! fits beside theirs. Where they are silent: parts are given as they are (33 %), so that nobody
//! has to be stopped when a job comes or goes. It mixes users, as its papers do: a baseline for
//! the simulator, not for a live cluster, where one user's fault would be everyone's.

use tessera_model::share::SmPercent;
use tessera_model::spec::GpuAsk;
use tessera_model::{Bytes, Millis};

use super::Policy;
use super::cards::{Card, because};
use crate::decision::{Decision, Reshape, Seat, WaitReason};
use crate::forecast::Forecast;
use crate::view::{ClusterView, InstanceState, QueuedJob};

/// Jobs that share one GPU. Source: MISO's program.
pub const SHARERS: usize = 3;

/// The policies `mps-only` and `mps-uncapped`.
#[derive(Clone, Copy, Debug)]
pub struct MpsOnly {
    name: &'static str,
    /// What each may use of the SMs, in percent.
    part: u8,
}

impl MpsOnly {
    /// Everybody has a third.
    pub const THIRDS: Self = Self { name: "mps-only", part: 33 };
    /// Everybody has all.
    pub const UNCAPPED: Self = Self { name: "mps-uncapped", part: 100 };
}

impl Policy for MpsOnly {
    fn name(&self) -> &'static str {
        self.name
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        _forecast: &dyn Forecast,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        _now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let mut cards = Card::all(cluster);
        let mut left: Vec<Bytes> = cards.iter().map(free_memory).collect();
        let mut changed = std::collections::BTreeSet::new();
        let mut decisions = Vec::new();
        let mut starts = 0;
        while starts < starts_max {
            let Some(job) = queue.next() else { break };
            let needs = match &job.gpu {
                GpuAsk::Memory(bytes) => *bytes,
                GpuAsk::Unknown | GpuAsk::Profile(_) | GpuAsk::Whole | GpuAsk::Compute(_) => {
                    Bytes::ZERO
                }
            };
            let room = (0..cards.len())
                .filter(|at| cards[*at].open && cards[*at].seats.len() < SHARERS)
                .filter(|at| left[*at] >= needs)
                .min_by_key(|at| (cards[*at].seats.len(), *at));
            let seat = room.and_then(|at| Some((at, cards[at].whole()?)));
            let Some((at, whole)) = seat else {
                let why = because(self.name, "no GPU has a third of its SMs and the memory left");
                decisions.push(Decision::Wait { job: job.id, reason: WaitReason::Resources, why });
                break;
            };
            let sm = SmPercent::try_from(self.part).ok();
            cards[at].seats.push(Seat { sm, ..Seat::alone(job.id, whole) });
            left[at] = Bytes::new(left[at].get() - needs.get());
            changed.insert(at);
            starts += 1;
        }
        let starts = changed.into_iter().filter_map(|at| {
            let card = &mut cards[at];
            let (layout, seats) = ([card.whole()?].into(), card.seats.clone());
            let reshape: Reshape = card.take(layout, seats);
            let why = because(self.name, "it shares the GPU with the fewest jobs");
            Some(Decision::Reshape { reshape, why })
        });
        starts.chain(decisions).collect()
    }
}

fn free_memory(card: &Card<'_>) -> Bytes {
    let whole = card.mig.largest().map_or(Bytes::ZERO, |p| p.memory);
    let taken = card.view.instances.iter().map(|instance| match &instance.state {
        InstanceState::Shared(tenancy) => tenancy.memory().get(),
        InstanceState::Idle => 0,
        InstanceState::Taken { .. }
        | InstanceState::Cut(_)
        | InstanceState::Foreign
        | InstanceState::Stuck
        | InstanceState::Leaving
        | InstanceState::Quarantined => instance.memory.get(),
    });
    Bytes::new(whole.get().saturating_sub(taken.sum()))
}
