//! The agent's part of a node: its reaction to each frame, like that of `gpu-agent`.

use std::collections::{BTreeMap, BTreeSet};

use tessera_frames::cluster::{
    AttemptReport, AttemptStatus, GpuHealth, LaunchOrder, MigReport, PlanEnd, PlanOrder, StopCause,
    ToAgent, ToController, Welcome,
};
use tessera_model::lease::LeaseTerms;
use tessera_model::life::Outcome;
use tessera_model::mig::{PlanStep, Slot};
use tessera_model::share::{KernelShare, SliceShare};
use tessera_model::{AttemptId, GpuId, Millis};

use super::machine::{Death, Facts, Machine, Process, StepFailure};

/// A plan under way.
#[derive(Debug)]
pub(super) struct Run {
    order: PlanOrder,
    done: usize,
    leaving: BTreeSet<Slot>,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Alone,
    Greeting,
    Clearing(Welcome),
    Live {
        terms: LeaseTerms,
        renew_at: Millis,
    },
}

/// State that is lost when the agent dies.
#[derive(Debug, Default)]
pub(super) struct Agent {
    stage: Stage,
    /// Attempts that are journalled and not started, with the last command about each.
    pub(super) spawning: BTreeMap<AttemptId, Option<Death>>,
    pub(super) plans: BTreeMap<GpuId, Run>,
}

impl Agent {
    pub(super) fn is_live(&self) -> bool {
        matches!(self.stage, Stage::Live { .. })
    }

    /// Returns whether it has no connection.
    pub(super) fn is_alone(&self) -> bool {
        matches!(self.stage, Stage::Alone)
    }

    pub(super) fn connected(&mut self) {
        self.stage = Stage::Greeting;
    }

    pub(super) fn disconnected(&mut self) {
        self.stage = Stage::Alone;
    }
}

impl Machine {
    fn agent(&mut self) -> &mut Agent {
        self.agent.as_mut().expect("a dead agent receives nothing")
    }

    /// Handles a frame and returns the agent's answers in order.
    pub(super) fn receive(&mut self, frame: ToAgent, now: Millis) -> Vec<ToController> {
        match frame {
            ToAgent::Welcome(welcome) => self.welcomed(welcome),
            ToAgent::Refused { .. } => {
                self.agent().disconnected();
                Vec::new()
            }
            ToAgent::RenewOk { sent, generation } => {
                self.renewed(sent, generation);
                Vec::new()
            }
            ToAgent::Launch(order) if self.obeys(order.epoch) => self.launch(*order, now),
            ToAgent::Stop { epoch, attempt, cause } if self.obeys(epoch) => {
                if cause == StopCause::Move
                    && let Some(facts) = self.disk.accepted.get(&attempt)
                {
                    let able = facts.checkpoints && facts.share.is_none();
                    assert!(able, "{attempt} was requested to move, and can't");
                }
                let death = match cause {
                    StopCause::Cancel => Death::Cancelled,
                    StopCause::Preempt | StopCause::Reshare | StopCause::Move | StopCause::Grow => {
                        Death::Preempted
                    }
                };
                self.stop(attempt, death)
            }
            ToAgent::Revoke { epoch, attempt } if self.obeys(epoch) => self.revoke(attempt),
            ToAgent::EndAck { attempt } => {
                if self.disk.exits.remove(&attempt).is_some() {
                    self.disk.accepted.remove(&attempt);
                    self.disk.tombstones.insert(attempt);
                }
                Vec::new()
            }
            ToAgent::ApplyPlan(order) if self.obeys(order.epoch) => self.apply_plan(order),
            ToAgent::Probe { token } => vec![ToController::Present { token }],
            ToAgent::Launch(_)
            | ToAgent::Stop { .. }
            | ToAgent::Revoke { .. }
            | ToAgent::ApplyPlan(_)
            | ToAgent::SetMigMode { .. }
            | ToAgent::Clear { .. }
            | ToAgent::UsageAck { .. }
            | ToAgent::KernelProfile(_)
            | ToAgent::KernelReportAck { .. }
            | ToAgent::SetTimeLimit { .. }
            | ToAgent::Examine { .. } => Vec::new(),
        }
    }

