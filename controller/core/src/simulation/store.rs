//! The store as tables in memory: rounds are applied like in `store::commit`: in its order, with
//! the same compared states, under the constraints of the schema.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tessera_frames::cluster::MigReport;
use tessera_model::life::{JobState, Outcome};
use tessera_model::mig::Slot;
use tessera_model::share::{MpsShare, SharingMode, SmPercent};
use tessera_model::spec::{GpuRequest, JobSpec};
use tessera_model::{AttemptId, GangMember, GpuId, JobId, Millis, NodeId, PlanId};

use crate::LaunchSpec;
use crate::round::Round;
use crate::rows::findings::CommitFindings;
use crate::rows::growth::{GrowthRow, OpenGrowth};
use crate::rows::nodes::EndedPlan;
use crate::rows::nodes::LayoutPlanRow;
use crate::rows::nodes::NodeRegistration;
use crate::rows::overrides::AdminOverrideRow;
use crate::rows::overrides::OverrideChange;
use crate::rows::overrides::OverrideKind;
use crate::rows::overrides::OverrideTarget;
use crate::rows::preemptions::{OpenPreemption, SentBackJob};
use crate::rows::snapshot::GpuRow;
use crate::rows::snapshot::LiveRow;
use crate::rows::snapshot::NodeRow;
use crate::rows::snapshot::OpenLayoutRequest;
use crate::rows::snapshot::OpenPlan;
use crate::rows::snapshot::StoreSnapshot;
use crate::rows::submitted::{OwnMemory, SubmittedJob};
use crate::rows::transitions;
use crate::rows::transitions::EndedAttempt;
use crate::rows::transitions::Reservation;
use crate::rows::transitions::ResharedJob;
use crate::rows::transitions::WaitingJobCommand;
use crate::rows::updates::UpdatedJob;

/// Why a round was not committed.
pub(super) type Refused = String;

#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) spec: Arc<JobSpec>,
    pub(super) state: JobState,
    pub(super) attempt: Option<AttemptId>,
    attempts: u32,
    pub(super) charged: u32,
    pub(super) uncharged: u32,
    restart_reason: Option<Outcome>,
    done: u32,
    /// How often its user requeued it after its end.
    pub(super) again: u32,
    pub(super) own: OwnMemory,
    pub(super) gang: Option<GangMember>,
}

impl Job {
    fn reshare(&mut self, sm: SmPercent) {
        if let SharingMode::Mps(share) = self.spec.share {
            Arc::make_mut(&mut self.spec).share = SharingMode::Mps(MpsShare { sm, ..share });
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) row: LiveRow,
    pub(super) live: bool,
}

#[derive(Clone, Debug)]
struct Plan {
    gpu: GpuId,
    layout_gen: u64,
    open: bool,
    requested_layout: Option<OpenLayoutRequest>,
}

/// All tables.
#[derive(Clone, Debug, Default)]
pub(super) struct Store {
    pub(super) epoch: u64,
    pub(super) nodes: BTreeMap<NodeId, NodeRow>,
    pub(super) gpus: BTreeMap<GpuId, GpuRow>,
    pub(super) jobs: BTreeMap<JobId, Job>,
    pub(super) attempts: BTreeMap<AttemptId, Attempt>,
    attempt_slots: BTreeMap<(GpuId, u8), Holder>,
    plans: BTreeMap<PlanId, Plan>,
    pub(super) overrides: BTreeMap<(OverrideKind, OverrideTarget), AdminOverrideRow>,
    /// Jobs that ended for their migration.
    pub(super) migrated: BTreeSet<JobId>,
    migrating: BTreeSet<AttemptId>,
    growths: BTreeMap<AttemptId, OpenGrowth>,
    pub(super) preemptions: BTreeMap<AttemptId, OpenPreemption>,
    pub(super) sent_back: BTreeMap<JobId, SentBackJob>,
}

/// The holder of each memory slice, like `attempt_slots`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Holder {
    Alone(AttemptId),
    Tenancy { user: Arc<str>, start: u8, sharers: u32, sm: u32, bytes: u64, capacity: u64 },
}

