//! Members of a gang start and end together.
//!
//! In the store either all members of a gang have live attempts, or none has: they are reserved in
//! one round, and their ends are recorded in one round. An end that is reported before the last one
//! is kept only in memory, as [`MemberEnded`]. Its node keeps the record until it is acknowledged,
//! and reports it again to the next leader. A node that was lost in between is recognised by its
//! generation.
//!
//! In a gang whose script runs once, the member of rank 0 decides: the others only hold their
//! slices, and are stopped when it has ended.
//!
//! A gang *breaks* when a member ends without success. The other members are sent stops until they
//! end, and after the last end the gang's retry rules apply.

use crate::attempt_changes::AttemptChanges;
use crate::ends::{AttemptEnd, retry_verdict};
use crate::out_of_memory::{add_reason, after_out_of_memory, own_after};
use crate::predictions::AttemptRunTimes;
use crate::round::RoundEffect;
use crate::rows::submitted::SubmittedJob;
use crate::rows::transitions::{OutOfMemoryRow, record_without_exit};
use crate::state::attempts::{AttemptTable, LiveAttempt, MemberEnded};
use crate::state::inventory::NodeInventory;
use std::collections::BTreeMap;
use tessera_frames::cluster::{ExitRecord, GangDevice, GangPosition, StopCause, ToAgent};
use tessera_model::batch::LaunchStyle;
use tessera_model::gang::{MemberEnd, decisive};
use tessera_model::life::{JobEvent, JobState, Outcome, RetryVerdict};
use tessera_model::sizing::AfterOutOfMemory;
use tessera_model::{AttemptId, Bytes, GangMember, JobId, Millis, NodeId};

/// The frame for a member's node.
pub(crate) enum MemberFrame {
    /// No frame, whatever the attempt's own state requires.
    Nothing,
    /// The frame to send.
    Frame(ToAgent),
}

/// The end of a gang.
struct GangOutcome {
    outcome: Outcome,
    verdict: RetryVerdict,
    /// Whether its user cancelled it.
    stopping: bool,
    /// The cause, as text.
    cause: String,
    /// The consequence for all members if one ran out of GPU memory.
    ran_out: Option<AfterOutOfMemory>,
}

impl AttemptChanges<'_> {
    /// Records the end of a member; the first one counts.
    pub(crate) fn record_member_end(
        &mut self,
        member: GangMember,
        attempt: AttemptId,
        record: ExitRecord,
    ) {
        let broken = self.attempts.broken_gangs.contains(&member.gang);
        let Some(live) = self.attempts.live.get_mut(&attempt).filter(|live| live.end.is_none())
        else {
            return;
        };
        let well = record.outcome == Outcome::Succeeded;
        let stopped = matches!(record.outcome, Outcome::Preempted | Outcome::NotStarted);
        live.end = Some(MemberEnded { record, follows: broken && stopped });
        let decides = member.rank == 0 && runs_once(live);
        if (!well || decides) && self.attempts.broken_gangs.insert(member.gang) {
            self.attempts.stop_other_members(member);
        }
        self.settle_gang(member);
    }

    /// Marks gangs with a failed member as broken, and ends gangs without live members.
    pub(crate) fn resume_gangs(&mut self) {
        let ended = |live: &LiveAttempt| live.gang.filter(|_| live.end.is_some());
        let found =
            self.attempts.live.values().filter_map(ended).map(|member| (member.gang, member));
        let found: BTreeMap<JobId, GangMember> = found.collect();
        for member in found.into_values() {
            let decides = |live: &LiveAttempt| {
                let is_first = live.gang.is_some_and(|member| member.rank == 0);
                live.failed() || (is_first && live.end.is_some() && runs_once(live))
            };
            if self.attempts.members(member).any(|(_, live)| decides(live))
                && self.attempts.broken_gangs.insert(member.gang)
            {
                self.attempts.stop_other_members(member);
            }
            self.settle_gang(member);
        }
    }

    /// Ends a gang once all of its members have ended.
    fn settle_gang(&mut self, member: GangMember) {
        let outcome = gang_outcome(self.attempts, self.inventory, member, self.unix);
        let Some(outcome) = outcome else { return };
        let members: Vec<AttemptId> =
            self.attempts.members(member).map(|(attempt, _)| attempt).collect();
        self.attempts.broken_gangs.remove(&member.gang);
        for attempt in members {
            self.end_member(attempt, &outcome);
        }
    }

    fn end_member(&mut self, attempt: AttemptId, gang: &GangOutcome) {
        let Some(mut live) = self.attempts.remove(attempt) else { return };
        self.accounting.refund(&live, self.round_at);
        let Some(end) = live.end.take() else { return };
        let mut record = gang.member_record(end);
        let event = JobEvent::Ended { outcome: gang.outcome, verdict: gang.verdict };
        let state = if gang.stopping { JobState::Stopping } else { live.state };
        let to = state.on(event).expect("a live attempt's job can always end");
        self.end_preemption(attempt, &live, &mut record, to);
        let run_times = match gang.outcome {
            Outcome::Succeeded => self.predictions.learn_end(&live, &record),
            _ => AttemptRunTimes::default(),
        };
        let ran_out_of = self.learn_end_memory(attempt, &live, &record);
        let out_of_memory = gang.ran_out.map(|after| OutOfMemoryRow { at_least: after.at_least });
        if let (JobState::Queued, Some(launch_spec)) = (to, &live.launch_spec) {
            let job = SubmittedJob::new(live.job, &launch_spec.spec, live.gang, live.number);
            let own = own_after(launch_spec.own, out_of_memory);
            let array = launch_spec.array.map(|place| place.array);
            self.enqueue(SubmittedJob { own, array, ..job }, live.submitted);
        }
        let end = AttemptEnd {
            to,
            verdict: gang.verdict,
            is_requested: live.requeue,
            reason: gang.outcome,
            record,
            run_times,
            ran_out_of,
            out_of_memory,
            done: live.done,
        };
        let frame = Box::new(ToAgent::EndAck { attempt });
        let ack = RoundEffect::Send { node: live.node, frame };
        self.record_end(attempt, live, end);
        self.effects.push(ack);
    }
}

