//! The effects of GPU faults on attempts.

use tessera_frames::cluster::{FaultAction, FaultCause};
use tessera_model::AttemptId;

use super::AgentNode;
use crate::messages::gpu::{AttemptFault, GpuOrder};
use tessera_agent_core::attempts::FaultScope;
use tessera_agent_core::shepherd::KillReason;

impl AgentNode {
    pub(super) fn on_struck(&mut self, strike: AttemptFault) {
        let xid = match strike.cause {
            FaultCause::Xid(xid) => Some(xid),
            FaultCause::Nvml { .. } | FaultCause::Silence => None,
        };
        let reason = match (strike.action, xid) {
            (FaultAction::RestartApp, Some(xid)) => KillReason::Xid(xid),
            _ => KillReason::GpuFailed { xid },
        };
        let named = strike.pid.and_then(attempt_of);
        let what = FaultScope {
            gpu: &strike.gpu,
            slot: strike.slot,
            named,
            pid: strike.pid,
            at_unix: strike.at_unix,
            reason,
        };
        let (hit, effects) = self.attempts.struck(&what);
        if !hit.is_empty() {
            tracing::warn!(gpu = %strike.gpu, ?hit, ?reason, "attempts were hit");
            let AttemptFault { gpu, at_unix, cause, .. } = strike;
            let order = GpuOrder::Hit { gpu, at_unix, cause, attempts: hit };
            if self.gpu_port.try_send(order).is_err() {
                tracing::warn!("too many orders: the attempts are missing in the GPU's report");
            }
        }
        self.act(effects);
    }
}

/// Returns the attempt that a process belongs to, by its environment.
fn attempt_of(pid: u32) -> Option<AttemptId> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environment
        .split(|byte| *byte == 0)
        .find_map(|pair| pair.strip_prefix(b"TESSERA_ATTEMPT_ID="))?;
    std::str::from_utf8(value).ok()?.parse().ok()
}