pub(super) fn check(holds: bool, problem: impl FnOnce() -> String) -> Result<(), Refused> {
    if holds { Ok(()) } else { Err(problem()) }
}

impl Store {
    /// Accepts a job.
    pub(super) fn submit(&mut self, spec: JobSpec, hold: bool) -> (JobId, Vec<SubmittedJob>) {
        let job = JobId::from_number(u64::try_from(self.jobs.len()).unwrap() + 1);
        let state = if hold { JobState::Held } else { JobState::Queued };
        let spec = Arc::new(spec);
        let first = spec.gang.and_then(|shape| GangMember::of(job, job, shape));
        let members = first.map_or_else(|| vec![job], |member| member.all().collect());
        let mut submitted = Vec::new();
        for job in members {
            let gang = first.and_then(|first| GangMember::of(job, first.gang, first.shape));
            submitted.push(SubmittedJob::new(job, &spec, gang, 0));
            let row = Job {
                spec: Arc::clone(&spec),
                state,
                attempt: None,
                attempts: 0,
                charged: 0,
                uncharged: 0,
                restart_reason: None,
                done: 0,
                again: 0,
                own: OwnMemory::default(),
                gang,
            };
            self.jobs.insert(job, row);
        }
        (job, if hold { Vec::new() } else { submitted })
    }

    /// Commits a round, all of it or nothing.
    pub(super) fn commit(&mut self, round: &Round, epoch: u64) -> Result<CommitFindings, Refused> {
        check(self.epoch == epoch, || format!("epoch {epoch} was deposed by {}", self.epoch))?;
        let mut next = self.clone();
        let findings = next.apply(round)?;
        next.gangs_are_whole()?;
        *self = next;
        Ok(findings)
    }

    /// Either every member of a gang has a live attempt or none has, and they end together, which
    /// `store::gangs` ensures.
    fn gangs_are_whole(&self) -> Result<(), Refused> {
        for (job, row) in &self.jobs {
            let Some(member) = row.gang.filter(|member| member.rank == 0) else { continue };
            let rows: Vec<&Job> = member.all().map(|job| &self.jobs[&job]).collect();
            let live = rows.iter().filter(|row| row.attempt.is_some()).count();
            let over = rows.iter().filter(|row| row.state.is_final()).count();
            let whole = |count: usize| count == 0 || count == rows.len();
            check(whole(live), || format!("{live} of gang {job:?} have attempts"))?;
            check(whole(over), || format!("{over} of gang {job:?} have ended"))?;
            let same = rows.iter().all(|other| !row.state.is_final() || other.state == row.state);
            check(same, || format!("gang {job:?} ended in several ways"))?;
            let tries = rows.iter().all(|other| {
                (other.attempts, other.charged, other.uncharged, other.own)
                    == (row.attempts, row.charged, row.uncharged, row.own)
            });
            check(tries, || format!("the tries of gang {job:?} differ"))?;
        }
        Ok(())
    }

    /// Returns the jobs and all members of their gangs, once each.
    pub(super) fn with_gangs(&self, jobs: Vec<JobId>) -> Vec<JobId> {
        let mut all = Vec::new();
        for job in jobs {
            match self.jobs.get(&job).and_then(|row| row.gang) {
                Some(member) => all.extend(member.all()),
                None => all.push(job),
            }
        }
        all
    }

