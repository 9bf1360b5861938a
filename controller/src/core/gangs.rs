//! Members of gangs live and die together.
//!
//! In the store every member of a gang has a live attempt, or none has: they are reserved in one
//! round, and their ends are recorded in one. An end that is heard of before the last is kept here
//! only, as [`Over`]; its node keeps the record until it is acknowledged, and tells it again to the
//! next leader. A node that was lost meanwhile is known by its generation.
//!
//! So a gang *breaks* when a member ends in any way but well: the others are told to stop, as often
//! as it takes, and once the last is over the gang goes where its retry rules say.

use std::collections::BTreeMap;

use tessera_model::gang::{MemberEnd, decisive};
use tessera_model::life::{JobEvent, JobState, Outcome, Verdict};
use tessera_model::{AttemptId, JobId, Member, NodeId};
use tessera_placement::{ClusterView, Explanation, Place};
use tessera_wire::frames::{ExitRecord, GangPlace, StopCause, ToAgent};
use uuid::Uuid;

use super::attempts::verdict;
use super::foresight::Lasted;
use super::{Cluster, Effect, Live, Round};
use crate::ports::JobMoved;
use crate::store::moves::{self, record_without_exit};
use crate::store::submit::FreshJob;

/// How a member ended, until all have.
#[derive(Clone, Debug)]
pub(super) struct Over {
    record: ExitRecord,
    /// Whether it was stopped, or never started, since another one had ended before.
    follows: bool,
}

/// What a policy said of one member.
pub(super) type Seated = (JobId, Place, Explanation);

impl Cluster {
    /// Returns the live attempts of a gang, by rank.
    pub(super) fn members(&self, member: Member) -> impl Iterator<Item = (AttemptId, &Live)> {
        member.all().filter_map(|job| {
            let attempt = *self.attempts.get(&job)?;
            Some((attempt, self.live.get(&attempt)?))
        })
    }

    /// Returns the attempts that share an attempt's fate: its gang's, or itself.
    pub(super) fn companions(&self, attempt: AttemptId) -> Vec<AttemptId> {
        match self.live.get(&attempt).and_then(|live| live.gang) {
            Some(member) => self.members(member).map(|(attempt, _)| attempt).collect(),
            None => vec![attempt],
        }
    }

    /// Reserves the seats of a whole gang, or none.
    pub(super) fn reserve_gang(
        &mut self,
        seats: Vec<Seated>,
        view: &ClusterView,
        mint: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) {
        let waits = seats.iter().all(|(job, _, _)| self.ranks.contains_key(job));
        let found: Option<Vec<_>> = seats
            .into_iter()
            .map(|(job, place, why)| self.reservation(job, place, why, view, mint))
            .collect();
        for reservation in found.filter(|_| waits).into_iter().flatten() {
            self.take_place(reservation, round);
        }
    }

    /// Takes in that a member is over; the first end counts.
    pub(super) fn member_over(
        &mut self,
        member: Member,
        attempt: AttemptId,
        record: ExitRecord,
        round: &mut Round,
    ) {
        let broken = self.broken.contains(&member.gang);
        let Some(live) = self.live.get_mut(&attempt).filter(|live| live.over.is_none()) else {
            return;
        };
        let well = record.outcome == Outcome::Succeeded;
        let stopped = matches!(record.outcome, Outcome::Preempted | Outcome::NotStarted);
        live.over = Some(Over { record, follows: broken && stopped });
        if !well && self.broken.insert(member.gang) {
            self.stop_others(member);
        }
        self.settle_gang(member, round);
    }

    /// Everybody else is to stop: at once where no launch was ever sent.
    fn stop_others(&mut self, member: Member) {
        for job in member.all() {
            let Some(attempt) = self.attempts.get(&job) else { continue };
            let Some(live) = self.live.get_mut(attempt).filter(|live| live.over.is_none()) else {
                continue;
            };
            live.sent = None;
            if live.state == JobState::Placing {
                let record = record_without_exit(Outcome::NotStarted, String::new());
                live.over = Some(Over { record, follows: true });
            }
        }
    }

