//! Jobs whose memory is predicted to exceed their slices: they are reported and moved in time.
//!
//! The predictor is [`MemoryWatch`](tessera_predict::peak::MemoryWatch). A prediction is reported
//! as soon as its interval is reliable. With `--memory-prediction advise` nothing else is done.
//! With `act` the job is moved to the next size when the crossing is nearer than its checkpoint
//! takes. The next size is committed in the same transaction, so that no later leader moves the job
//! from the same size again.

use crate::attempt_changes::AttemptChanges;
use crate::migration::MOVE_SLACK;
use crate::out_of_memory::after_out_of_memory;
use crate::rows::growth::{GrowthRow, OpenGrowth};
use crate::state::attempts::{AttemptTable, LiveAttempt};
use crate::state::inventory::NodeInventory;
use crate::state::migrations::{MigrationRequest, Migrations};
use crate::state::predictions::Predictions;
use crate::state::watches::{MemoryWatches, MovedJob, WatchedAttempt};
use tessera_frames::cluster::{AttemptMemory, ExitRecord, StopCause};
use tessera_model::life::{JobState, Outcome, RetryVerdict};
use tessera_model::sizing::{GrowthOutcome, MemoryPrediction, OomPolicy};
use tessera_model::{AttemptId, Bytes, Millis, NodeId};
use tessera_predict::peak::{GrowthForecast, WatchAdvice, WatchTerms};

/// How old a sample may be when a decision uses it, and how long a command takes: shepherds read
/// companions every five seconds, and agents report every five by default.
const REPORT_DELAY: Millis = Millis::from_secs(10);

/// The least number of points with which a curve is stored.
const CURVE_POINTS_MIN: usize = 5;

impl AttemptChanges<'_> {
    /// Handles a node's report of the memory of its attempts.
    pub(crate) fn record_memory(&mut self, node: NodeId, reports: &[AttemptMemory], now: Millis) {
        for report in reports {
            self.watch_memory(node, report, now);
        }
    }

    fn watch_memory(&mut self, node: NodeId, report: &AttemptMemory, now: Millis) {
        let attempt = report.attempt;
        let Some(live) = self.attempts.live.get(&attempt) else { return };
        if live.node != node || live.state != JobState::Running {
            return;
        }
        let mode = self.watches.mode_of(live);
        // A size that is learned from the attempt's end depends on this, too.
        if mode == MemoryPrediction::Off && !report.memory.preallocated {
            return;
        }
        let terms = terms_of(self.predictions, live, now);
        let watched = self.watches.live.entry(attempt).or_default();
        watched.watch.take(&report.memory);
        if watched.watch.is_preallocated() {
            return;
        }
        let peak = watched.watch.curve().peak();
        let advice = watched.watch.advise(&terms);
        let is_new = !watched.reported;
        if let Some(row) = judge_moved(self.watches, live, attempt, Some(peak)) {
            self.jobs.growths.push(row);
        }
        let (WatchAdvice::Report(forecast) | WatchAdvice::Act(forecast)) = advice else { return };
        let next = match advice {
            WatchAdvice::Act(_) if mode == MemoryPrediction::Act => {
                let none = Bytes::ZERO;
                next_size_of(self.inventory, self.migrations, live, attempt, none, self.unix)
            }
            _ => None,
        };
        if is_new || next.is_some() {
            let mut row = GrowthRow::of(live.job, attempt, live.gpu_memory);
            (row.forecast, row.is_first) = (Some(forecast), is_new);
            row.at_least = next;
            row.event = Some(event_text(&forecast, next));
            self.jobs.growths.push(row);
        }
        if let Some(watched) = self.watches.live.get_mut(&attempt) {
            watched.reported = true;
            watched.moving |= next.is_some();
        }
        if let Some(next) = next {
            self.begin_growth(attempt, next, now);
        }
    }

    /// Requests a job to save its work and to end: it runs again with more memory.
    pub(crate) fn begin_growth(&mut self, attempt: AttemptId, next: Bytes, now: Millis) {
        let Some(live) = self.attempts.live.get_mut(&attempt) else { return };
        if let Some(launch_spec) = &mut live.launch_spec {
            launch_spec.own.at_least = Some(next);
        }
        live.sent = None;
        let request = growth_request(live, now);
        self.migrations.requests.insert(attempt, request);
    }

    /// Stops watching an ended attempt, and records the outcomes of predictions.
    pub(crate) fn end_watch(
        &mut self,
        attempt: AttemptId,
        live: &LiveAttempt,
        record: &ExitRecord,
        to: JobState,
    ) {
        let watched = self.watches.live.remove(&attempt);
        let mode = self.watches.mode_of(live);
        let peak = watched.as_ref().map(|watched| watched.watch.curve().peak()).max(live.peak);
        self.jobs.growths.extend(judge_end_of_moved(self.watches, live, attempt, record, peak));
        if to.is_final() {
            self.watches.moved.remove(&live.job);
        }
        let watched = watched.unwrap_or_default();
        let is_preallocated = watched.watch.is_preallocated();
        let is_off = mode == MemoryPrediction::Off;
        if live.launch_spec.is_none() || (is_off && !is_preallocated) {
            return;
        }
        let outcome = judge_end(&watched, mode, record).filter(|_| !is_off);
        if watched.moving && outcome.is_none() && !to.is_final() {
            let moved = MovedJob { attempt, capacity: live.gpu_memory };
            self.watches.moved.insert(live.job, moved);
        }
        let curve = watched.watch.curve();
        let is_kept = watched.reported || is_preallocated || curve.points.len() >= CURVE_POINTS_MIN;
        if outcome.is_some() || is_kept {
            let mut row = GrowthRow::of(live.job, attempt, live.gpu_memory);
            row.outcome = outcome;
            row.curve = is_kept.then(|| curve.clone());
            self.jobs.growths.push(row);
        }
    }
}

