//! `easy` and `conservative`: backfill in the order of arrival, on slices that are as small as a job's memory allows.
//!
//! Source: Lifka, *The ANL/IBM SP scheduling system*, JSSPP 1995 (EASY), and Mu'alem and Feitelson, TPDS 2001, who
//! compare it with conservative backfill. Both are what Slurm's `sched/backfill` does between these two ends; limits
//! and defaults here are Slurm's.
//!
//! - Jobs start in the order of the queue until one finds no slice. That job gets a reservation: the slot that is
//!   expected to be free first, for its whole run.
//! - `easy` reserves for that job alone. `conservative` reserves for each of the first [`DEPTH`] waiting jobs, in
//!   order, around the reservations before it.
//! - A later job starts at once where no running job and no reservation overlaps with its expected run.
//! - Reservations are made again in each round. If jobs end when they are expected to, none begins later than before.
//!
//! Where it had to choose: a request is what a user of Slurm with MIG writes, the smallest slice with the memory.
//! Profiles of equal memory all fit. Of several slots that are free at the same time, the last one of the first GPU is
//! taken. Expected run times are predictions, or else time limits. A job without both is planned to run for a
//! year, like Slurm's jobs without a limit, so it fills no gap before a reservation. Sharing jobs get
//! separate slices. GPUs with MIG off are not used.

use tessera_model::Millis;

use tessera_placement::Policy;
use tessera_placement::decision::{Decision, Explanation, WaitReason};
use tessera_placement::policy::planned_gpu::because;
use tessera_placement::predictor::Knowledge;
use tessera_placement::request::{RequestNumbers, SliceRequest};
use tessera_placement::view::{ClusterView, QueuedJob};
use tessera_placement::working_state::WorkingState;

use crate::timeline::{ExpectedTimes, GpuTimeline, Occupied, StartOption};

/// Waiting jobs that a round considers, and at most as many reservations. Source: Slurm's default of
/// `bf_max_job_test`.
pub const DEPTH: usize = 100;

/// The policies `easy` and `conservative`.
#[derive(Clone, Copy, Debug)]
pub struct Backfill {
    name: &'static str,
    reservations: usize,
}

impl Backfill {
    /// The first waiting job has a reservation.
    pub const EASY: Self = Self { name: "easy", reservations: 1 };
    /// Each waiting job that is considered has one.
    pub const CONSERVATIVE: Self = Self { name: "conservative", reservations: DEPTH };
}

impl Policy for Backfill {
    fn name(&self) -> &'static str {
        self.name
    }

    fn needs_run_times(&self) -> bool {
        false
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let times = ExpectedTimes { knowledge, now };
        let state = WorkingState::new(cluster, knowledge.predictor);
        let gpus = state.gpus.into_iter();
        let mut timelines: Vec<GpuTimeline<'_>> =
            gpus.filter_map(|gpu| GpuTimeline::new(gpu, &times)).collect();
        let mut requests = RequestNumbers::new(cluster);
        let (mut starts, mut reserved) = (0, 0);
        let mut decisions = Vec::new();
        for job in queue.take(DEPTH.saturating_add(starts_max)) {
            if starts >= starts_max || decisions.len() - starts >= DEPTH {
                break;
            }
            let request = requests.size(job).request;
            let Some((option, duration)) = earliest(&timelines, &times, job, &request) else {
                let why = because(self.name, "no GPU has a slice with its memory");
                let reason = WaitReason::BadConstraints;
                decisions.push(Decision::Wait { job: job.id, reason, why });
                continue;
            };
            let until = option.start.plus(duration);
            let occupied = Occupied { slot: option.slot, from: option.start, until };
            let timeline = &mut timelines[option.gpu];
            let why = because(self.name, self.reason_to_start(reserved));
            let started = (option.start == now).then(|| timeline.start(job, occupied, why));
            match started.flatten() {
                Some(started) => {
                    starts += 1;
                    decisions.push(started);
                }
                None => {
                    let is_reserved = reserved < self.reservations;
                    if is_reserved {
                        timeline.reserve(occupied);
                        reserved += 1;
                    }
                    let why = self.wait(is_reserved, option.start.minus(now));
                    let reason = WaitReason::Resources;
                    decisions.push(Decision::Wait { job: job.id, reason, why });
                }
            }
        }
        decisions
    }
}

impl Backfill {
    const fn reason_to_start(&self, reserved: usize) -> &'static str {
        match reserved {
            0 => "it is the next job of the queue, and a slice is free",
            _ => "it delays no reservation of a job ahead of it",
        }
    }

    fn wait(&self, is_reserved: bool, wait: Millis) -> Explanation {
        let text = if is_reserved {
            format!("its reservation begins in {} s", wait.get().div_ceil(1_000))
        } else {
            "it would delay a reservation, or no slice is free".to_owned()
        };
        Explanation {
            would_start_if: Some("the jobs on the reserved slice end".to_owned()),
            ..because(self.name, text)
        }
    }
}

/// Returns where a job could start first, and how long it is expected to run there.
fn earliest(
    timelines: &[GpuTimeline<'_>],
    times: &ExpectedTimes<'_>,
    job: &QueuedJob,
    request: &SliceRequest,
) -> Option<(StartOption, Millis)> {
    let options = timelines.iter().enumerate().filter(|(_, timeline)| timeline.is_usable());
    let options = options.flat_map(|(gpu, timeline)| {
        let slots = timeline.tight_slots(request);
        slots.filter_map(move |(slot, profile)| {
            let duration = times.run(job.id, timeline.view(), profile);
            let option = timeline.option(gpu, (slot, profile), duration, times.now)?;
            Some((option, duration))
        })
    });
    options.min_by_key(|(option, _)| *option)
}
