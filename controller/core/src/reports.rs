//! Handles agents' reports, one frame at a time.

use crate::attempt_changes::AttemptChanges;
use crate::commands::JobStateChange;
use crate::memory_requests::learn_late_peak;
use crate::migration::finish_migration;
use crate::round::{NodeWrites, RoundEffect};
use crate::rows::transitions;
use crate::rows::transitions::record_without_exit;
use crate::state::attempts::{AttemptTable, TimeLimitNotice};
use crate::state::inventory::{GpuState, NodeInventory};
use tessera_frames::cluster::{AttemptUsage, ExitRecord, GpuReport, ToAgent};
use tessera_model::life::{JobState, Outcome};
use tessera_model::{AttemptId, Bytes, GpuId, Millis, NodeId};

/// How long a GPU is paused after it refused an attempt; doubled with each further refusal.
pub(crate) const REFUSAL_PAUSE: Millis = Millis::from_secs(1);

/// Records a GPU's properties. Returns whether its memory or its profiles are new.
pub(crate) fn record_gpu_report(
    inventory: &mut NodeInventory,
    node: NodeId,
    report: GpuReport,
    nodes: &mut NodeWrites,
) -> bool {
    let mig = inventory.mig_view(&report);
    let known = inventory.gpus.get(&report.gpu);
    let changed = known.is_none_or(|gpu| gpu.report != report || gpu.node != node);
    let gpu = GpuState {
        node,
        layout_gen: known.map_or(0, |g| g.layout_gen).max(report.layout_gen),
        mig,
        fresh: true,
        open_plan: known.and_then(|g| g.open_plan),
        layout_in_progress: known.and_then(|g| g.layout_in_progress.clone()),
        paused_until: known.map_or(Millis::ZERO, |g| g.paused_until),
        failures: known.map_or(0, |g| g.failures),
        report,
    };
    if changed {
        nodes.gpu_reports.push((node, gpu.report.clone()));
        nodes.shape_changed = true;
    }
    let resized =
        known.is_none_or(|known| known.report.memory != gpu.report.memory || known.mig != gpu.mig);
    inventory.gpus.insert(gpu.report.gpu.clone(), gpu);
    resized
}

/// Records that a new session has reported everything. Commands about attempts that the node did
/// not report are sent again. Returns whether the node has a session.
pub(crate) fn finish_inventory(
    inventory: &mut NodeInventory,
    attempts: &mut AttemptTable,
    node: NodeId,
) -> bool {
    let Some(session) = inventory.session_mut(node) else { return false };
    session.ready = true;
    let reported = std::mem::take(&mut session.reported);
    for attempt in attempts.on_node(node) {
        let Some(live) = attempts.live.get_mut(&attempt) else { continue };
        if live.limit == TimeLimitNotice::Sent {
            live.limit = TimeLimitNotice::Due;
        }
        if !reported.contains(&attempt) {
            // A launch that never arrived is sent again. For any other attempt the node must first
            // prove that no process runs (rule F8).
            live.acknowledged = false;
            live.sent = None;
        }
    }
    true
}

/// Returns the outcome of an attempt that its node proves to never start, if it is live there.
pub(crate) fn tombstone_record(
    attempts: &AttemptTable,
    node: NodeId,
    attempt: AttemptId,
) -> Option<ExitRecord> {
    let live = attempts.live.get(&attempt).filter(|live| live.node == node)?;
    let (outcome, detail) = match live.state {
        JobState::Stopping => (Outcome::Cancelled, "cancelled before it started"),
        JobState::Running => (Outcome::Lost, "its node has no record of it any more"),
        _ => (Outcome::NotStarted, "its launch was revoked"),
    };
    Some(record_without_exit(outcome, detail.to_owned()))
}

impl AttemptChanges<'_> {
    /// Records what an attempt used, and acknowledges it to its node.
    pub(crate) fn record_usage(&mut self, node: NodeId, usage: AttemptUsage) {
        self.record_peak(usage.attempt, usage.peak_memory);
        let frame = Box::new(ToAgent::UsageAck { attempt: usage.attempt });
        self.jobs.usages.push((node, usage));
        self.effects.push(RoundEffect::Send { node, frame });
    }

    /// Records the peak memory of an attempt; for a live attempt it is learned at its end.
    fn record_peak(&mut self, attempt: AttemptId, peak: Option<Bytes>) {
        let Some(peak) = peak.filter(|peak| *peak > Bytes::ZERO) else { return };
        match self.attempts.live.get_mut(&attempt) {
            Some(live) => live.peak = live.peak.max(Some(peak)),
            None => learn_late_peak(self.predictions, self.queue, self.inventory, attempt, peak),
        }
    }

    /// Sets an attempt to running after its program started.
    pub(crate) fn record_start(&mut self, attempt: AttemptId, started_unix: Millis, now: Millis) {
        let Some(live) = self.attempts.live.get_mut(&attempt) else { return };
        if live.state != JobState::Starting {
            return;
        }
        live.state = JobState::Running;
        live.began = Some(now);
        let (migrations, predictions) = (&mut *self.migrations, &mut *self.predictions);
        let moved = finish_migration(migrations, predictions, live.job, &live.facts.task, now);
        let row = transitions::StartedAttempt { job: live.job, attempt, started_unix, moved };
        self.jobs.started.push(row);
        let change =
            JobStateChange { job: live.job, attempt: Some(attempt), state: JobState::Running };
        self.effects.push(RoundEffect::Moved(change));
        self.resume_sent_back(attempt, now);
    }

    /// Ends an attempt that its node reports as ended, and acknowledges the report.
    pub(crate) fn record_reported_end(
        &mut self,
        node: NodeId,
        attempt: AttemptId,
        record: ExitRecord,
    ) {
        self.end_attempt(attempt, record);
        // A member's record is kept by its node until its whole gang has ended.
        if !self.attempts.live.contains_key(&attempt) {
            let frame = Box::new(ToAgent::EndAck { attempt });
            self.effects.push(RoundEffect::Send { node, frame });
        }
    }

    /// Ends the attempts whose instances a failed plan did not create.
    pub(crate) fn end_unmade_attempts(&mut self, gpu: &GpuId, reason: &str) {
        let unmade: Vec<_> = self
            .attempts
            .live
            .iter()
            .filter(|(_, live)| live.gpu == *gpu && live.state == JobState::Placing)
            .filter(|(_, live)| self.inventory.standing_slice(live).is_none())
            .map(|(attempt, _)| *attempt)
            .collect();
        let detail = format!("its slice could not be created: {reason}");
        for attempt in unmade {
            self.end_without_exit(attempt, Outcome::NotStarted, &detail);
        }
    }
}
