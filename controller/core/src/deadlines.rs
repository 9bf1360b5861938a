//! Predicts whether a job meets its deadline.
//!
//! The probability is that of the sum of the time until the job starts and its run time. Both are
//! distributions ([`Prediction`]), and are assumed to be independent. The start depends on the last
//! end that has to come first. The run time depends on the slice on which the job is expected to
//! start.

use tessera_model::spec::{Class, JobSpec};
use tessera_model::{GangMember, JobId, Millis};
use tessera_placement::{Basis, Prediction, QueuedJob};

use crate::answers::DeadlineForecast;
use crate::arrivals::enqueue;
use crate::counterfactual::{StartForecast, StartQuestion};
use crate::duration::duration_text;
use crate::queue_rules::place_of;
use crate::rows::submitted::SubmittedJob;
use crate::state::ClusterState;
use crate::state::queue::{QueuePosition, WaitingJob};

/// Into how many equally probable parts the time until the start is divided. Chosen: the probability is stated
/// in percent, and predictions have three points.
const PARTS: u64 = 20;

const MILLION: u64 = 1_000_000;

/// The number of a job that is not accepted yet: it is after all accepted jobs.
const NEW_JOB: u64 = 1 << 62;

/// A question about the deadline of a job that was not accepted yet: a copy of what the answer needs.
#[derive(Debug)]
pub struct DeadlineQuery {
    line: QueuePosition,
    cluster: ClusterState,
}

impl DeadlineQuery {
    /// Returns whether the deadline is expected to be met. `now` is the time of the rounds.
    pub fn answer(&self, now: Millis) -> Option<DeadlineForecast> {
        let waiting = self.cluster.queue.queued(self.line.job)?;
        let start = StartQuestion::new(&self.cluster, &self.line, &waiting.job, now).find_start();
        self.cluster.forecast_deadline(waiting, &start, now)
    }
}

impl ClusterState {
    /// Copies the state that is needed to predict the deadline of a job as if it were submitted
    /// now. For an array, that is the first task.
    pub fn deadline_query(&self, spec: &JobSpec, now: Millis) -> DeadlineQuery {
        let first = JobId::from_number(NEW_JOB);
        let members = spec.gang.map_or(1, |shape| shape.members());
        let new: Vec<SubmittedJob> = (0..u64::from(members))
            .map(|rank| {
                let job = JobId::from_number(NEW_JOB + rank);
                let gang = spec.gang.and_then(|shape| GangMember::of(job, first, shape));
                SubmittedJob::new(job, spec, gang, 0)
            })
            .collect();
        let own = QueuedJob {
            id: first,
            gpu: spec.gpu.clone(),
            user: spec.user.as_str().into(),
            share: None,
            // The prediction does not cover co-location.
            auto: None,
            online: spec.class == Class::Online,
            queue_rank: spec.queue_rank,
            submitted: now,
            gang: new.first().and_then(|job| job.gang),
            place: place_of(spec),
        };
        let line = self.position_of(&own);
        let mut cluster = self.excerpt(self.queue_excerpt(&line));
        for job in new {
            let ClusterState { queue, attempts, predictions, inventory, .. } = &mut cluster;
            enqueue(queue, attempts, predictions, inventory, job, now);
        }
        DeadlineQuery { line, cluster }
    }

    /// Returns whether a waiting job is expected to meet its deadline; `None` if it has none.
    pub(crate) fn forecast_deadline(
        &self,
        waiting: &WaitingJob,
        start: &StartForecast,
        now: Millis,
    ) -> Option<DeadlineForecast> {
        let deadline_unix = waiting.facts.deadline?;
        let left = self.clock.on_boot_clock(deadline_unix).minus(now);
        let unknown = |text: String| DeadlineForecast {
            deadline_unix,
            probability: None,
            ends_in: None,
            text,
        };
        if left == Millis::ZERO {
            let over = "the deadline has passed".to_owned();
            return Some(DeadlineForecast { probability: Some(0), ..unknown(over) });
        }
        if waiting.job.share.is_some() {
            let shared =
                "it may share a slice, and how long it runs there depends on its co-runners";
            return Some(unknown(shared.to_owned()));
        }
        let (place, after, wait) = match start {
            StartForecast::Unknown { text } => {
                return Some(unknown(format!("when it starts can't be predicted: {text}")));
            }
            StartForecast::Now { place } => (place, Millis::ZERO, None),
            StartForecast::After { last, after, place, .. } => {
                (place, *after, self.rest_of(*last, now))
            }
        };
        let on = self.inventory.slice_kind(&place.gpu, place.slot)?;
        let run = self.predictions.predict_rest(waiting.job.id, &waiting.facts, waiting.done, &on);
        let Some(run) = run else {
            return Some(unknown(
                "nothing is known about its run time: no job of its task has ended yet, and it has \
                 no time limit"
                    .to_owned(),
            ));
        };
        let starts = match after {
            Millis::ZERO => "it is expected to start at once".to_owned(),
            after => format!("it is expected to start in {}", duration_text(after)),
        };
        let runs = match run.basis {
            Basis::TimeLimit => format!("to run for {} at most", duration_text(run.expected)),
            _ => format!("to run for {}", duration_text(run.expected)),
        };
        Some(DeadlineForecast {
            deadline_unix,
            probability: probability(wait.as_ref(), &run, left),
            ends_in: Some(after.plus(run.expected)),
            text: format!("{starts} and {runs}, by {}", run.basis.words()),
        })
    }

