//! What the node tells the controller of kernels, and asks it: each until it is answered.

use std::collections::{BTreeMap, VecDeque};

use tessera_kernel_queue::{Learned, TaskKey, TaskProfile};
use tessera_model::{AttemptId, Millis};
use tessera_wire::ToController;
use tessera_wire::frames::{
    Assembly, KernelFigures, KernelTally, PIECES_BYTES_MAX, Piece, TALLIES_MAX, pieces,
};

use crate::core::kernel::Tally;
use crate::kernel::KernelOrder;
use crate::node::Node;
use crate::sys::clock;

/// Reports that wait for a controller. Each is what one slice learned of one task; beyond, the
/// oldest are dropped, and the task is measured again some day.
const REPORTS_MAX: usize = 256;
/// Tasks that are asked for and not answered.
const WANTED_MAX: usize = 1_024;
/// Ended attempts whose figures are told again, in case the first time was in vain.
const ENDED_MAX: usize = TALLIES_MAX;
/// How often what is unanswered is said again, and figures of live attempts are told.
const AGAIN_AFTER: Millis = Millis::from_secs(5);
/// For how long the figures of an ended attempt are told.
const ENDED_FOR: Millis = Millis::from_secs(60);

/// What is to be told and asked.
#[derive(Debug, Default)]
pub(in crate::node) struct Reports {
    waiting: VecDeque<(u64, TaskKey, Vec<u8>)>,
    /// When the first of them is sent again.
    due: Millis,
    last: u64,
    /// When each task is asked for again.
    wanted: BTreeMap<TaskKey, Millis>,
    assembly: Assembly,
    told: Millis,
    ended: VecDeque<(Millis, KernelTally)>,
}

impl Reports {
    /// Asks for what is known of a task.
    pub(super) fn want(&mut self, task: TaskKey) {
        if self.wanted.len() < WANTED_MAX {
            self.wanted.insert(task, Millis::ZERO);
        }
    }

    /// Takes in what a slice learned.
    pub(super) fn learned(&mut self, task: TaskKey, learned: &Learned) {
        let bytes = match serde_json::to_vec(learned) {
            Ok(bytes) if bytes.len() <= PIECES_BYTES_MAX => bytes,
            Ok(bytes) => {
                tracing::warn!(%task, bytes = bytes.len(), "too much was learned to be told");
                return;
            }
            Err(error) => {
                tracing::error!(%task, %error, "what was learned can't be written");
                return;
            }
        };
        if self.waiting.len() == REPORTS_MAX {
            tracing::warn!(
                "no controller takes what was learned of kernels: the oldest is dropped"
            );
            self.waiting.pop_front();
            self.due = Millis::ZERO;
        }
        // Rises over restarts, too: a report of a new agent is never taken for an old one.
        let wall = clock::unix_now().get().saturating_mul(1_000);
        self.last = wall.max(self.last + 1);
        self.waiting.push_back((self.last, task, bytes));
    }

    pub(super) fn over(&mut self, attempt: AttemptId, tally: &Tally) {
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        let until = clock::boot_now().plus(ENDED_FOR);
        self.ended.push_back((until, KernelTally { attempt, figures: figures(tally) }));
        self.told = Millis::ZERO;
    }

    pub(super) fn acknowledged(&mut self, number: u64) {
        if self.waiting.front().is_some_and(|(first, ..)| *first == number) {
            self.waiting.pop_front();
            self.due = Millis::ZERO;
        }
    }

    /// Takes a piece of what is known of a task in; returns what to hand on.
    pub(super) fn known(&mut self, piece: Piece) -> Option<KernelOrder> {
        let (task, bytes) = self.assembly.add(piece)?;
        let task = TaskKey::new(task).ok()?;
        self.wanted.remove(&task);
        let profile = match bytes.is_empty() {
            true => TaskProfile::default(),
            false => serde_json::from_slice(&bytes)
                .inspect_err(|error| tracing::warn!(%task, %error, "a profile can't be read"))
                .ok()?,
        };
        Some(KernelOrder::Learn { task, profile: Box::new(profile) })
    }

    /// Returns what is to be said now.
    fn frames(&mut self, live: &[KernelTally], now: Millis) -> Vec<ToController> {
        let mut frames = Vec::new();
        if let Some((number, task, bytes)) = self.waiting.front().filter(|_| self.due <= now) {
            let number = *number;
            frames.extend(
                pieces(task.as_str(), bytes)
                    .map(|piece| ToController::KernelReport { number, piece }),
            );
            self.due = now.plus(AGAIN_AFTER);
        }
        for (task, due) in self.wanted.iter_mut().filter(|(_, due)| **due <= now) {
            *due = now.plus(AGAIN_AFTER);
            frames.push(ToController::KernelWanted { task: task.to_string() });
        }
        if self.told.plus(AGAIN_AFTER) <= now {
            self.told = now;
            self.ended.retain(|(until, _)| *until > now);
            let ended = self.ended.iter().map(|(_, tally)| tally.clone());
            let all: Vec<_> = ended.chain(live.iter().cloned()).collect();
            let batches = all.chunks(TALLIES_MAX);
            frames.extend(batches.map(|batch| ToController::KernelTallies(batch.to_vec())));
        }
        frames
    }
}

impl Node {
    /// Says what is due, if a controller listens.
    pub(in crate::node) fn tell_kernels(&mut self) {
        if !self.is_live() {
            return;
        }
        let Some(desk) = &self.desk else { return };
        let tally = |attempt: &AttemptId| {
            let tally = desk.board().attempt(*attempt)?;
            Some(KernelTally { attempt: *attempt, figures: figures(&tally) })
        };
        let live: Vec<_> = self.queued.iter().filter_map(tally).collect();
        for frame in self.reports.frames(&live, clock::boot_now()) {
            self.send(frame);
        }
    }
}

fn figures(tally: &Tally) -> KernelFigures {
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
        unasked: tally.unasked,
        waits: counters.waits,
        waited_ns: counters.waited_time.get(),
        waited_max_ns: counters.waited_max.get(),
        drifts: counters.drifts,
        lost: tally.lost,
        memory_peak_bytes: tally.memory_peak,
    }
}