/// Continues predictions whose outcome was open when the state was read, and moves that an earlier
/// leader began.
pub(crate) fn resume_growths(
    attempts: &AttemptTable,
    migrations: &mut Migrations,
    watches: &mut MemoryWatches,
    open: &[OpenGrowth],
    now: Millis,
) {
    for growth in open {
        let OpenGrowth { job, attempt, capacity, moved } = *growth;
        match attempts.live.get(&attempt) {
            Some(live) => {
                let watched =
                    WatchedAttempt { reported: true, moving: moved, ..Default::default() };
                watches.live.insert(attempt, watched);
                if moved && live.state == JobState::Running {
                    migrations.requests.insert(attempt, growth_request(live, now));
                }
            }
            None if moved => {
                watches.moved.insert(job, MovedJob { attempt, capacity });
            }
            None => {}
        }
    }
}

fn growth_request(live: &LiveAttempt, now: Millis) -> MigrationRequest {
    let until = now.plus(live.facts.grace).plus(MOVE_SLACK);
    MigrationRequest { since: now, until, cause: StopCause::Grow }
}

pub(crate) fn terms_of(predictions: &Predictions, live: &LiveAttempt, now: Millis) -> WatchTerms {
    let spec = live.launch_spec.as_ref().map(|known| &known.spec);
    let has_signal = spec.is_some_and(|spec| spec.run.checkpoint_signal.is_some());
    WatchTerms {
        capacity: live.gpu_memory,
        checkpoint: has_signal.then(|| predictions.checkpoint_time(live)),
        delay: REPORT_DELAY,
        left: predictions.ends_in(live, now),
        restart: predictions.migration_cost(live),
    }
}