    /// Attempts of a generation that is no more are over: their node was lost, or rebooted, before
    /// this leader came.
    pub(super) fn over_before(&self, live: &Live) -> Option<Over> {
        let node = self.nodes.get(&live.node)?;
        let lost = live.gang.is_some() && live.generation < node.generation;
        let record = || {
            let detail = format!("node {} was lost", node.name);
            record_without_exit(Outcome::Lost, detail)
        };
        lost.then(|| Over { record: record(), follows: false })
    }

    /// Marks a gang of which a member was found over as broken, and ends it if nobody is left.
    pub(super) fn resume_gangs(&mut self, round: &mut Round) {
        let over = |live: &Live| live.gang.filter(|_| live.over.is_some());
        let found = self.live.values().filter_map(over).map(|member| (member.gang, member));
        let found: BTreeMap<JobId, Member> = found.collect();
        for member in found.into_values() {
            if self.members(member).any(|(_, live)| live.failed())
                && self.broken.insert(member.gang)
            {
                self.stop_others(member);
            }
            self.settle_gang(member, round);
        }
    }

    /// Ends a gang once all of its members are over.
    fn settle_gang(&mut self, member: Member, round: &mut Round) {
        let members: Vec<AttemptId> = self.members(member).map(|(attempt, _)| attempt).collect();
        let ends: Option<Vec<MemberEnd>> = self
            .members(member)
            .map(|(_, live)| {
                let over = live.over.as_ref()?;
                Some(MemberEnd { outcome: over.record.outcome, follows: over.follows })
            })
            .collect();
        let Some(ends) = ends.filter(|ends| !ends.is_empty()) else { return };
        let outcome = decisive(ends.iter().copied());
        let cause = self.members(member).zip(&ends).find_map(|((_, live), end)| {
            let rank = live.gang?.rank;
            (end.outcome == outcome).then(|| format!("rank {rank} ended {outcome}"))
        });
        // One word stops all: whoever was not told yet is stopped by the others' end.
        let stopping = self.members(member).any(|(_, live)| live.state == JobState::Stopping);
        let sheet = self.members(member).find_map(|(_, live)| live.sheet.as_ref());
        let verdict = verdict(sheet, outcome);
        let fate = Fate { outcome, verdict, stopping, cause: cause.unwrap_or_default() };
        self.broken.remove(&member.gang);
        for attempt in members {
            self.end_member(attempt, &fate, round);
        }
    }

    fn end_member(&mut self, attempt: AttemptId, fate: &Fate, round: &mut Round) {
        let Some(mut live) = self.live.remove(&attempt) else { return };
        self.attempts.remove(&live.job);
        self.refund(&live);
        let Some(over) = live.over.take() else { return };
        let record = fate.tell(over);
        let event = JobEvent::Ended { outcome: fate.outcome, verdict: fate.verdict };
        let state = if fate.stopping { JobState::Stopping } else { live.state };
        let to = state.on(event).expect("a live attempt's job can always end");
        let lasted = match fate.outcome {
            Outcome::Succeeded => self.learn_end(&live, &record),
            _ => Lasted::default(),
        };
        let ran_out_of = self.learn_memory_of(attempt, &live, &record);
        let requeued = to == JobState::Queued;
        if let (true, Some(sheet)) = (requeued, &live.sheet) {
            let fresh = FreshJob::new(live.job, &sheet.spec, live.gang, live.number);
            self.enqueue(fresh, live.submitted);
        }
        round.ended.push(moves::Ended {
            job: live.job,
            attempt,
            from: live.state,
            to,
            charged: requeued && fate.verdict == (Verdict::Requeue { charged: true }),
            shared: false,
            uncharged: matches!(fate.verdict, Verdict::Requeue { charged: false } | Verdict::Hold),
            reason: fate.outcome,
            gang: live.gang.map(|member| member.gang),
            record,
            lasted,
            ran_out_of,
            foretold: live.foretold.and_then(|foretold| foretold.prediction),
            done: live.done,
        });
        round.effects.push(Effect::Moved(JobMoved { job: live.job, attempt: None, state: to }));
        let frame = Box::new(ToAgent::EndAck { attempt });
        round.effects.push(Effect::Send { node: live.node, frame });
    }

