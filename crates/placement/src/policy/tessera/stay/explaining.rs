//! Explanations of sizes, waits and reservations.

use std::fmt::Write;

use super::super::rounding::float;
use super::reservations::Reservation;
use super::sizes::{self, GpuKind, SizeOption, SizedJob};
use super::{NAME, PlaceNow, StayRound};
use crate::decision::{Decision, Explanation, WaitReason};
use crate::explain;
use crate::explain::phrases::PlaceText;
use crate::offer::Rule;
use crate::request::NumberedRequest;
use crate::view::QueuedJob;

impl<'c> StayRound<'c> {
    /// Explains a wait to the first job with a request.
    pub(super) fn wait(&mut self, job: &QueuedJob, size: &NumberedRequest) {
        let (mut reason, mut why) = explain::wait(&mut self.rule, &self.state, job, size);
        NAME.clone_into(&mut why.policy);
        // What another job keeps from it counts, also if it has a reservation itself.
        if let Some(kept) = self.withheld(job, size) {
            reason = WaitReason::Priority;
            let place = PlaceText { gpu: self.state.gpus[kept.gpu].view, slot: kept.slot };
            why.summary = format!(
                "{}: {place} is reserved for job {}, which is ahead in the order of service",
                explain::phrases::RequestText(job),
                kept.job
            );
            why.would_start_if =
                Some(format!("job {} starts elsewhere, or another slice is free", kept.job));
        }
        let own = self.reservations.iter().find(|kept| kept.job == job.id).copied();
        if let Some(kept) = own {
            let text = self.describe_reservation(&kept);
            let _ = write!(why.summary, "; {text}");
        }
        self.decisions.push(Decision::Wait { job: job.id, reason, why });
    }

    /// Explains a wait to a job behind one with the same request.
    pub(super) fn wait_behind(&mut self, job: &QueuedJob, size: &NumberedRequest) {
        if !self.waiting.contains_key(&size.number) {
            return;
        }
        let why = explain::behind_same(NAME, job);
        self.decisions.push(Decision::Wait { job: job.id, reason: WaitReason::Priority, why });
    }

    /// Returns another job's reservation that alone keeps a job from a free place.
    fn withheld(&mut self, job: &QueuedJob, size: &NumberedRequest) -> Option<Reservation> {
        let reserved = self.reservations.clone();
        reserved.into_iter().filter(|kept| kept.job != job.id).find(|kept| {
            let gpu = &self.state.gpus[kept.gpu];
            gpu.view.available && self.rule.offer(gpu, size).is_some()
        })
    }

    /// Explains why a job leaves a free slice to others.
    pub(super) fn wait_for_better(
        &mut self,
        job: &QueuedJob,
        sized: &SizedJob<'c>,
        place: &PlaceNow<'c>,
        kept: Reservation,
    ) {
        self.first_waiting.get_or_insert(job.id);
        let free = PlaceText { gpu: self.state.gpus[place.gpu].view, slot: place.offer.slot };
        let least = sized.least_ms;
        let summary = format!(
            "{}: on the free {free} it would take {}, and {} at its fastest; {}",
            explain::phrases::RequestText(job),
            duration(place.option.ms),
            duration(least),
            self.describe_reservation(&kept)
        );
        let why = Explanation {
            policy: NAME.to_owned(),
            summary,
            would_start_if: Some("the reserved slice is free".to_owned()),
            ..Explanation::default()
        };
        self.decisions.push(Decision::Wait { job: job.id, reason: WaitReason::Resources, why });
    }

    pub(super) fn describe_reservation(&self, kept: &Reservation) -> String {
        let gpu = self.state.gpus[kept.gpu].view;
        let place = PlaceText { gpu, slot: kept.slot };
        if kept.open_until > float(self.now) {
            let wait = duration(kept.begins - float(self.now));
            format!("{place} is reserved for it, and is expected to be free in {wait}")
        } else if gpu.changing && kept.begins <= float(self.now) {
            format!("{place} is reserved for it, and is created once the layout has been changed")
        } else {
            format!("{place} is reserved for it; when the jobs there end is not known")
        }
    }
}

/// Sets the policy's name in an explanation that the rules of `scheme-b` made.
pub(super) fn renamed(mut decision: Decision) -> Decision {
    match &mut decision {
        Decision::Start { why, .. }
        | Decision::Wait { why, .. }
        | Decision::Reshape { why, .. }
        | Decision::Preempt { why, .. } => {
            NAME.clone_into(&mut why.policy);
        }
    }
    decision
}

/// Adds why a job gets this size. `others` is how many jobs wait, and whether more are expected.
pub(super) fn describe_size(
    summary: &mut String,
    kinds: &[GpuKind<'_>],
    sized: &SizedJob<'_>,
    option: &SizeOption<'_>,
    others: (usize, bool),
) {
    if sized.is_due {
        let takes = duration(option.ms);
        let _ = write!(
            summary,
            "; whole GPUs in the order of deadlines meet them all, and some jobs have little slack, so it gets a whole GPU; \
             it is expected to take {takes}"
        );
        return;
    }
    if let Some(watts) = sized.watts {
        let _ = write!(summary, "; the power cap leaves {watts} W, too little for larger slices");
    }
    if sized.options.len() < 2 {
        return;
    }
    let name = option.profile.map_or("a whole GPU", |profile| profile.name.as_str());
    let model = &kinds[option.kind].view.model;
    if !sized.known {
        if let Some(multiprocessors) = sized.multiprocessors {
            let _ = write!(
                summary,
                "; its first kernel needs {multiprocessors} multiprocessors to take as few steps as on a whole GPU, \
                 so smaller slices come last"
            );
        }
        summary.push_str(match sized.is_vague {
            true => "; its earlier runs differ too much to plan with their times",
            false => "; how long it takes is not known",
        });
        let _ = match sized.prefers {
            Some(part) => write!(
                summary,
                ", and there are few jobs, so it gets at least {:.0} % of a GPU if that is free",
                100.0 * part
            ),
            None => write!(summary, ", so the size leaves space for others"),
        };
        return;
    }
    let why = match others {
        (0, false) => "no other job waits".to_owned(),
        (0, true) => "no other job waits, but more are expected".to_owned(),
        (1, _) => "1 other job waits".to_owned(),
        (others, _) => format!("{others} other jobs wait"),
    };
    let takes = duration(option.ms);
    let _ = write!(
        summary,
        "; {why}, and of the free sizes {name} of {model} costs least; it is expected to take {takes}"
    );
}

/// Writes a duration for people.
pub(super) fn duration(ms: f64) -> String {
    let seconds = sizes::millis(ms).get().div_ceil(1_000);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h", seconds.div_ceil(3_600)),
    }
}
