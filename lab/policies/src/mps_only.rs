//! `mps-only`: GPUs are not partitioned; up to three jobs share each whole GPU under MPS.
//! `mps-uncapped`: the same, and each may use all of the SMs.
//!
//! Source: the MPS baseline of MISO's evaluation (three jobs a GPU, a third of its SMs each) and of
//! MMK's, whose jobs run "without SM constraints" (`mps-uncapped`). Jobs are served in the queue's
//! order; the head is placed on the GPU with the fewest jobs on which its memory fits. A choice of
//! ours: percentages are fixed (33 %), so that no job has to be stopped when another one starts or
//! ends. It mixes users, like in its papers: a baseline for the simulator and not for a live
//! cluster, where one user's fault would end the jobs of others.

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
    /// The percentage of the SMs that each job may use.
    part: u8,
}

impl MpsOnly {
    /// Each job has a third.
    pub const THIRDS: Self = Self { name: "mps-only", part: 33 };
    /// Each job has all.
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
