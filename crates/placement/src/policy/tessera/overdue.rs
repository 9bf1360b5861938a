//! Jobs that have waited too long: a GPU is kept free for the oldest of them.
//!
//! **The bound.** A job that has waited [`super::Tessera::patience`] is overdue. For the oldest
//! overdue job a GPU is kept on which nothing starts and to which nothing moves. Of those that
//! could hold it, this is the one whose last arrival is longest ago. Let `L` be the longest that
//! any job sits in one place. Suppose that the job becomes the oldest overdue one at `t`, when the
//! last arrival on its GPU was at `a ≤ t`. Nothing arrives there any more, so that its last arrival
//! can only become older; and the choice goes to another GPU only if that one's last arrival is
//! older still. So at any time everybody on the chosen GPU has come at `a` or before, and is gone
//! by `a + L`. From `t + L` on the chosen GPU is empty, and the job starts there. With `k` jobs
//! that are overdue before it, each of which takes at most `L`, **no job waits longer than
//! `patience + (k + 1) L`**. That holds whatever comes after it and however wrong predictions are:
//! none is used. Cuts are part of `L`. GPUs that go away, that operators close or on which
//! strangers sit are none to be kept. The bound holds as long as one that can hold the job stays.
//! It is a bound for accounts without a quota: who has one may wait for its own jobs.
//!
//! Larger clusters keep a GPU for each of the next oldest as well, one in [`GPUS_PER_PLACE`].

use tessera_model::{JobId, Millis};

use super::Tessera;
use super::search::Search;
use super::waiting::WaitingJobs;
use crate::decision::{Decision, WaitReason};
use crate::policy::planned_gpu::because;
use crate::view::QueuedJob;

/// GPUs of the cluster for each that may be kept free at once. Chosen, three in a hundred: more would stand
/// idle for the sake of order, fewer would serve large clusters' overdue jobs one at a time.
const GPUS_PER_PLACE: usize = 32;

/// Serves the oldest overdue jobs, or keeps GPUs for them. Returns the started jobs
/// and the decisions about the others.
pub(super) fn serve(
    search: &mut Search<'_, '_>,
    waiting: &WaitingJobs,
    settings: &Tessera,
    now: Millis,
    starts_max: usize,
) -> (Vec<JobId>, Vec<Decision>) {
    let (mut started, mut waits) = (Vec::new(), Vec::new());
    let places = 1 + search.gpus() / GPUS_PER_PLACE;
    let mut kept = Vec::new();
    for job in waiting.oldest().take(places) {
        if now.minus(job.submitted) < settings.patience || started.len() >= starts_max {
            break;
        }
        // An account that may take nothing more would keep the GPU idle.
        if search.quota_left(job.id) == Some(0) {
            continue;
        }
        let Some(gpu) = search.calmest(job.id, &kept) else { continue };
        if search.place_job(job, Some(gpu)) {
            started.push(job.id);
            continue;
        }
        kept.push(gpu);
        search.keep(gpu);
        waits.push(wait(search, job, gpu, now));
    }
    (started, waits)
}

fn wait(search: &Search<'_, '_>, job: &QueuedJob, gpu: usize, now: Millis) -> Decision {
    let jobs: Vec<String> = search.jobs(gpu).iter().map(|job| job.to_string()).collect();
    let view = search.view(gpu);
    let text = format!(
        "it has waited {} s, so GPU {} of node {} is reserved for it and nothing else starts there",
        now.minus(job.submitted).get() / 1_000,
        view.index,
        view.node
    );
    let mut why = because(super::NAME, text);
    why.would_start_if = Some(match jobs.as_slice() {
        [] => "the GPU has been partitioned".to_owned(),
        [job] => format!("job {job} ends"),
        [first @ .., last] => format!("jobs {} and {last} end", first.join(", ")),
    });
    Decision::Wait { job: job.id, reason: WaitReason::Resources, why }
}