    fn obeys(&mut self, epoch: u64) -> bool {
        if !self.agent().is_live() || epoch < self.disk.highest_epoch {
            return false;
        }
        self.disk.highest_epoch = epoch;
        true
    }

    fn welcomed(&mut self, welcome: Welcome) -> Vec<ToController> {
        let strange = self.disk.controller.is_some_and(|own| own != welcome.controller);
        if strange || welcome.epoch < self.disk.highest_epoch {
            self.agent().disconnected();
            return Vec::new();
        }
        assert!(welcome.generation >= self.disk.generation, "a generation decreased (V8)");
        self.disk.highest_epoch = welcome.epoch;
        self.disk.controller = Some(welcome.controller);
        let spoiled = |facts: &Facts| facts.generation != welcome.generation;
        for process in self.processes.values_mut().filter(|p| spoiled(&p.facts)) {
            process.dying = process.dying.or(Some(Death::OldGeneration));
        }
        let accepted = self.disk.accepted.clone();
        for (attempt, death) in &mut self.agent().spawning {
            if spoiled(&accepted[attempt]) {
                *death = Some(Death::OldGeneration);
            }
        }
        self.agent().stage = Stage::Clearing(welcome);
        Vec::new()
    }

    /// Advances the session with time.
    pub(super) fn keep_session(&mut self, now: Millis) -> Vec<ToController> {
        let clock = self.clock(now);
        let generation = self.disk.generation;
        let alive = |requested: u64| {
            let spawning = self.agent.iter().flat_map(|agent| agent.spawning.keys());
            let spawning = spawning.map(|a| self.disk.accepted[a].generation);
            let running = self.processes.values().map(|p| p.facts.generation);
            running.chain(spawning).any(|g| g != requested)
        };
        match self.agent.as_ref().map(|agent| &agent.stage) {
            Some(Stage::Clearing(welcome)) if !alive(welcome.generation) => {
                let welcome = welcome.clone();
                self.go_live(&welcome, clock)
            }
            Some(Stage::Live { terms, renew_at }) if *renew_at <= clock => {
                let (terms, renew_at) = (*terms, clock.plus(terms.renew_every()));
                self.agent().stage = Stage::Live { terms, renew_at };
                vec![ToController::Renew { sent: clock, generation }]
            }
            Some(Stage::Clearing(_) | Stage::Live { .. } | Stage::Alone | Stage::Greeting)
            | None => Vec::new(),
        }
    }

    fn go_live(&mut self, welcome: &Welcome, clock: Millis) -> Vec<ToController> {
        if welcome.generation != self.disk.generation {
            self.disk.generation = welcome.generation;
            self.disk.lease = (welcome.generation, Millis::ZERO);
        }
        let terms = welcome.lease;
        self.agent().stage = Stage::Live { terms, renew_at: clock.plus(terms.renew_every()) };
        let mut frames: Vec<_> = self.gpus.iter().cloned().map(ToController::Gpu).collect();
        let mut known: BTreeSet<_> = self.disk.accepted.keys().copied().collect();
        known.extend(self.disk.exits.keys());
        frames.extend(known.into_iter().map(|attempt| self.attempt_report(attempt)));
        frames.push(ToController::InventoryDone);
        frames.push(ToController::Renew { sent: clock, generation: self.disk.generation });
        frames
    }

    fn renewed(&mut self, sent: Millis, generation: u64) {
        let Some(Stage::Live { terms, .. }) = self.agent.as_ref().map(|agent| &agent.stage) else {
            return;
        };
        let deadline = terms.node_deadline(sent);
        if generation == self.disk.generation
            && (self.disk.lease.0 != generation || deadline > self.disk.lease.1)
        {
            self.disk.lease = (generation, deadline);
        }
    }

    pub(super) fn attempt_report(&self, attempt: AttemptId) -> ToController {
        let status = match self.disk.exits.get(&attempt) {
            Some(record) => AttemptStatus::Ended(record.clone()),
            None if self.processes.contains_key(&attempt) => {
                AttemptStatus::Running { pid: 1, started_unix: Millis::new(1) }
            }
            None => AttemptStatus::Journalled,
        };
        // A refused launch was never journalled, so its job is not tracked.
        let job = self.disk.accepted.get(&attempt).map(|facts| facts.job);
        let job = job.unwrap_or(tessera_model::JobId::from_number(u64::MAX));
        ToController::Attempt(AttemptReport { attempt, job, status })
    }