    fn apply(&mut self, round: &Round) -> Result<CommitFindings, Refused> {
        round.nodes.registrations.iter().try_for_each(|node| self.attach(node))?;
        for (node, generation, lost) in &round.nodes.generations {
            let row = self.nodes.get_mut(node).filter(|row| row.generation < *generation);
            let row = row.ok_or_else(|| format!("{node} can't rise to {generation}"))?;
            (row.generation, row.lost) = (*generation, *lost);
        }
        for (node, report) in &round.nodes.gpu_reports {
            check(self.nodes.contains_key(node), || format!("a GPU of unknown {node}"))?;
            if let MigReport::On { geometry } = &report.mig {
                let slots = report.instances.iter().map(|i| i.slot).collect::<Vec<_>>();
                geometry.check(&slots).map_err(|e| format!("instance_slots: {e}"))?;
            }
            let known = self.gpus.get(&report.gpu).map_or(0, |row| row.layout_gen);
            let layout_gen = known.max(report.layout_gen);
            let row = GpuRow { node: *node, layout_gen, report: report.clone() };
            self.gpus.insert(report.gpu.clone(), row);
        }
        round.plans.ended.iter().for_each(|closed| self.close(closed));
        self.launch(round)?;
        self.start(round)?;
        self.stop(round)?;
        for ResharedJob { job, attempt, sm } in &round.jobs.reshared {
            let row = self.jobs.get_mut(job).filter(|row| row.attempt == Some(*attempt));
            row.ok_or_else(|| format!("{job:?} has another attempt"))?.reshare(*sm);
        }
        for UpdatedJob { job, attempt, update } in &round.jobs.updated {
            let row = self.jobs.get_mut(job).filter(|row| row.attempt == Some(*attempt));
            let row = row.ok_or_else(|| format!("{job:?} has another attempt"))?;
            update.apply_to(Arc::make_mut(&mut row.spec));
        }
        for migrating in &round.jobs.migrations {
            let row =
                self.jobs.get(&migrating.job).filter(|row| row.attempt == Some(migrating.attempt));
            let row = row.ok_or_else(|| format!("{:?} has another attempt", migrating.job))?;
            check(row.state == JobState::Running, || format!("{:?} doesn't run", migrating.job))?;
            assert!(row.spec.run.checkpoint_signal.is_some(), "{:?} can't be moved", migrating.job);
            let is_alone = row.spec.share.part().is_none();
            assert!(is_alone, "{:?} can't be moved", migrating.job);
            self.migrating.insert(migrating.attempt);
        }
        round.jobs.requested_preemptions().try_for_each(|request| self.preempt(request))?;
        round.jobs.growths.iter().try_for_each(|growth| self.grow(growth))?;
        for need in &round.jobs.needs {
            let row = self.jobs.get_mut(&need.job).filter(|row| row.attempt == Some(need.attempt));
            let row = row.ok_or_else(|| format!("{:?} has another attempt", need.job))?;
            row.own.held = row.own.held.max(need.held);
            row.own.multiprocessors = row.own.multiprocessors.max(need.multiprocessors);
        }
        distinct(round.jobs.ended.iter().map(|e| e.job))?;
        round.jobs.ended.iter().try_for_each(|ended| self.end(ended))?;
        round.jobs.preemptions.iter().try_for_each(|row| self.close_preemption(row))?;
        let moved: Vec<_> = round.jobs.commands.iter().map(|c| self.command(c)).collect();
        distinct(round.jobs.reservations.iter().map(|r| r.job))?;
        round.jobs.reservations.iter().try_for_each(|reservation| self.reserve(reservation))?;
        round.plans.begun.iter().try_for_each(|plan| self.order(plan))?;
        for change in &round.overrides.changes {
            match change {
                OverrideChange::Set(word) => {
                    self.overrides.insert((word.kind, word.target.clone()), word.clone());
                }
                OverrideChange::Clear(kind, target) => {
                    self.overrides.remove(&(*kind, target.clone()));
                }
            }
        }
        Ok(self.findings(round, moved))
    }

