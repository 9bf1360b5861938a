//! `time-slicing`: GPUs are not partitioned. Up to three jobs share each whole GPU by the driver's
//! default time slices, without priorities.
//!
//! Source: the baseline that the papers call default sharing: FIKIT (§4, "default GPU sharing
//! mode"), and time-slicing in the co-execution study (Villarrubia et al., arXiv 2604.22430, §4).
//! In that study, two jobs that share by time slices take slightly less than twice as long. The
//! baseline is a cluster that lets several jobs onto a GPU and does nothing more (time-slicing
//! replicas of a device plugin). Choices of ours: jobs are served in the queue's order, and the
//! head is placed on the GPU with the fewest jobs on which its memory fits. As many jobs share a
//! GPU as under `mps-only`, so that the two differ only in the way of sharing. All jobs have one
//! priority, for which the simulator's model of kernel-level sharing has the behaviour of time
//! slices (`kernel_sharing.rs`). It mixes users: a baseline for the simulator.

use tessera_model::Millis;
use tessera_model::spec::Priority;

use crate::whole_gpu::WholeGpuSharing;
use tessera_placement::Policy;
use tessera_placement::decision::{Decision, PlacedJob};
use tessera_placement::predictor::Knowledge;
use tessera_placement::view::{ClusterView, QueuedJob};

/// The policy `time-slicing`.
#[derive(Clone, Copy, Debug)]
pub struct TimeSlicing;

impl Policy for TimeSlicing {
    fn name(&self) -> &'static str {
        "time-slicing"
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
        let kernel_priority = Some(Priority::DEFAULT);
        let sharing = WholeGpuSharing {
            policy: self.name(),
            place: &|job, whole| PlacedJob { kernel_priority, ..PlacedJob::alone(job, whole) },
            full: "every GPU has three jobs, or too little memory left",
        };
        sharing.decide(cluster, queue, starts_max)
    }
}
