//! Turns the records of shims into events of the queue.

use tessera_frames::kernel::{ShimRecord, ToShim};
use tessera_kernel_queue::{KernelId, KernelIndex, Nanos, QueueEvent, SessionId};

use super::reported::KernelFacts;
use super::{SliceEffect, SliceQueue};
use crate::kernel::AttemptTally;

impl SliceQueue {
    /// Handles a session's records in their order. `now` is the upper bound of their times.
    ///
    /// Returns whether the session continues.
    pub fn add_records(
        &mut self,
        session: SessionId,
        records: Vec<ShimRecord>,
        now: Nanos,
    ) -> bool {
        for record in records {
            if !self.sessions.contains_key(&session) || !self.handle_record(session, record, now) {
                break;
            }
        }
        // Once, after all of them: what an earlier record would allow may be over by a later one.
        self.decide();
        self.sessions.contains_key(&session)
    }

    fn handle_record(&mut self, session: SessionId, record: ShimRecord, now: Nanos) -> bool {
        match record {
            ShimRecord::Define { number, kernel } => {
                self.define_kernel(session, number, &kernel, now);
            }
            ShimRecord::Launch { launch, kernel, count, at } => {
                // A launch that was counted on the gate page was a holder's when it was made: the
                // session's new role was still on the way.
                let is_filler = self.queue.role(session).is_some_and(|role| !role.is_holder());
                if is_filler && count == 0 {
                    self.update_tally(session, |tally| {
                        tally.ungranted = tally.ungranted.saturating_add(1);
                    });
                }
                let event = QueueEvent::Launch { session, launch, kernel, count };
                self.step_at(session, event, at, now, Some(launch));
            }
            ShimRecord::Request { launch, kernel, beyond, at } => {
                // Facts learned since the definition are sent before the grant that is based on
                // them.
                self.report_facts(session, kernel);
                let event = QueueEvent::Request { session, launch, kernel, beyond };
                self.step_at(session, event, at, now, Some(launch));
            }
            ShimRecord::Started { launch, kernel, grant, at } => {
                let event = QueueEvent::Started { session, launch, kernel, grant };
                self.step_at(session, event, at, now, None);
            }
            ShimRecord::Done { at } => {
                self.step_at(session, QueueEvent::Done { session }, at, now, None);
            }
            ShimRecord::Sync { returns, at } => {
                self.step_at(session, QueueEvent::Sync { session, returns }, at, now, None);
            }
            ShimRecord::Recalled { at } => {
                self.step_at(session, QueueEvent::Recalled { session }, at, now, None);
            }
            ShimRecord::Sample(sample) => {
                let kernel = sample.kernel;
                self.note(QueueEvent::Sample { session, sample }, (now, now), None);
                self.report_to_task(session, kernel);
            }
            // The driver refused the launch, so it does not run. Its budget is spent.
            ShimRecord::Failed { .. } => self.note(QueueEvent::Done { session }, (now, now), None),
            ShimRecord::Lost { records } => {
                self.update_tally(session, |tally| tally.lost = tally.lost.saturating_add(records));
                self.note(QueueEvent::Alive { session }, (now, now), None);
            }
            ShimRecord::Passed { launches } => {
                self.update_tally(session, |tally| {
                    tally.passed = tally.passed.saturating_add(launches);
                });
                self.note(QueueEvent::Alive { session }, (now, now), None);
            }
            ShimRecord::Memory { peak, .. } => {
                self.update_tally(session, |tally| tally.memory_peak = tally.memory_peak.max(peak));
                self.note(QueueEvent::Alive { session }, (now, now), None);
            }
            ShimRecord::Need { kernel, need } => {
                self.note(QueueEvent::Need { session, kernel, need }, (now, now), None);
            }
            ShimRecord::Streams { streams } => {
                self.note(QueueEvent::Streams { session, streams }, (now, now), None);
            }
            ShimRecord::Alive => self.note(QueueEvent::Alive { session }, (now, now), None),
            ShimRecord::Bye => {
                self.remove_session(session, now);
                return false;
            }
        }
        true
    }

    fn define_kernel(&mut self, session: SessionId, number: u32, kernel: &KernelId, now: Nanos) {
        let Some(session_state) = self.sessions.get(&session) else { return };
        let task = session_state.task.clone();
        let defined = QueueEvent::Define { session, kernel: Box::new(kernel.clone()) };
        self.note(defined, (now, now), None);
        let Some(profile) = self.queue.profile(&task) else { return };
        let (kernel, facts) = match profile.resolve(kernel) {
            Some(index) => (index, KernelFacts::of(profile, index)),
            // The task's profile is full, which the queue has reported.
            None => (KernelIndex::UNKNOWN, KernelFacts { sk: None, measure: false }),
        };
        if let Some(session_state) = self.sessions.get_mut(&session)
            && kernel != KernelIndex::UNKNOWN
        {
            session_state.reported.define(kernel, facts);
        }
        let KernelFacts { sk, measure } = facts;
        self.out.push(SliceEffect::Send(session, ToShim::Defined { number, kernel, sk, measure }));
    }

    /// Handles an event at the reported time. The time is limited to between the session's last
    /// reported time and now.
    fn step_at(
        &mut self,
        session: SessionId,
        event: QueueEvent,
        at: Nanos,
        now: Nanos,
        launch: Option<u64>,
    ) {
        let Some(session_state) = self.sessions.get_mut(&session) else { return };
        let at = at.max(session_state.last_reported_at).min(now);
        session_state.last_reported_at = at;
        self.note(event, (at, now), launch);
    }

    fn update_tally(&mut self, session: SessionId, change: impl FnOnce(&mut AttemptTally)) {
        if let Some(session_state) = self.sessions.get_mut(&session) {
            change(&mut session_state.tally);
        }
    }
}
