//! Moves work on: to the device, from the device, to the executor.
//!
//! Each call that waits, queries or launches moves everything on, so that a thread that waits for its
//! kernel needs no second one to wake it. The executor, its own thread, does it for those
//! who do none of that, and runs host functions.

use std::collections::BTreeMap;
use std::thread;

use tessera_stand_in::cuda::schedule::{DeviceSchedule, EndedWork, OPEN_ENDED, WorkOrder};

use super::contexts::{board_failed, mps_code};
use super::lanes::{HostCall, LaneOperation, MemoryEffect, OperationKind};
use super::{DriverState, LaneKind};
use crate::abi::CudaCode;
use crate::complaints::complain;
use crate::memory;
use crate::trace::CompletedOperation;

/// Jobs of a lane that the device knows of at a time: this many run back to back even if the
/// machine is busy.
pub const AHEAD: usize = 32;

/// Maximum number of the device's changes to look ahead; waking up too early does no harm.
const FORESEEN: usize = 512;

/// How often a word is looked at for which a kernel spins.
const SPIN_LOOK: u64 = 200_000;

/// How often a context's load is reported, and its MPS server checked, in nanoseconds.
const REPORT_LOAD_EVERY: u64 = 200_000_000;
const CHECK_SERVER_EVERY: u64 = 10_000_000;

impl DriverState {
    /// Advances everything as far as the current time allows.
    pub fn pump(&mut self, now: u64) {
        loop {
            self.settle(now);
            let mut news = self.gather(now);
            let busy = self.contexts.iter().filter(|(_, context)| context.pushed > 0);
            for (id, _) in busy {
                news.entry(*id).or_default();
            }
            let mut ended = 0;
            for (context, orders) in news {
                let all = self.exchange(context, &orders, now);
                ended += all.len();
                all.into_iter().for_each(|job| self.apply(context, job));
            }
            if ended == 0 {
                break;
            }
        }
        self.lanes.retain(|_, lane| !lane.gone || !lane.queue.is_empty());
    }

    /// Gives new work to the device, and takes completed work from it.
    fn exchange(&mut self, id: u64, orders: &[(u64, i32, WorkOrder)], now: u64) -> Vec<EndedWork> {
        let spun = self.spun_out(id);
        let Some(context) = self.contexts.get_mut(&id) else { return Vec::new() };
        context.pushed += orders.len();
        let client = context.client;
        let Some(board) = &mut self.devices[context.device].board else { return Vec::new() };
        let submit = |schedule: &mut DeviceSchedule| {
            for (lane, priority, order) in orders {
                schedule.submit(client, *lane, *priority, *order);
            }
        };
        let collect = |schedule: &mut DeviceSchedule| {
            spun.iter().for_each(|job| schedule.finish(client, *job));
            (schedule.knows(client), schedule.collect(client))
        };
        match board.update(now, submit, collect) {
            Ok((known, ended)) => {
                if !known {
                    // The device's file was removed or damaged.
                    context.sticky.get_or_insert(CudaCode::DEVICE_UNAVAILABLE);
                }
                context.pushed = context.pushed.saturating_sub(ended.len());
                ended
            }
            Err(error) => {
                context.sticky.get_or_insert(board_failed(&error));
                Vec::new()
            }
        }
    }

    /// Returns what may go to the device now, by context.
    fn gather(&mut self, now: u64) -> BTreeMap<u64, Vec<(u64, i32, WorkOrder)>> {
        let mut news: BTreeMap<u64, Vec<(u64, i32, WorkOrder)>> = BTreeMap::new();
        let ids: Vec<_> =
            self.lanes.iter().filter(|(_, l)| !l.queue.is_empty()).map(|(id, _)| *id).collect();
        for id in ids {
            let orders = self.gather_lane(id, now);
            if !orders.is_empty() {
                let lane = &self.lanes[&id];
                let all = orders.into_iter().map(|order| (id, lane.priority, order));
                news.entry(lane.context).or_default().extend(all);
            }
        }
        news
    }

    fn gather_lane(&mut self, id: u64, now: u64) -> Vec<WorkOrder> {
        let mut orders = Vec::new();
        let Some(mut lane) = self.lanes.remove(&id) else { return orders };
        let mut pushed = 0;
        let mut earliest = lane.last_end;
        for op in &mut lane.queue {
            if op.job.is_some() {
                pushed += 1;
                continue;
            }
            if !op.deps.iter().all(|dep| dep.0 == id || self.is_over(*dep)) {
                break;
            }
            earliest = earliest.max(self.end_of_deps(op));
            match &op.what {
                OperationKind::Host { .. } => break,
                OperationKind::Job(job) => {
                    if pushed >= AHEAD {
                        break;
                    }
                    pushed += 1;
                    let number = self.number();
                    op.job = Some(number);
                    let ready_at = (op.queued_at + self.launch_to_start).max(earliest);
                    assert!(op.queued_at <= now, "launched in the past");
                    let (engine, need) = (job.engine, job.need);
                    orders.push(WorkOrder { job: number, engine, ready_at, work: job.work, need });
                }
                OperationKind::Record { .. }
                | OperationKind::Free { .. }
                | OperationKind::Nothing => {}
            }
        }
        self.lanes.insert(id, lane);
        orders
    }

