//! `mps-only`: nothing is cut; up to three jobs share each whole GPU under MPS. `mps-uncapped`: the
//! same, and each may use all of the SMs.
//!
//! Source: the MPS baseline of MISO's evaluation (three jobs a GPU, a third of its SMs each) and of
//! MMK's, whose jobs run "without SM constraints" (`mps-uncapped`). Jobs come in the queue's order; the head goes
//! to the GPU with the fewest jobs on which its memory fits next to theirs. Where they are silent:
//! parts are given as they are (33 %), so that nobody has to be stopped when a job comes or goes. It
//! mixes users, as its papers do: a baseline for the simulator, not for a live cluster, where one
//! user's fault would be everyone's.

use tessera_model::Millis;
use tessera_model::share::SmPercent;

use crate::whole_gpu::WholeGpuSharing;
use tessera_placement::Policy;
use tessera_placement::decision::{Decision, PlacedJob};
use tessera_placement::predictor::Knowledge;
use tessera_placement::view::{ClusterView, QueuedJob};

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

    fn needs_run_times(&self) -> bool {
        false
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        _knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        _now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let sm = SmPercent::try_from(self.part).ok();
        let sharing = WholeGpuSharing {
            policy: self.name,
            place: &|job, whole| PlacedJob { sm, ..PlacedJob::alone(job, whole) },
            full: "no GPU has a third of its SMs and the memory left",
        };
        sharing.decide(cluster, queue, starts_max)
    }
}