impl GangOutcome {
    /// Returns a member's record, with the cause if another member ended it.
    fn member_record(&self, end: MemberEnded) -> ExitRecord {
        let MemberEnded { mut record, follows } = end;
        if let Some(after) = self.ran_out.as_ref().filter(|_| record.out_of_gpu_memory().is_some())
        {
            add_reason(&mut record.detail, after);
        }
        let alone = record.outcome == self.outcome && !follows;
        if follows && self.outcome == Outcome::Succeeded {
            // The member held its slice for the script, which succeeded.
            record.outcome = Outcome::Succeeded;
            record.exit = None;
            record.detail = String::new();
        } else if !alone && self.outcome != Outcome::Cancelled {
            record.detail = match record.outcome {
                Outcome::Succeeded => format!("its gang did not succeed: {}", self.cause),
                _ if follows => format!("stopped with its gang: {}", self.cause),
                _ => record.detail,
            };
        }
        record
    }
}

/// Returns how a gang ends; `None` while a member runs.
fn gang_outcome(
    attempts: &AttemptTable,
    inventory: &NodeInventory,
    member: GangMember,
    unix: Millis,
) -> Option<GangOutcome> {
    let members = || attempts.members(member).map(|(_, live)| live);
    let ends: Option<Vec<MemberEnd>> = members()
        .map(|live| {
            let end = live.end.as_ref()?;
            Some(MemberEnd { outcome: end.record.outcome, follows: end.follows })
        })
        .collect();
    let ends = ends.filter(|ends| !ends.is_empty())?;
    // If the script runs once, the outcomes of the other members don't count.
    let once = members().any(runs_once);
    let counts = |end: &&MemberEnd| !(once && end.follows);
    let outcome = decisive(ends.iter().filter(counts).copied());
    let cause = members().zip(&ends).find_map(|(live, end)| {
        let rank = live.gang?.rank;
        (end.outcome == outcome).then(|| format!("rank {rank} ended {outcome}"))
    });
    // One cancelled member cancels all: the others are stopped by its end.
    let stopping = members().any(|live| live.state == JobState::Stopping);
    let launch_spec = members().find_map(|live| live.launch_spec.as_ref());
    let short = members().filter(|live| {
        let record = live.end.as_ref().map(|end| &end.record);
        record.is_some_and(|record| record.out_of_gpu_memory().is_some())
    });
    // The largest of the slices that were too small: all members move together.
    let (had, refused) = short.fold((None, Bytes::ZERO), |(had, refused), live| {
        (had.max(Some(live.gpu_memory)), refused.max(live.refused))
    });
    let had = had.filter(|_| outcome == Outcome::OutOfMemory);
    let ran_out = launch_spec.zip(had).map(|(launch_spec, had)| {
        after_out_of_memory(inventory, launch_spec, (had, refused), unix)
    });
    let is_requeued = outcome != Outcome::Succeeded && members().any(|live| live.requeue);
    let verdict = match (is_requeued, &ran_out) {
        (true, _) => RetryVerdict::Requeue { charged: false },
        (false, Some(after)) => after.verdict,
        (false, None) => retry_verdict(launch_spec, outcome),
    };
    Some(GangOutcome { outcome, verdict, stopping, cause: cause.unwrap_or_default(), ran_out })
}

