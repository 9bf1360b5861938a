//! Learning the times of kernels: from samples and, if these are missing, from observed ends.
//!
//! A waiting launch gets the new time at once. Otherwise a program whose kernels all have new
//! shapes would wait forever: each launch would wait for a time that follows only from the sample
//! of the launch before.

use super::KernelQueue;
use super::launches::{EndReport, RunningKernel};
use crate::action::QueueAction;
use crate::ids::KernelIndex;
use crate::measure::{KernelSample, SampleOutcome, SampleSurroundings};
use crate::time::Nanos;

/// A kernel whose end is observed later than this after its launch was possibly delayed by other
/// work. Its time is then not learned: a kernel that counts as long is launched more rarely than an
/// unknown one.
const BOUND_MAX: Nanos = Nanos::from_millis(5);

impl KernelQueue {
    /// Handles a measurement of a kernel.
    pub(super) fn on_sample(&mut self, at: usize, sample: KernelSample) {
        let session = &mut self.sessions[at];
        let id = session.id;
        for counters in [&mut self.counters, &mut session.counters] {
            counters.samples += 1;
        }
        session.sampled = Some((sample.kernel, sample.took));
        let profile = &mut self.tasks[session.task].profile;
        let is_holder = session.role.is_holder();
        let is_disturbed = if is_holder {
            // A filler's kernel in a gap may have delayed the next kernel, and is no part of the gap.
            session.filled_until >= self.now
        } else {
            let is_it = |run: &RunningKernel| {
                run.session == id && run.kernel == sample.kernel && run.end != EndReport::Lost
            };
            self.running.iter().any(|run| is_it(run) && run.holder_returned_at.is_some())
        };
        let around = SampleSurroundings { is_holder, is_disturbed };
        match session.recorder.add_sample(profile, sample, around) {
            SampleOutcome::Noted => {}
            SampleOutcome::Drifted(kernel) => {
                session.counters.drifts += 1;
                self.counters.drifts += 1;
                self.actions.push(QueueAction::Remeasure { session: id, kernel });
                self.assign_roles();
            }
        }
        self.predict_waiting(at, sample.kernel);
    }

    /// Counts a launch of a holder that is measured. The stage ends by launches and time, because samples may be few.
    pub(super) fn count_measured_launch(&mut self, at: usize, kernel: KernelIndex) {
        let (task, now) = (self.sessions[at].task, self.now);
        for counters in [&mut self.counters, &mut self.sessions[at].counters] {
            counters.measuring_launches += 1;
        }
        if self.tasks[task].profile.count_launch(kernel, now) {
            self.actions.push(QueueAction::Measured { session: self.sessions[at].id });
            self.assign_roles();
        }
    }

    /// Returns the run time of the kernel that a session launched last, if its sample arrived
    /// before its end was observed.
    pub(super) fn take_sampled(&mut self, at: usize, kernel: KernelIndex) -> Option<Nanos> {
        let sampled = self.sessions[at].sampled.take();
        sampled.filter(|(of, _)| *of == kernel).map(|(_, took)| took)
    }

    /// Learns from the observed end of a filler's kernel: it took at most the time since its launch
    /// and since the end of the session's kernel before it.
    pub(super) fn note_seen_end(&mut self, at: usize, run: &RunningKernel) {
        let session = &mut self.sessions[at];
        let before = std::mem::replace(&mut session.ended_at, self.now);
        let bound = self.now.minus(run.begun.max(before));
        let profile = &mut self.tasks[session.task].profile;
        if run.is_filler && bound <= BOUND_MAX && profile.note_bound(run.kernel, bound) {
            self.predict_waiting(at, run.kernel);
        }
    }

    /// Predicts waiting launches of a task again after the time of a kernel was learned: launches
    /// of this kernel, and of its relatives that have few samples.
    fn predict_waiting(&mut self, at: usize, learned: KernelIndex) {
        let task = self.sessions[at].task;
        let Self { waiting, sessions, tasks, actions, .. } = self;
        let profile = &tasks[task].profile;
        let Some(function) = profile.kernel(learned).map(|kernel| kernel.function()) else {
            return;
        };
        waiting.predict_again(|request| {
            let kernel = profile.kernel(request.kernel)?;
            let is_concerned = kernel.function() == function
                && (request.kernel == learned || kernel.took.known().is_none());
            let of_task =
                |id| sessions.iter().any(|session| session.id == id && session.task == task);
            if !is_concerned || !of_task(request.session) {
                return None;
            }
            let high = profile.estimate(request.kernel)?.high;
            (request.predicted != Some(high)).then(|| {
                let (session, kernel) = (request.session, request.kernel);
                actions.push(QueueAction::Predicted { session, kernel });
                high
            })
        });
    }
}