/// Returns the size that a job is moved to, with `needed` at least; `None` if it can't be moved, or if no slice is so much larger.
pub(crate) fn next_size_of(
    inventory: &NodeInventory,
    migrations: &Migrations,
    live: &LiveAttempt,
    attempt: AttemptId,
    needed: Bytes,
    unix: Millis,
) -> Option<Bytes> {
    let launch_spec = live.launch_spec.as_ref()?;
    let can_move = live.acknowledged
        && !live.requeue
        && live.share.is_none()
        && live.gang.is_none()
        && launch_spec.spec.oom_policy() == OomPolicy::Larger
        && !migrations.is_migrating(attempt)
        // Its size is decided already: the job did not end in time after an earlier request.
        && launch_spec.own.at_least.is_none_or(|at_least| at_least <= live.gpu_memory);
    if !can_move {
        return None;
    }
    let after = after_out_of_memory(inventory, launch_spec, (live.gpu_memory, needed), unix);
    after.at_least.filter(|_| after.verdict == RetryVerdict::RequeueOutOfMemory)
}

/// Compares the prediction about an attempt with the attempt's own end.
fn judge_end(
    watched: &WatchedAttempt,
    mode: MemoryPrediction,
    record: &ExitRecord,
) -> Option<GrowthOutcome> {
    let ran_out = record.out_of_gpu_memory().is_some();
    match (watched.reported, ran_out) {
        (false, true) => Some(GrowthOutcome::Missed),
        (true, true) if mode == MemoryPrediction::Act => Some(GrowthOutcome::Late),
        (true, true) => Some(GrowthOutcome::True),
        (true, false) if record.outcome == Outcome::Succeeded => Some(GrowthOutcome::False),
        (true | false, false) => None,
    }
}

/// Confirms the prediction by which a job was moved, once it has used more than it had before.
fn judge_moved(
    watches: &mut MemoryWatches,
    live: &LiveAttempt,
    attempt: AttemptId,
    peak: Option<Bytes>,
) -> Option<GrowthRow> {
    let moved = *watches.moved.get(&live.job).filter(|moved| moved.attempt != attempt)?;
    peak.filter(|peak| *peak > moved.capacity)?;
    watches.moved.remove(&live.job);
    Some(judged(live, moved, GrowthOutcome::True))
}

/// Compares it with the end of a later attempt: if that succeeds with less than the job had before,
/// the move was unnecessary.
fn judge_end_of_moved(
    watches: &mut MemoryWatches,
    live: &LiveAttempt,
    attempt: AttemptId,
    record: &ExitRecord,
    peak: Option<Bytes>,
) -> Option<GrowthRow> {
    let earlier = judge_moved(watches, live, attempt, peak);
    if earlier.is_some() {
        return earlier;
    }
    let moved = *watches.moved.get(&live.job).filter(|moved| moved.attempt != attempt)?;
    let outcome = if record.out_of_gpu_memory().is_some() {
        GrowthOutcome::True
    } else if record.outcome == Outcome::Succeeded && peak.is_some_and(|peak| peak > Bytes::ZERO) {
        GrowthOutcome::False
    } else {
        return None;
    };
    watches.moved.remove(&live.job);
    Some(judged(live, moved, outcome))
}

fn judged(live: &LiveAttempt, moved: MovedJob, outcome: GrowthOutcome) -> GrowthRow {
    let mut row = GrowthRow::of(live.job, moved.attempt, moved.capacity);
    row.outcome = Some(outcome);
    row
}

/// Returns the text for users about a prediction and its consequence.
fn event_text(forecast: &GrowthForecast, next: Option<Bytes>) -> String {
    let GrowthForecast { unit, position, used, capacity, crossing, after, .. } = *forecast;
    let seconds = after.get().div_ceil(1_000);
    let unit = unit.word();
    let what = format!(
        "its GPU memory grows ({used} after {position} {unit}), and is predicted to exceed its \
         {capacity} in about {seconds} s, after {crossing} {unit}"
    );
    match next {
        Some(next) => format!("{what}: it is moved to a slice with at least {next}"),
        None => what,
    }
}