    fn end_of_deps(&self, op: &LaneOperation) -> u64 {
        let ends = op.deps.iter().filter_map(|(lane, _)| self.lanes.get(lane));
        ends.map(|lane| lane.last_end).max().unwrap_or(0)
    }

    /// Completes what is due and needs no device.
    fn settle(&mut self, now: u64) {
        loop {
            let ids: Vec<_> =
                self.lanes.iter().filter(|(_, l)| !l.queue.is_empty()).map(|(id, _)| *id).collect();
            let moved = ids.into_iter().filter(|id| self.settle_lane(*id, now)).count();
            if moved == 0 {
                return;
            }
        }
    }

    /// Does what is first in a lane and needs no device; returns whether anything was completed.
    fn settle_lane(&mut self, id: u64, now: u64) -> bool {
        let mut moved = false;
        loop {
            let Some(lane) = self.lanes.get(&id) else { return moved };
            let Some(op) = lane.queue.front() else { return moved };
            if op.job.is_some() || !op.deps.iter().all(|dep| self.is_over(*dep)) {
                return moved;
            }
            match op.what {
                OperationKind::Job(_) => return moved,
                OperationKind::Host { function } => {
                    if !op.handed {
                        let call = HostCall { lane: id, seq: op.seq, work: function };
                        self.hosts.push_back(call);
                        if let Some(op) = self.lanes.get_mut(&id).and_then(|l| l.queue.front_mut())
                        {
                            op.handed = true;
                        }
                        self.changed.notify_all();
                    }
                    return moved;
                }
                OperationKind::Record { .. }
                | OperationKind::Free { .. }
                | OperationKind::Nothing => {
                    let at = lane.last_end.max(op.queued_at).max(self.end_of_deps(op)).min(now);
                    self.complete_first(id, at, None);
                    moved = true;
                }
            }
        }
    }

    /// Records the outcome of a job: everything before it in its lane is completed, too.
    fn apply(&mut self, context: u64, ended: EndedWork) {
        while let Some(op) = self.lanes.get(&ended.lane).and_then(|lane| lane.queue.front()) {
            match op.job {
                Some(job) if job == ended.job => {
                    self.complete_first(ended.lane, ended.ended, Some(&ended));
                    return;
                }
                Some(_) => return,
                None => {
                    let before = self.lanes[&ended.lane].last_end;
                    let at = before.max(op.queued_at).min(ended.began);
                    self.complete_first(ended.lane, at, None);
                }
            }
        }
        assert!(!self.contexts.contains_key(&context), "a job is in its lane");
    }

    /// Ends the operation of a host function that has returned.
    pub fn complete_host(&mut self, call: &HostCall, at: u64) {
        let first = self.lanes.get(&call.lane).and_then(|lane| lane.queue.front());
        if first.is_some_and(|op| op.seq == call.seq) {
            self.complete_first(call.lane, at, None);
        }
    }