    /// Keeps the predictions about an attempt. No job is moved twice from one attempt.
    fn grow(&mut self, growth: &GrowthRow) -> Result<(), Refused> {
        let GrowthRow { job, attempt, capacity, .. } = *growth;
        if growth.outcome.is_some() {
            self.growths.remove(&attempt);
        } else if growth.forecast.is_some() {
            let open = OpenGrowth { job, attempt, capacity, moved: false };
            let kept = self.growths.entry(attempt).or_insert(open);
            check(!(kept.moved && growth.at_least.is_some()), || format!("{job:?} moves twice"))?;
            kept.moved |= growth.at_least.is_some();
        }
        if let Some(at_least) = growth.at_least {
            let row = self.jobs.get_mut(&job).filter(|row| row.attempt == Some(attempt));
            let row = row.ok_or_else(|| format!("{job:?} has another attempt"))?;
            check(at_least > capacity, || format!("{job:?} grows to {at_least}"))?;
            row.own.at_least = row.own.at_least.max(Some(at_least));
        }
        Ok(())
    }

    fn attach(&mut self, node: &NodeRegistration) -> Result<(), Refused> {
        let named = self.nodes.values().find(|row| row.name == node.name);
        check(named.is_none_or(|row| row.node == node.node), || "a name twice".to_owned())?;
        let known = self.nodes.get(&node.node).map_or(0, |row| row.generation);
        let row = NodeRow {
            node: node.node,
            name: node.name.clone(),
            generation: known.max(node.generation),
            lost: false,
            boot: node.boot,
            software: node.software.clone(),
            cores: node.cores,
            memory_bytes: node.memory_bytes,
            mps: node.mps,
            kernel: node.kernel,
            last_seen_unix: Millis::ZERO,
        };
        self.nodes.insert(node.node, row);
        Ok(())
    }

    fn close(&mut self, closed: &EndedPlan) {
        if let Some(plan) = self.plans.get_mut(&closed.plan) {
            plan.open = false;
        }
    }

    /// Moves a job with its attempt, if it is in one of the expected states.
    fn advance(
        &mut self,
        job: JobId,
        attempt: AttemptId,
        from: &[JobState],
        to: JobState,
    ) -> Result<&mut LiveRow, Refused> {
        let row = self.jobs.get_mut(&job).ok_or_else(|| format!("{job:?} is unknown"))?;
        check(row.attempt == Some(attempt) && from.contains(&row.state), || {
            format!("{job:?} with {attempt} is not {from:?}: {:?} {:?}", row.state, row.attempt)
        })?;
        row.state = to;
        let kept = self.attempts.get_mut(&attempt).filter(|kept| kept.live);
        let kept = kept.ok_or_else(|| format!("{attempt} is not live"))?;
        kept.row.state = to;
        Ok(&mut kept.row)
    }

    fn launch(&mut self, round: &Round) -> Result<(), Refused> {
        distinct(round.jobs.ready.iter().map(|r| r.job))?;
        for ready in &round.jobs.ready {
            let from = &[JobState::Placing];
            let row = self.advance(ready.job, ready.attempt, from, JobState::Starting)?;
            row.slice = Some(ready.slice.clone());
        }
        Ok(())
    }

    fn start(&mut self, round: &Round) -> Result<(), Refused> {
        distinct(round.jobs.started.iter().map(|s| s.job))?;
        for started in &round.jobs.started {
            let from = &[JobState::Starting];
            self.advance(started.job, started.attempt, from, JobState::Running)?;
        }
        Ok(())
    }

    fn stop(&mut self, round: &Round) -> Result<(), Refused> {
        use JobState as S;
        distinct(round.jobs.stopping.iter().map(|s| s.job))?;
        for stopping in &round.jobs.stopping {
            let from = &[S::Placing, S::Starting, S::Running, S::Stopping];
            self.advance(stopping.job, stopping.attempt, from, S::Stopping)?;
        }
        Ok(())
    }

