//! Errors that the driver reports by itself: which instance they affected, and which action they
//! require.

use std::time::Duration;

use tessera_frames::cluster::{FaultAction, FaultCause};
use tessera_model::mig::Slot;
use tessera_model::{AttemptId, Millis};

use super::managed::ManagedGpu;
use crate::messages::gpu::{AttemptFault, ErrorSource, GpuAddress, GpuEvent, ReportedError};
use crate::nvml::messages::{NvmlReply, NvmlRequest};
use crate::sys::clock;
use tessera_agent_core::health::ObservedFault;
use tessera_agent_core::nvml::error::NvmlCallError;
use tessera_agent_core::xids;

/// How long the driver may take to give its advice on an error; after that the catalogue counts.
const ADVICE_WITHIN: Duration = Duration::from_millis(500);
/// The same error is reported by events and by the kernel's log within this time.
const BOTH_WITHIN: Millis = Millis::from_secs(5);
/// Maximum number of errors from one source that wait for the other source.
const HALVES_MAX: usize = 64;

impl ManagedGpu {
    /// Handles the errors that were reported since the last call.
    pub async fn handle_errors(&mut self) {
        while let Ok(noticed) = self.notices.try_recv() {
            self.on_notice(noticed).await;
        }
    }

    /// Records which attempts a fault affected.
    pub async fn hit(&mut self, at_unix: Millis, cause: &FaultCause, attempts: &[AttemptId]) {
        self.file.health.hit(at_unix, cause, attempts);
        self.save();
        self.send_report().await;
    }

    /// Records a refusal that concerns the GPU or its driver, and not the step. Whether
    /// it can be used at all is decided by the next reading.
    pub(super) fn hold_against(&mut self, fault: &NvmlCallError, slot: Slot) {
        let cause = FaultCause::Nvml { call: fault.call.clone(), code: fault.code };
        let seen = ObservedFault {
            at_unix: clock::unix_now(),
            cause,
            slot: Some(slot),
            action: FaultAction::Record,
            advised: false,
            message: fault.to_string(),
        };
        self.file.health.note(seen, self.tools.boot);
    }

    pub(super) async fn on_notice(&mut self, noticed: ReportedError) {
        let mine = match &noticed.on {
            GpuAddress::Gpu(gpu) => *gpu == self.id,
            GpuAddress::Bus(bus) => {
                self.facts.as_ref().and_then(|facts| facts.bus.as_ref()) == Some(bus)
            }
        };
        if !mine || self.is_reported_already(&noticed) {
            return;
        }
        let ReportedError { at_unix, xid, instance, pid, .. } = noticed;
        let recovery = self.advice().await;
        let action = xids::action(xid, recovery);
        let slot = instance.and_then(|number| self.numbers.slot(number, at_unix));
        let known = xids::look_up(xid).is_some();
        let message = xids::describe(xid);
        tracing::warn!(gpu = %self.id, xid, ?instance, ?slot, pid, ?action, known, "{message}");
        let cause = FaultCause::Xid(xid);
        let seen = ObservedFault {
            at_unix,
            cause: cause.clone(),
            slot,
            action,
            advised: xids::advised(recovery).is_some(),
            message,
        };
        self.file.health.note(seen, self.tools.boot);
        self.save();
        // An error of an instance that no longer exists can't have affected any attempt that is
        // left.
        let gone = instance.is_some() && slot.is_none() && action < FaultAction::ResetGpu;
        if action != FaultAction::Record && action != FaultAction::Drain && !gone {
            // A failure of the GPU ends everything that runs on it.
            let slot = slot.filter(|_| action == FaultAction::RestartApp);
            let strike = AttemptFault { gpu: self.id.clone(), at_unix, cause, action, slot, pid };
            self.send(GpuEvent::Struck(strike)).await;
        }
        self.send_report().await;
    }

    /// Reads what the driver advises.
    async fn advice(&self) -> Option<u32> {
        let reply = self.tools.nvml.request(NvmlRequest::Advice(self.id.clone()));
        match tokio::time::timeout(ADVICE_WITHIN, reply).await {
            Ok(Ok(NvmlReply::Advice(recovery))) => recovery,
            _ => None,
        }
    }

    /// Returns whether the other source has reported the same error already.
    fn is_reported_already(&mut self, noticed: &ReportedError) -> bool {
        let other = match noticed.source {
            ErrorSource::Events => ErrorSource::KernelLog,
            ErrorSource::KernelLog => ErrorSource::Events,
        };
        let near = |known: &ReportedError| {
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