    fn launch(&mut self, order: LaunchOrder, now: Millis) -> Vec<ToController> {
        let attempt = order.attempt;
        if self.disk.accepted.contains_key(&attempt) || self.disk.exits.contains_key(&attempt) {
            return vec![self.attempt_report(attempt)];
        }
        if self.disk.tombstones.contains(&attempt) {
            return vec![ToController::Tombstoned { attempt }];
        }
        let good = order.generation == self.disk.generation && self.leased(now);
        if !good || !self.place_is_good(&order) {
            self.disk.tombstones.insert(attempt);
            self.keep_exit(attempt, Outcome::NotStarted);
            return vec![self.attempt_report(attempt)];
        }
        let (job, generation) = (order.job, order.generation);
        let memory = order.kernel.as_ref().map(|kernel| kernel.memory);
        let part = order.share.map(SliceShare::Mps);
        let part = part.or(memory.map(|memory| SliceShare::Kernel(KernelShare { memory })));
        let share = part.map(|part| (order.user, part));
        let checkpoints = order.run.checkpoint_signal.is_some();
        let (gpu, slot) = (order.gpu, order.slot);
        let facts = Facts { job, generation, gpu, slot, share, checkpoints };
        self.disk.accepted.insert(attempt, facts);
        self.agent().spawning.insert(attempt, None);
        Vec::new()
    }

    fn place_is_good(&self, order: &LaunchOrder) -> bool {
        let Some(card) = self.gpus.iter().find(|card| card.gpu == order.gpu) else { return false };
        if card.health != GpuHealth::Healthy {
            return false;
        }
        let Some(slot) = order.slot else {
            return !matches!(card.mig, MigReport::On { .. })
                && order.slice.as_str() == order.gpu.as_str();
        };
        let leaves = |agent: &Agent| agent.plans.get(&order.gpu).map(|r| r.leaving.contains(&slot));
        self.agent.as_ref().and_then(leaves) != Some(true)
            && card.instances.iter().any(|i| i.slot == slot && i.slice == Some(order.slice.clone()))
    }

    /// A journalled attempt is started, unless it was stopped before.
    pub(super) fn spawn(&mut self, attempt: AttemptId, now: Millis) -> Vec<ToController> {
        let leased = self.leased(now);
        let Some(death) = self.agent().spawning.remove(&attempt) else { return Vec::new() };
        let facts = self.disk.accepted[&attempt].clone();
        let leased = leased && facts.generation == self.disk.generation;
        let outcome = match death {
            Some(Death::Cancelled) => Outcome::Cancelled,
            Some(Death::Preempted) => Outcome::Preempted,
            Some(Death::OldGeneration) => Outcome::Lost,
            Some(Death::Revoked) => Outcome::NotStarted,
            None if !leased => Outcome::NotStarted,
            None => {
                self.disk.begun.insert(attempt);
                self.processes.insert(attempt, Process { facts, dying: None });
                return self.if_live(vec![self.attempt_report(attempt)]);
            }
        };
        self.keep_exit(attempt, outcome);
        let mut frames = vec![self.attempt_report(attempt)];
        if death == Some(Death::Revoked) {
            self.disk.tombstones.insert(attempt);
            frames.push(ToController::Tombstoned { attempt });
        }
        self.if_live(frames)
    }

    fn stop(&mut self, attempt: AttemptId, death: Death) -> Vec<ToController> {
        self.end_with(attempt, death).unwrap_or_else(|| {
            if self.disk.exits.contains_key(&attempt) {
                return vec![self.attempt_report(attempt)];
            }
            let buried = self.disk.tombstones.contains(&attempt);
            if buried { vec![ToController::Tombstoned { attempt }] } else { Vec::new() }
        })
    }

    fn revoke(&mut self, attempt: AttemptId) -> Vec<ToController> {
        self.end_with(attempt, Death::Revoked).unwrap_or_else(|| {
            self.disk.tombstones.insert(attempt);
            let ended = self.disk.exits.contains_key(&attempt);
            let report = ended.then(|| self.attempt_report(attempt));
            report.into_iter().chain([ToController::Tombstoned { attempt }]).collect()
        })
    }