    fn end(&mut self, ended: &EndedAttempt) -> Result<(), Refused> {
        self.advance(ended.job, ended.attempt, &[ended.from], ended.to)?;
        self.attempts.get_mut(&ended.attempt).unwrap().live = false;
        let row = &self.attempts[&ended.attempt].row;
        check(row.share.is_some() == ended.shared, || "its slots stay held".to_owned())?;
        let (gpu, start) = (row.gpu.clone(), row.slot.map_or(0, |slot| slot.start));
        let left = row.share.clone();
        self.attempt_slots.retain(|(of, _), holder| match (holder, &left) {
            (Holder::Alone(attempt), _) => *attempt != ended.attempt,
            (Holder::Tenancy { start: at, sharers, sm, bytes, .. }, Some(left))
                if *of == gpu && *at == start =>
            {
                *sharers -= 1;
                *sm -= left.share.sm_percent();
                *bytes -= left.share.memory().get();
                *sharers > 0
            }
            (Holder::Tenancy { .. }, _) => true,
        });
        let job = self.jobs.get_mut(&ended.job).unwrap();
        check(!ended.to.has_live_attempt(), || format!("{:?} ends as {}", ended.job, ended.to))?;
        job.attempt = None;
        job.charged += u32::from(ended.charged);
        job.uncharged += u32::from(ended.uncharged);
        job.done = ended.done;
        if let Some(event) = ended.out_of_memory {
            check(!ended.charged && !ended.uncharged, || {
                "memory that ran out was charged".to_owned()
            })?;
            check(event.at_least >= job.own.at_least, || "a size was forgotten".to_owned())?;
            let (events, at_least) = (job.own.events + 1, event.at_least);
            job.own = OwnMemory { events, at_least, ..job.own };
        }
        let preempted = ended.record.outcome == Outcome::Preempted;
        if self.migrating.remove(&ended.attempt) && preempted && ended.to == JobState::Queued {
            assert!(!ended.charged, "{:?} was charged for a move", ended.job);
            self.migrated.insert(ended.job);
        } else {
            self.migrated.remove(&ended.job);
        }
        if !ended.to.is_final() {
            job.restart_reason = Some(ended.reason);
        }
        Ok(())
    }

    fn command(&mut self, command: &WaitingJobCommand) -> Option<JobState> {
        let again = command.change == transitions::WaitingJobChange::RunAgain;
        let takes = |job: &&mut Job| match job.state {
            JobState::Queued | JobState::Held => !again,
            state => again && state.is_final(),
        };
        let job = self.jobs.get_mut(&command.job).filter(takes)?;
        match &command.change {
            transitions::WaitingJobChange::To(to) => {
                if job.state == JobState::Held && *to == JobState::Queued {
                    job.uncharged = 0;
                }
                job.state = *to;
            }
            transitions::WaitingJobChange::GiveUp => job.state = JobState::Cancelled,
            transitions::WaitingJobChange::RunAgain => {
                job.state = JobState::Queued;
                (job.charged, job.uncharged, job.done) = (0, 0, 0);
                job.own = OwnMemory { events: 0, at_least: None, ..job.own };
                job.again += 1;
            }
            transitions::WaitingJobChange::Share(sm) => job.reshare(*sm),
            transitions::WaitingJobChange::Update(update) => {
                update.apply_to(Arc::make_mut(&mut job.spec));
            }
        }
        Some(job.state)
    }