    /// Predicts the remaining time of a running job.
    fn rest_of(&self, job: JobId, now: Millis) -> Option<Prediction> {
        let live = self.attempts.live.get(self.attempts.by_job.get(&job)?)?;
        let (whole, lasted) = self.predictions.course(live, live.ran(now))?;
        Some(whole.after(lasted))
    }
}

/// Returns the probability that a wait and the following run take no longer than `left`, in
/// millionths. `None` if only a time limit of the run is known, and it may be reached before or
/// after `left`.
fn probability(wait: Option<&Prediction>, run: &Prediction, left: Millis) -> Option<u64> {
    let over_after = |wait: Millis| match left.get().checked_sub(wait.get()) {
        Some(left) => run.over_by(Millis::new(left)),
        None => 0,
    };
    let Some(wait) = wait else {
        let probability = over_after(Millis::ZERO);
        return (run.basis != Basis::TimeLimit || probability > 0).then_some(probability);
    };
    // The time in the middle of each part.
    let part = |part: u64| over_after(wait.over_at((2 * part + 1) * MILLION / (2 * PARTS)));
    let probability = (0..PARTS).map(part).sum::<u64>() / PARTS;
    (run.basis != Basis::TimeLimit || probability > 0).then_some(probability)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prediction() -> impl Strategy<Value = Prediction> {
        (1_u64..1_000_000, 0_u64..1_000_000, 0_u64..1_000_000, any::<bool>()).prop_map(
            |(low, more, most, learned)| {
                let [low, expected, high] = [low, low + more, low + more + most].map(Millis::new);
                match learned {
                    true => Prediction { low, expected, high, basis: Basis::SameSlice, runs: 9 },
                    false => Prediction::by_limit(high),
                }
            },
        )
    }

    proptest! {
        #[test]
        fn a_later_deadline_or_a_sooner_start_never_has_a_smaller_probability(
            wait in prediction(),
            run in prediction(),
            left in 0_u64..4_000_000,
            more in 0_u64..1_000_000,
        ) {
            let within = |left: u64| probability(Some(&wait), &run, Millis::new(left)).unwrap_or(0);
            prop_assert!(within(left) <= within(left + more));
            prop_assert!(within(left) <= probability(None, &run, Millis::new(left)).unwrap_or(0));
            prop_assert!(within(left) <= MILLION);
        }
    }

    #[test]
    fn the_probability_is_that_of_random_samples_of_both_times() {
        let of = |low, expected, high| {
            let [low, expected, high] = [low, expected, high].map(Millis::from_secs);
            Prediction { low, expected, high, basis: Basis::SameSlice, runs: 9 }
        };
        let (wait, run) = (of(60, 100, 150), of(200, 300, 500));
        let at = |part: u64| (2 * part + 1) * MILLION / 2_000;
        for left in [250, 400, 500, 700].map(Millis::from_secs) {
            let sum = |a: u64, b: u64| wait.over_at(at(a)).plus(run.over_at(at(b)));
            let drawn = (0..1_000_u64).flat_map(|a| (0..1_000_u64).map(move |b| (a, b)));
            let met = drawn.filter(|(a, b)| sum(*a, *b) <= left).count();

            let probability = probability(Some(&wait), &run, left).unwrap();

            let off = probability.abs_diff(u64::try_from(met).unwrap());
            assert!(off <= 10_000, "within a percent: {probability} and {met}");
        }
    }
}