    /// What a member's node has to be told because of the others; `None` if it is to be told what
    /// any attempt is.
    pub(super) fn frame_for_member(&self, attempt: AttemptId, live: &Live) -> Option<Told> {
        let member = live.gang?;
        if live.over.is_some() {
            return Some(Told::Nothing);
        }
        match live.state {
            JobState::Starting | JobState::Running if self.broken.contains(&member.gang) => {
                let epoch = self.epoch;
                Some(Told::Frame(match live.acknowledged {
                    true => ToAgent::Stop { epoch, attempt, cause: StopCause::Preempt },
                    false => ToAgent::Revoke { epoch, attempt },
                }))
            }
            // They start together: nobody's program waits for a slice that is being made.
            JobState::Starting if self.members(member).any(|(_, l)| l.slice.is_none()) => {
                Some(Told::Nothing)
            }
            _ => None,
        }
    }

    /// Returns a member's place as its program is to be told it; `None` while rank 0's node is not
    /// connected, so that nobody knows how it is reached.
    pub(super) fn gang_place(&self, member: Member, number: u32) -> Option<GangPlace> {
        let on: Vec<NodeId> = self
            .members(member)
            .filter(|(_, live)| live.gang.is_some_and(|member| member.local_rank() == 0))
            .map(|(_, live)| live.node)
            .collect();
        let nodes: Option<Vec<_>> =
            on.iter().map(|node| self.nodes.get(node).map(|node| node.name.clone())).collect();
        Some(GangPlace {
            gang: member.gang,
            rank: member.rank,
            size: member.shape.members(),
            local_rank: member.local_rank(),
            local_size: member.shape.per_node(),
            node_rank: member.node_rank(),
            nodes: nodes?,
            master: self.master(&on)?,
            port: member.port(number),
        })
    }

    /// Returns how the others reach the first of some nodes.
    fn master(&self, nodes: &[NodeId]) -> Option<String> {
        let (first, others) = nodes.split_first()?;
        if others.is_empty() {
            return Some("127.0.0.1".to_owned());
        }
        let address = |node: &NodeId| {
            self.nodes.get(node)?.session.as_ref().map(|session| session.address.as_str())
        };
        let is_local = |text: &str| text.starts_with("127.") || text == "::1";
        let own = address(first)?;
        // It stands beside its controller: from elsewhere it goes by its name.
        if is_local(own) && others.iter().any(|node| !address(node).is_some_and(is_local)) {
            return self.nodes.get(first).map(|node| node.name.to_string());
        }
        Some(own.to_owned())
    }
}

/// What is to be said of a member to its node.
pub(super) enum Told {
    /// Nothing, whatever its own state says.
    Nothing,
    /// This.
    Frame(ToAgent),
}

impl Live {
    /// Whether it is over, and not well.
    fn failed(&self) -> bool {
        self.over.as_ref().is_some_and(|over| over.record.outcome != Outcome::Succeeded)
    }
}

/// What becomes of a gang.
struct Fate {
    outcome: Outcome,
    verdict: Verdict,
    /// Whether its user wanted it gone.
    stopping: bool,
    /// What decided, for people.
    cause: String,
}

impl Fate {
    /// Tells in a member's record why it ended, if that was not its own doing.
    fn tell(&self, over: Over) -> ExitRecord {
        let Over { mut record, follows } = over;
        let alone = record.outcome == self.outcome && !follows;
        if !alone && self.outcome != Outcome::Cancelled {
            record.detail = match record.outcome {
                Outcome::Succeeded => format!("its gang is not done: {}", self.cause),
                _ if follows => format!("stopped with its gang: {}", self.cause),
                _ => record.detail,
            };
        }
        record
    }
}