    fn reserve(&mut self, reservation: &Reservation) -> Result<(), Refused> {
        let (job, attempt) = (reservation.job, reservation.attempt);
        check(self.nodes.contains_key(&reservation.node), || "attempts_node_fkey".to_owned())?;
        let twice = self.attempts.values().any(|kept| {
            kept.row.job == job && (kept.live || kept.row.number == reservation.number)
        });
        check(!twice, || format!("{job:?} has such an attempt: {}", reservation.number))?;
        let row = self.jobs.get_mut(&job).ok_or_else(|| format!("{job:?} is unknown"))?;
        check(row.state == JobState::Queued && row.attempt.is_none(), || {
            format!("{job:?} is reserved a place, but is {}", row.state)
        })?;
        check(Some(reservation.gpu_memory) >= row.own.at_least, || {
            format!("{job:?} is given {}, but {:?}", reservation.gpu_memory, row.own)
        })?;
        let is_unknown = row.spec.gpu == GpuRequest::Unknown && row.spec.share.part().is_none();
        // Managed memory may exceed every slice: then the job gets a largest one.
        let largest = self.gpus.values().filter_map(|gpu| match &gpu.report.mig {
            MigReport::On { geometry } => geometry.profiles.iter().map(|p| p.memory).max(),
            MigReport::Off | MigReport::Unsupported => Some(gpu.report.memory),
        });
        let held = row.own.held.min(largest.max());
        check(!is_unknown || Some(reservation.gpu_memory) >= held, || {
            format!("{job:?} is given {}, but it held {:?}", reservation.gpu_memory, row.own)
        })?;
        let state = match reservation.slice {
            Some(_) => JobState::Starting,
            None => JobState::Placing,
        };
        (row.state, row.attempt) = (state, Some(attempt));
        row.attempts += 1;
        for slot in &reservation.slots {
            let key = (reservation.place.gpu.clone(), *slot);
            self.hold(key, reservation)?;
        }
        let row = LiveRow {
            attempt,
            job,
            state,
            number: reservation.number,
            node: reservation.node,
            generation: reservation.generation,
            gpu: reservation.place.gpu.clone(),
            slot: reservation.place.slot,
            share: reservation.share.clone(),
            slice: reservation.slice.clone(),
            decision: reservation.decision,
            waited: Millis::ZERO,
            ran: None,
            done: self.jobs[&job].done,
            gpu_memory: Some(reservation.gpu_memory),
        };
        self.attempts.insert(attempt, Attempt { row, live: true });
        Ok(())
    }

    /// Writes a row of `attempt_slots`, under its checks.
    fn hold(&mut self, key: (GpuId, u8), reservation: &Reservation) -> Result<(), Refused> {
        let known = self.attempt_slots.get(&key).cloned();
        let Some(sharer) = &reservation.share else {
            check(known.is_none(), || format!("attempt_slots: {known:?} holds {key:?}"))?;
            self.attempt_slots.insert(key, Holder::Alone(reservation.attempt));
            return Ok(());
        };
        let own = reservation.place.slot.map_or(0, |slot| slot.start);
        let capacity = reservation.capacity.get();
        let (before, sm, bytes) = match &known {
            None => (0, 0, 0),
            Some(Holder::Tenancy { user, start, sharers, sm, bytes, capacity: c })
                if *user == sharer.user && *start == own && *c == capacity =>
            {
                (*sharers, *sm, *bytes)
            }
            Some(other) => return Err(format!("attempt_slots: {other:?} holds {key:?}")),
        };
        let sm = sm + sharer.share.sm_percent();
        let bytes = bytes + sharer.share.memory().get();
        check(sm <= 100 && bytes <= capacity, || format!("attempt_slots: {sm} %, {bytes}"))?;
        let (user, sharers) = (sharer.user.clone(), before + 1);
        let row = Holder::Tenancy { user, start: own, sharers, sm, bytes, capacity };
        self.attempt_slots.insert(key, row);
        Ok(())
    }

    fn order(&mut self, plan: &LayoutPlanRow) -> Result<(), Refused> {
        let gpu = self.gpus.get_mut(&plan.gpu).filter(|gpu| gpu.layout_gen < plan.layout_gen);
        let gpu = gpu.ok_or_else(|| format!("plan {} of {} is old", plan.layout_gen, plan.gpu))?;
        gpu.layout_gen = plan.layout_gen;
        let others = || self.plans.values().filter(|other| other.gpu == plan.gpu);
        check(others().all(|other| !other.open), || "layout_changes_one_open".to_owned())?;
        check(others().all(|o| o.layout_gen != plan.layout_gen), || "a number twice".to_owned())?;
        let requested_layout = plan
            .requested
            .clone()
            .map(|requested| OpenLayoutRequest { row: plan.clone(), requested });
        let row = Plan {
            gpu: plan.gpu.clone(),
            layout_gen: plan.layout_gen,
            open: true,
            requested_layout,
        };
        self.plans.insert(plan.plan, row);
        Ok(())
    }

