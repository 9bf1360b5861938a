//! The node's reports and requests to the controller about kernels. Each is repeated until it is
//! answered.

use std::collections::{BTreeMap, VecDeque};

use tessera_frames::cluster::{
    KernelFigures, KernelTally, PIECES_BYTES_MAX, PieceAssembly, ProfilePiece, TALLIES_MAX,
    ToController, pieces,
};
use tessera_kernel_queue::{ProfileDelta, TaskKey, TaskProfile};
use tessera_model::{AttemptId, Millis};

use crate::node::AgentNode;
use crate::sys::clock;
use tessera_agent_core::kernel::AttemptTally;

/// Maximum number of reports that wait for a controller. Each is one slice's change of one task's
/// profile. Beyond this the oldest are dropped, and their tasks are measured again later.
const REPORTS_MAX: usize = 256;
/// Maximum number of tasks whose profiles are requested and not received.
const REQUESTED_MAX: usize = 1_024;
/// Maximum number of ended attempts whose totals are sent again, in case they were lost.
const ENDED_MAX: usize = TALLIES_MAX;
/// Interval between repetitions, and between reports of the totals of live attempts.
const AGAIN_AFTER: Millis = Millis::from_secs(5);
/// How long the totals of an ended attempt are sent.
const ENDED_FOR: Millis = Millis::from_secs(60);

/// The waiting reports and requests.
#[derive(Debug, Default)]
pub(in crate::node) struct KernelReports {
    waiting: VecDeque<(u64, TaskKey, Vec<u8>)>,
    /// When the first report is sent again.
    due: Millis,
    last: u64,
    /// When each task's profile is requested again.
    requested: BTreeMap<TaskKey, Millis>,
    assembly: PieceAssembly,
    tallies_sent_at: Millis,
    ended: VecDeque<(Millis, KernelTally)>,
}

impl KernelReports {
    /// Requests the controller's profile of a task.
    pub(super) fn request_profile(&mut self, task: TaskKey) {
        if self.requested.len() < REQUESTED_MAX {
            self.requested.insert(task, Millis::ZERO);
        }
    }

    /// Adds a change of a slice's profile.
    pub(super) fn add_learned(&mut self, task: TaskKey, learned: &ProfileDelta) {
        let bytes = match serde_json::to_vec(learned) {
            Ok(bytes) if bytes.len() <= PIECES_BYTES_MAX => bytes,
            Ok(bytes) => {
                tracing::warn!(%task, bytes = bytes.len(), "a profile change is too large to be reported");
                return;
            }
            Err(error) => {
                tracing::error!(%task, %error, "cannot serialise a profile change");
                return;
            }
        };
        if self.waiting.len() == REPORTS_MAX {
            tracing::warn!("no controller accepts profile changes: the oldest is dropped");
            self.waiting.pop_front();
            self.due = Millis::ZERO;
        }
        // It rises over restarts as well, so that no report of a new agent has an old number.
        let wall = clock::unix_now().get().saturating_mul(1_000);
        self.last = wall.max(self.last + 1);
        self.waiting.push_back((self.last, task, bytes));
    }

    pub(super) fn add_ended(&mut self, attempt: AttemptId, tally: &AttemptTally) {
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        let until = clock::boot_now().plus(ENDED_FOR);
        self.ended.push_back((until, KernelTally { attempt, figures: figures(tally) }));
        self.tallies_sent_at = Millis::ZERO;
    }

    pub(super) fn on_acknowledged(&mut self, number: u64) {
        if self.waiting.front().is_some_and(|(first, ..)| *first == number) {
            self.waiting.pop_front();
            self.due = Millis::ZERO;
        }
    }

    /// Adds a piece of a task's profile. Returns the profile once it is complete.
    pub(super) fn add_profile_piece(
        &mut self,
        piece: ProfilePiece,
    ) -> Option<(TaskKey, TaskProfile)> {
        let (task, bytes) = self.assembly.add(piece)?;
        let task = TaskKey::new(task).ok()?;
        self.requested.remove(&task);
        let profile = match bytes.is_empty() {
            true => TaskProfile::default(),
            false => serde_json::from_slice(&bytes)
                .inspect_err(
                    |error| tracing::warn!(%task, %error, "cannot read the controller's profile"),
                )
                .ok()?,
        };
        Some((task, profile))
    }

    /// Returns the frames that are due.
    fn due_frames(&mut self, live: &[KernelTally], now: Millis) -> Vec<ToController> {
        let mut frames = Vec::new();
        if let Some((number, task, bytes)) = self.waiting.front().filter(|_| self.due <= now) {
            let number = *number;
            frames.extend(
                pieces(task.as_str(), bytes)
                    .map(|piece| ToController::KernelReport { number, piece }),
            );
            self.due = now.plus(AGAIN_AFTER);
        }
        for (task, due) in self.requested.iter_mut().filter(|(_, due)| **due <= now) {
            *due = now.plus(AGAIN_AFTER);
            frames.push(ToController::KernelWanted { task: task.to_string() });
        }
        if self.tallies_sent_at.plus(AGAIN_AFTER) <= now {
            self.tallies_sent_at = now;
            self.ended.retain(|(until, _)| *until > now);
            let ended = self.ended.iter().map(|(_, tally)| tally.clone());
            let all: Vec<_> = ended.chain(live.iter().cloned()).collect();
            let batches = all.chunks(TALLIES_MAX);
            frames.extend(batches.map(|batch| ToController::KernelTallies(batch.to_vec())));
        }
        frames
    }
}

impl AgentNode {
    /// Sends the frames that are due, if a controller is connected.
    pub(in crate::node) fn send_kernel_reports(&mut self) {
        if !self.is_live() {
            return;
        }
        let Some(kernel_endpoint) = &self.kernel_endpoint else { return };
        let tally = |attempt: &AttemptId| {
            let tally = kernel_endpoint.numbers().attempt(*attempt)?;
            Some(KernelTally { attempt: *attempt, figures: figures(&tally) })
        };
        let live: Vec<_> = self.queued.iter().filter_map(tally).collect();
        for frame in self.kernel_reports.due_frames(&live, clock::boot_now()) {
            self.send(frame);
        }
    }
}

fn figures(tally: &AttemptTally) -> KernelFigures {
    let counters = &tally.counters;
    KernelFigures {
        sessions: tally.sessions,
        launches: counters.launches,
        passed: tally.passed,
        gaps_seen: counters.gaps_seen,
        gaps_filled: counters.gaps_filled,
        early_stops: counters.early_stops,
        filled_kernels: counters.filled_kernels,
        filled_ns: counters.filled_time.get(),
        overshoots: counters.overshoots,
        overshoot_ns: counters.overshoot_time.get(),
        overshoot_max_ns: counters.overshoot_max.get(),
        grants: counters.grants,
        aged: counters.aged,
        ungranted: tally.ungranted,
        waits: counters.waits,
        waited_ns: counters.waited_time.get(),
        waited_max_ns: counters.waited_max.get(),
        drifts: counters.drifts,
        lost: tally.lost,
        memory_peak_bytes: tally.memory_peak,
        colocated: counters.colocated,
        raised: Some(tally.raised),
        grants_ahead: Some(counters.grants_ahead),
        grants_ahead_used: Some(counters.grants_ahead_used),
    }
}