    /// Ends a live attempt; `None` if it is not alive.
    fn end_with(&mut self, attempt: AttemptId, death: Death) -> Option<Vec<ToController>> {
        if let Some(said) = self.agent().spawning.get_mut(&attempt) {
            *said = match (*said, death) {
                (Some(Death::OldGeneration), _) => Some(Death::OldGeneration),
                (_, Death::Revoked) => Some(Death::Revoked),
                (said, _) => said.or(Some(death)),
            };
            return Some(Vec::new());
        }
        let process = self.processes.get_mut(&attempt)?;
        process.dying = match death {
            Death::Revoked => Some(death),
            Death::Cancelled | Death::Preempted | Death::OldGeneration => {
                process.dying.or(Some(death))
            }
        };
        Some(Vec::new())
    }

    fn apply_plan(&mut self, order: PlanOrder) -> Vec<ToController> {
        let (gpu, plan) = (order.gpu.clone(), order.plan);
        let alive = |slot: &Slot| {
            let spawning = self.agent.iter().flat_map(|agent| agent.spawning.keys());
            let spawning = spawning.map(|a| &self.disk.accepted[a]);
            let facts = self.processes.values().map(|p| &p.facts).chain(spawning);
            facts.into_iter().any(|f| f.gpu == gpu && f.slot == Some(*slot))
        };
        let leaving: BTreeSet<Slot> = order
            .steps
            .iter()
            .filter_map(|step| match step {
                PlanStep::Destroy(slot) | PlanStep::Cut(slot, _) => Some(*slot),
                PlanStep::Create(_) => None,
            })
            .collect();
        let (newest, named) = self.disk.plans.get(&gpu).copied().unwrap_or_default();
        let known = order.layout_gen == newest && named == Some(plan);
        let running = self.agent.as_ref().and_then(|agent| agent.plans.get(&gpu));
        let reason = match running {
            Some(run) if run.order.plan == plan => return Vec::new(),
            Some(_) => "another plan is under way",
            None if !self.gpus.iter().any(|card| card.gpu == gpu) => "no such GPU",
            None if leaving.iter().any(alive) => "an attempt runs there",
            None if order.layout_gen <= newest && !known => "a newer plan was obeyed",
            None => {
                self.disk.plans.insert(gpu.clone(), (order.layout_gen, Some(plan)));
                let layout_gen = order.layout_gen;
                self.agent().plans.insert(gpu.clone(), Run { order, done: 0, leaving });
                if let Some(card) = self.gpu_mut(&gpu) {
                    card.layout_gen = layout_gen;
                }
                return Vec::new();
            }
        };
        let end = PlanEnd::Refused { reason: reason.to_owned() };
        vec![ToController::PlanEnded { plan, gpu, end }]
    }

    /// Carries out the next step of a plan; with `fail` the step fails.
    pub(super) fn step_plan(&mut self, gpu: &GpuId, fail: bool) -> Vec<ToController> {
        let Some(mut run) = self.agent().plans.remove(gpu) else { return Vec::new() };
        let step = run.order.steps.get(run.done).copied();
        let made = match step {
            Some(_) if fail => Err(StepFailure::Driver),
            Some(step) => self.make(gpu, step),
            None => Ok(()),
        };
        let steps_done = u32::try_from(run.done).unwrap();
        let end = match made {
            Err(failure) => PlanEnd::Failed { steps_done, reason: failure.to_string() },
            Ok(()) if step.is_none() => PlanEnd::Done,
            Ok(()) => {
                run.done += 1;
                self.agent().plans.insert(gpu.clone(), run);
                return self.gpu_report(gpu);
            }
        };
        let mut frames = self.gpu_report(gpu);
        frames.push(ToController::PlanEnded { plan: run.order.plan, gpu: gpu.clone(), end });
        self.if_live(frames)
    }

    pub(super) fn gpu_report(&mut self, gpu: &GpuId) -> Vec<ToController> {
        let report = self.gpu_mut(gpu).cloned().map(ToController::Gpu);
        self.if_live(report.into_iter().collect())
    }
}