    fn findings(&self, round: &Round, moved: Vec<Option<JobState>>) -> CommitFindings {
        let states = |job: &JobId| Some((*job, self.jobs.get(job)?.state.word().to_owned()));
        let untaken = round.jobs.commands.iter().zip(&moved).filter(|(_, moved)| moved.is_none());
        CommitFindings {
            launch_specs: self.launch_specs(round.jobs.reservations.iter().map(|r| r.job)),
            released: self.launch_specs(round.released(&moved)),
            unmoved: untaken.filter_map(|(command, _)| states(&command.job)).collect(),
            // No job of the simulation waits for another one.
            dependencies: Vec::new(),
            has_notifications: false,
            moved,
        }
    }

    fn launch_specs(&self, jobs: impl IntoIterator<Item = JobId>) -> HashMap<JobId, LaunchSpec> {
        let launch_spec = |job: JobId| {
            let row = self.jobs.get(&job)?;
            let launch_spec = LaunchSpec {
                spec: Arc::clone(&row.spec),
                array: None,
                gang: row.gang,
                traceparent: None,
                charged: row.charged,
                uncharged: row.uncharged,
                attempts: row.attempts,
                relimited: false,
                restart_reason: row.restart_reason,
                waited: Millis::ZERO,
                done: row.done,
                own: row.own,
            };
            Some((job, launch_spec))
        };
        jobs.into_iter().filter_map(launch_spec).collect()
    }

    /// Returns everything that a leader needs to begin.
    pub(super) fn snapshot(&self) -> StoreSnapshot {
        let queued = self.jobs.iter().filter(|(_, job)| job.state == JobState::Queued);
        let waiting = queued.map(|(id, job)| SubmittedJob {
            done: job.done,
            own: job.own,
            ..SubmittedJob::new(*id, &job.spec, job.gang, job.attempts).after(job.restart_reason)
        });
        let live: Vec<_> = self.live().cloned().collect();
        let open = self.plans.iter().filter(|(_, plan)| plan.open);
        StoreSnapshot {
            nodes: self.nodes.values().cloned().collect(),
            gpus: self.gpus.values().cloned().collect(),
            waiting: waiting.collect(),
            launch_specs: self.launch_specs(live.iter().map(|row| row.job)),
            plans: open
                .map(|(id, p)| OpenPlan {
                    plan: *id,
                    gpu: p.gpu.clone(),
                    requested_layout: p.requested_layout.clone(),
                })
                .collect(),
            overrides: self.overrides.values().cloned().collect(),
            growths: self
                .growths
                .values()
                .filter(|growth| !self.jobs[&growth.job].state.is_final())
                .copied()
                .collect(),
            preemptions: self.preemptions.values().cloned().collect(),
            sent_back: self
                .sent_back
                .values()
                .filter(|entry| !self.jobs[&entry.job].state.is_final())
                .copied()
                .collect(),
            live,
            ..StoreSnapshot::default()
        }
    }

    /// Returns the live attempts.
    pub(super) fn live(&self) -> impl Iterator<Item = &LiveRow> {
        self.attempts.values().filter(|kept| kept.live).map(|kept| &kept.row)
    }

    /// Returns a live attempt's slot.
    pub(super) fn place(&self, attempt: AttemptId) -> Option<(&GpuId, Option<Slot>)> {
        let kept = self.attempts.get(&attempt).filter(|kept| kept.live)?;
        Some((&kept.row.gpu, kept.row.slot))
    }
}

/// A batch changes exactly as many rows as it names, so no row may be named twice.
fn distinct(jobs: impl Iterator<Item = JobId>) -> Result<(), Refused> {
    let mut seen = BTreeSet::new();
    jobs.into_iter()
        .try_for_each(|job| check(seen.insert(job), || format!("{job:?} is twice in one batch")))
}
