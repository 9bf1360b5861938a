//! Errors that the driver tells of by itself: which instance they struck, and what they call
//! for.

use std::time::Duration;

use tessera_model::mig::Slot;
use tessera_model::{AttemptId, Millis};
use tessera_wire::frames::{FaultAction, FaultCause};

use super::one::Gpu;
use super::{GpuEvent, Noticed, Place, Source, Strike};
use crate::core::health::Seen;
use crate::core::xids;
use crate::nvml::fault::Fault;
use crate::nvml::messages::{Reply, Request};
use crate::sys::clock;

/// How long the driver may take to give its advice on an error; after that the catalogue counts.
const ADVICE_WITHIN: Duration = Duration::from_millis(500);
/// The same error comes by events and by the kernel's log within this time.
const BOTH_WITHIN: Millis = Millis::from_secs(5);
/// Errors of one way that wait for the other's.
const HALVES_MAX: usize = 64;

impl Gpu {
    /// Takes in whatever was told since the last time.
    pub async fn heed(&mut self) {
        while let Ok(noticed) = self.notices.try_recv() {
            self.on_notice(noticed).await;
        }
    }

    /// Remembers which attempts a fault hit.
    pub async fn hit(&mut self, at_unix: Millis, cause: &FaultCause, attempts: &[AttemptId]) {
        self.file.health.hit(at_unix, cause, attempts);
        self.save();
        self.tell_report().await;
    }

    /// Remembers a refusal that speaks of the GPU, or of its driver, and not of the step. Whether
    /// it can be used at all is for the next reading to tell.
    pub(super) fn hold_against(&mut self, fault: &Fault, slot: Slot) {
        let cause = FaultCause::Nvml { call: fault.call.clone(), code: fault.code };
        let seen = Seen {
            at_unix: clock::unix_now(),
            cause,
            slot: Some(slot),
            action: FaultAction::Record,
            advised: false,
            words: fault.to_string(),
        };
        self.file.health.note(seen, self.tools.boot);
    }

    pub(super) async fn on_notice(&mut self, noticed: Noticed) {
        let mine = match &noticed.on {
            Place::Gpu(gpu) => *gpu == self.id,
            Place::Bus(bus) => {
                self.facts.as_ref().and_then(|facts| facts.bus.as_ref()) == Some(bus)
            }
        };
        if !mine || self.was_told(&noticed) {
            return;
        }
        let Noticed { at_unix, xid, instance, pid, .. } = noticed;
        let recovery = self.advice().await;
        let action = xids::action(xid, recovery);
        let slot = instance.and_then(|number| self.numbers.slot(number, at_unix));
        let known = xids::look_up(xid).is_some();
        let words = xids::words(xid);
        tracing::warn!(gpu = %self.id, xid, ?instance, ?slot, pid, ?action, known, "{words}");
        let cause = FaultCause::Xid(xid);
        let seen = Seen {
            at_unix,
            cause: cause.clone(),
            slot,
            action,
            advised: xids::advised(recovery).is_some(),
            words,
        };
        self.file.health.note(seen, self.tools.boot);
        self.save();
        // An error of one instance that stands no more can have hit nobody who is left.
        let gone = instance.is_some() && slot.is_none() && action < FaultAction::ResetGpu;
        if action != FaultAction::Record && action != FaultAction::Drain && !gone {
            // What breaks the GPU ends all that runs on it.
            let slot = slot.filter(|_| action == FaultAction::RestartApp);
            let strike = Strike { gpu: self.id.clone(), at_unix, cause, action, slot, pid };
            self.tell(GpuEvent::Struck(strike)).await;
        }
        self.tell_report().await;
    }

    /// Asks the driver what it advises.
    async fn advice(&self) -> Option<u32> {
        let asked = self.tools.nvml.ask(Request::Advice(self.id.clone()));
        match tokio::time::timeout(ADVICE_WITHIN, asked).await {
            Ok(Ok(Reply::Advice(recovery))) => recovery,
            _ => None,
        }
    }

    /// Whether the other way has told of the same error already.
    fn was_told(&mut self, noticed: &Noticed) -> bool {
        let other = match noticed.source {
            Source::Events => Source::KernelLog,
            Source::KernelLog => Source::Events,
        };
        let near = |known: &Noticed| {
            let apart =
                known.at_unix.minus(noticed.at_unix).max(noticed.at_unix.minus(known.at_unix));
            apart <= BOTH_WITHIN
        };
        let same = self.halves.iter().position(|(source, known)| {
            *source == other
                && (known.xid, known.instance) == (noticed.xid, noticed.instance)
                && near(known)
        });
        if let Some(index) = same {
            self.halves.remove(index);
            return true;
        }
        if self.halves.len() >= HALVES_MAX {
            self.halves.pop_front();
        }
        self.halves.push_back((noticed.source, noticed.clone()));
        false
    }
}