    /// Ends the first operation of a lane.
    fn complete_first(&mut self, id: u64, at: u64, ended: Option<&EndedWork>) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        let Some(op) = lane.queue.pop_front() else { return };
        lane.completed = op.seq;
        lane.last_end = lane.last_end.max(at);
        let (context, seq, queued) = (lane.context, op.seq, op.queued_at);
        let mut over = CompletedOperation {
            kind: "",
            name: "",
            context,
            stream: id,
            seq,
            queued,
            start: at,
            end: at,
            spans: &[],
        };
        match op.what {
            OperationKind::Job(job) => {
                if let Some(ended) = ended {
                    (over.kind, over.name) = (job.kind, &job.name);
                    (over.start, over.end, over.spans) = (ended.began, ended.ended, &ended.spans);
                    self.trace(&over);
                }
                self.take_effect(context, job.effect);
            }
            OperationKind::Record { event, generation } => {
                over.kind = "record";
                self.trace(&over);
                if let Ok(event) = self.events.get_mut(event)
                    && event.generation == generation
                {
                    event.done = Some(at);
                }
            }
            OperationKind::Free { address } => {
                if let Ok(freed) = self.memory.free(address, &[memory::AllocationKind::Device]) {
                    // The context lives, as its lane does.
                    let _ = self.give_memory(context, freed.bytes);
                }
            }
            OperationKind::Host { .. } => {
                over.kind = "host";
                self.trace(&over);
            }
            OperationKind::Nothing => {}
        }
    }

    fn trace(&self, over: &CompletedOperation<'_>) {
        if let Some(trace) = &self.trace {
            trace.over(over);
        }
    }

    fn take_effect(&mut self, id: u64, effect: Option<MemoryEffect>) {
        let Some(context) = self.contexts.get_mut(&id) else { return };
        if context.sticky.is_some() {
            return;
        }
        if let Some(Err(code)) = effect.map(|effect| effect(&self.memory)) {
            context.sticky = Some(code);
            if let Some(mps) = &mut self.mps {
                // A fault of one client affects all clients.
                let _ = mps.client.fault();
            }
        }
    }

    /// Returns the jobs of a context whose words have come.
    fn spun_out(&self, context: u64) -> Vec<u64> {
        let lanes = self.lanes.values().filter(|lane| lane.context == context);
        let ops = lanes.flat_map(|lane| &lane.queue).filter_map(|op| match &op.what {
            OperationKind::Job(job) => Some((op.job?, job.until?)),
            _ => None,
        });
        // SAFETY: looked up in the table of allocations just before.
        let come = ops.filter(|(_, (word, value))| {
            !self.memory.holds(*word, 8) || unsafe { memory::read_word(*word) } >= *value
        });
        come.map(|(job, _)| job).collect()
    }

    /// Returns whether no host function is due or runs.
    pub fn is_quiet(&self) -> bool {
        self.hosts.is_empty() && !self.host_runs
    }

    /// Returns when something will have changed that somebody needs to know.
    pub fn next_event(&self, now: u64) -> Option<u64> {
        let mut awaited: Vec<_> = self.waiting_for.clone();
        for lane in self.lanes.values() {
            let deps = lane.queue.iter().filter(|op| op.job.is_none()).flat_map(|op| &op.deps);
            awaited.extend(deps.filter(|dep| !self.is_over(**dep)));
        }
        let jobs = |context: u64| {
            let lanes = self.lanes.iter().filter(|(_, lane)| lane.context == context);
            let mut jobs = Vec::new();
            for (id, lane) in lanes {
                let pushed: Vec<_> =
                    lane.queue.iter().filter_map(|op| Some((op.seq, op.job?))).collect();
                let waits = lane.queue.len() > pushed.len();
                let last = if waits { pushed.len() / 2 } else { pushed.len().saturating_sub(1) };
                jobs.extend(pushed.get(last).map(|(_, job)| *job));
                jobs.extend(pushed.last().map(|(_, job)| *job));
                for (_, seq) in awaited.iter().filter(|(lane, _)| lane == id) {
                    let up_to = pushed.iter().rev().find(|(pushed, _)| pushed <= seq);
                    jobs.extend(up_to.map(|(_, job)| *job));
                }
            }
            jobs
        };
        let events = self.contexts.iter().filter(|(_, c)| c.pushed > 0).filter_map(|(id, c)| {
            let board = self.devices[c.device].board.as_ref()?;
            board.device().foresee(c.client, &jobs(*id), FORESEEN)
        });
        let alarms = self.alarms.iter().copied().filter(|alarm| *alarm > now);
        let spins = self.has_spins().then_some(now + SPIN_LOOK);
        events.chain(alarms).chain(spins.filter(|_| !self.virtual_time)).min()
    }

    fn has_spins(&self) -> bool {
        let ops = self.lanes.values().flat_map(|lane| &lane.queue);
        ops.filter(|op| op.job.is_some()).any(|op| match &op.what {
            OperationKind::Job(job) => job.work == OPEN_ENDED,
            _ => false,
        })
    }

    /// Starts the executor with the first work, so that a process may fork before it.
    pub(super) fn start_executor(&mut self) {
        if !self.executor_runs {
            self.executor_runs = true;
            let thread = thread::Builder::new().name("cuda-executor".to_owned());
            if let Err(error) = thread.spawn(self.executor) {
                complain(&format!("no thread for the executor: {error}"));
            }
        }
    }

    /// Reports to the node how busy contexts keep their device.
    pub fn report_load(&mut self, now: u64) {
        for context in self.contexts.values_mut() {
            let (reported_at, busy_then, reported) = context.load;
            let passed = now.saturating_sub(reported_at);
            let Some(board) = &self.devices[context.device].board else { continue };
            if passed < REPORT_LOAD_EVERY {
                continue;
            }
            let busy = board.device().busy(context.client);
            let percent = busy.saturating_sub(busy_then).saturating_mul(100) / passed.max(1);
            let percent = percent.min(100) as u8;
            if percent != reported {
                // A node that can't be written gets the load next time.
                let _ = context.claim.set_load(percent);
            }
            context.load = (now, busy, percent);
        }
    }

    /// Checks with the MPS server whether the contexts are still good.
    pub fn check_server(&mut self, now: u64) {
        let Some(mps) = &mut self.mps else { return };
        if now.saturating_sub(mps.checked_at) < CHECK_SERVER_EVERY {
            return;
        }
        mps.checked_at = now;
        if let Err(error) = mps.client.kernel() {
            let code = mps_code(&error);
            for context in self.contexts.values_mut() {
                context.sticky.get_or_insert(code);
            }
        }
    }

    pub fn has_work(&self) -> bool {
        self.lanes.values().any(|lane| !lane.queue.is_empty())
    }

    /// Returns whether lanes wait for something that no call of the program moves on.
    pub fn needs_executor(&self) -> bool {
        let mut lanes = self.lanes.values();
        lanes.any(|lane| lane.queue.iter().any(|op| op.job.is_none()))
            || self.lanes.values().any(|l| l.kind == LaneKind::Legacy && l.queue.len() > AHEAD)
    }
}