/// Returns whether the job's script runs once, on the first node.
fn runs_once(live: &LiveAttempt) -> bool {
    let launch = live.launch_spec.as_ref().map(|known| known.spec.run.batch.launch);
    launch == Some(LaunchStyle::Once)
}

/// Returns how a gang's attempt ended whose node was lost or rebooted before this leader's
/// time: its generation is older than the node's.
pub(crate) fn ended_before_leader(
    inventory: &NodeInventory,
    live: &LiveAttempt,
) -> Option<MemberEnded> {
    let node = inventory.nodes.get(&live.node)?;
    let lost = live.gang.is_some() && live.generation < node.generation;
    let record = || {
        let detail = format!("node {} was lost", node.name);
        record_without_exit(Outcome::Lost, detail)
    };
    lost.then(|| MemberEnded { record: record(), follows: false })
}

/// Returns what a member's node is sent because of the other members; `None` if they don't
/// matter.
pub(crate) fn frame_for_member(
    attempts: &AttemptTable,
    epoch: u64,
    attempt: AttemptId,
    live: &LiveAttempt,
) -> Option<MemberFrame> {
    let member = live.gang?;
    if live.end.is_some() {
        return Some(MemberFrame::Nothing);
    }
    match live.state {
        JobState::Starting | JobState::Running if attempts.broken_gangs.contains(&member.gang) => {
            Some(MemberFrame::Frame(match live.acknowledged {
                true => ToAgent::Stop { epoch, attempt, cause: StopCause::Preempt },
                false => ToAgent::Revoke { epoch, attempt },
            }))
        }
        // The members start together: no program waits for another member's slice to be created.
        JobState::Starting if attempts.members(member).any(|(_, l)| l.slice.is_none()) => {
            Some(MemberFrame::Nothing)
        }
        _ => None,
    }
}

/// Returns a member's rank and addresses for its program. Returns `None` while the node of
/// rank 0 is not connected, since its address is not known.
pub(crate) fn gang_position(
    attempts: &AttemptTable,
    inventory: &NodeInventory,
    member: GangMember,
    number: u32,
) -> Option<GangPosition> {
    let on: Vec<NodeId> = attempts
        .members(member)
        .filter(|(_, live)| live.gang.is_some_and(|member| member.local_rank() == 0))
        .map(|(_, live)| live.node)
        .collect();
    let nodes: Option<Vec<_>> =
        on.iter().map(|node| inventory.nodes.get(node).map(|node| node.name.clone())).collect();
    let first = attempts.of_job(member.gang);
    let devices = match first.is_some_and(runs_once) {
        true => devices_of_node(attempts, member)?,
        false => Vec::new(),
    };
    Some(GangPosition {
        gang: member.gang,
        rank: member.rank,
        size: member.shape.members(),
        local_rank: member.local_rank(),
        local_size: member.shape.per_node(),
        node_rank: member.node_rank(),
        nodes: nodes?,
        master: master_address(inventory, &on)?,
        port: member.port(number),
        devices,
    })
}

/// Returns the slices of the members on one node, by their numbers there; `None` while a slice is
/// being created.
fn devices_of_node(attempts: &AttemptTable, member: GangMember) -> Option<Vec<GangDevice>> {
    let on_node =
        |live: &LiveAttempt| live.gang.is_some_and(|other| other.node_rank() == member.node_rank());
    let members = attempts.members(member).filter(|(_, live)| on_node(live));
    let device = |live: &LiveAttempt| {
        let slice = live.slice.clone()?;
        Some(GangDevice { gpu: live.gpu.clone(), slot: live.slot, slice })
    };
    members.map(|(_, live)| device(live)).collect()
}

/// Returns the address by which the other nodes reach the first one.
fn master_address(inventory: &NodeInventory, nodes: &[NodeId]) -> Option<String> {
    let (first, others) = nodes.split_first()?;
    if others.is_empty() {
        return Some("127.0.0.1".to_owned());
    }
    let address = |node: &NodeId| {
        inventory.nodes.get(node)?.session.as_ref().map(|session| session.address.as_str())
    };
    let is_local = |text: &str| text.starts_with("127.") || text == "::1";
    let own = address(first)?;
    // Its address is local to the controller, so other nodes use its name.
    if is_local(own) && others.iter().any(|node| !address(node).is_some_and(is_local)) {
        return inventory.nodes.get(first).map(|node| node.name.to_string());
    }
    Some(own.to_owned())
}
