//! What a shim's records mean to the queue.

use tessera_kernel_queue::{Event, KernelId, KernelIndex, Nanos, SessionId};
use tessera_wire::kernel::{Record, ToShim};

use super::told::Facts;
use super::{Effect, SliceQueue};
use crate::core::kernel::Tally;

impl SliceQueue {
    /// Takes a session's records in, in their order; `now` bounds what they say of the time.
    ///
    /// Returns whether the session goes on.
    pub fn records(&mut self, session: SessionId, records: Vec<Record>, now: Nanos) -> bool {
        for record in records {
            if !self.members.contains_key(&session) || !self.record(session, record, now) {
                return false;
            }
        }
        self.members.contains_key(&session)
    }

    fn record(&mut self, session: SessionId, record: Record, now: Nanos) -> bool {
        match record {
            Record::Define { number, kernel } => self.define(session, number, &kernel, now),
            Record::Launch { launch, kernel, count, at } => {
                if self.queue.role(session).is_some_and(|role| !role.holds()) {
                    self.note(session, |tally| tally.unasked = tally.unasked.saturating_add(1));
                }
                let event = Event::Launch { session, launch, kernel, count };
                self.step_at(session, event, at, now, Some(launch));
            }
            Record::Want { launch, kernel, beyond, at } => {
                let event = Event::Want { session, launch, kernel, beyond };
                self.step_at(session, event, at, now, Some(launch));
            }
            Record::Started { launch, kernel, grant, at } => {
                let event = Event::Started { session, launch, kernel, grant };
                self.step_at(session, event, at, now, None);
            }
            Record::Done { at } => self.step_at(session, Event::Done { session }, at, now, None),
            Record::Sync { returns, at } => {
                self.step_at(session, Event::Sync { session, returns }, at, now, None);
            }
            Record::Sample(sample) => {
                let kernel = sample.kernel;
                self.step(Event::Sample { session, sample }, now, None);
                self.tell_task(session, kernel);
            }
            // The driver did not take it: nothing of it runs. What it was granted is spent.
            Record::Failed { .. } => self.step(Event::Done { session }, now, None),
            Record::Lost { records } => {
                self.note(session, |tally| tally.lost = tally.lost.saturating_add(records));
                self.step(Event::Alive { session }, now, None);
            }
            Record::Passed { launches } => {
                self.note(session, |tally| tally.passed = tally.passed.saturating_add(launches));
                self.step(Event::Alive { session }, now, None);
            }
            Record::Memory { peak, .. } => {
                self.note(session, |tally| tally.memory_peak = tally.memory_peak.max(peak));
                self.step(Event::Alive { session }, now, None);
            }
            Record::Alive => self.step(Event::Alive { session }, now, None),
            Record::Bye => {
                self.leave(session, now);
                return false;
            }
        }
        true
    }

    fn define(&mut self, session: SessionId, number: u32, kernel: &KernelId, now: Nanos) {
        let Some(member) = self.members.get(&session) else { return };
        let task = member.task.clone();
        let defined = Event::Define { session, kernel: Box::new(kernel.clone()) };
        self.step(defined, now, None);
        let Some(profile) = self.queue.profile(&task) else { return };
        let (kernel, facts) = match profile.index(kernel) {
            Some(index) => (index, Facts::of(profile, index)),
            // The queue has said that there is no room for it.
            None => (KernelIndex::UNKNOWN, Facts { sk: None, measure: false }),
        };
        if let Some(member) = self.members.get_mut(&session)
            && kernel != KernelIndex::UNKNOWN
        {
            member.told.define(kernel, facts);
        }
        let Facts { sk, measure } = facts;
        self.out.push(Effect::Send(session, ToShim::Defined { number, kernel, sk, measure }));
    }

    /// Takes an event at the moment that its process told, or at what that can be: not before what
    /// it told already, not in the future.
    fn step_at(
        &mut self,
        session: SessionId,
        event: Event,
        at: Nanos,
        now: Nanos,
        launch: Option<u64>,
    ) {
        let Some(member) = self.members.get_mut(&session) else { return };
        let at = at.max(member.heard).min(now);
        member.heard = at;
        self.step(event, at, launch);
    }

    fn note(&mut self, session: SessionId, change: impl FnOnce(&mut Tally)) {
        if let Some(member) = self.members.get_mut(&session) {
            change(&mut member.tally);
        }
    }
}
