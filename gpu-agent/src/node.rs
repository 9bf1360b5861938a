//! The node: takes in what its controller, its shepherds, its GPUs and its disk say, lets the
//! pure cores decide, and carries out what they decided.
//!
//! Knows neither actix nor QUIC nor NVML: it hears [`Input`]s and speaks into ports.

mod recovery;
mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use tessera_model::mig::{Slot, Step};
use tessera_model::{AttemptId, Bytes, GpuId, Millis, NodeName, PlanId};
use tessera_wire::frames::{GpuHealth, GpuReport, LaunchOrder, MigReport, PlanEnd, PlanOrder};
use tessera_wire::{ToAgent, ToController};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::core::attempts::{Attempts, Effect, Standing};
use crate::core::environment::{NodeEnvironment, environment};
use crate::core::ledger::Facts;
use crate::core::output;
use crate::disk::NodeState;
use crate::gpus::{GpuEvent, GpuOrder};
use crate::journal::Journal;
use crate::lease_page::{Lease, LeasePage};
use crate::pool::Pool;
use crate::shepherd::job::never_ran;
use crate::shepherd::protocol::{FromShepherd, SpawnOrder, ToShepherd};
use crate::shepherd::record;
use crate::sys::clock;

pub use recovery::NodeParts;
pub use session::LinkEvent;
use session::Session;

/// Inputs that may wait: enough for every attempt to say something at once.
pub const INPUTS_MAX: usize = 8192;
/// How often the node looks at its clock.
pub const TICK_EVERY: Duration = Duration::from_millis(100);

/// Everything that a node hears.
#[derive(Debug)]
pub enum Input {
    /// Of the connection to the controller.
    Link(LinkEvent),
    /// Of a shepherd.
    Shepherd {
        /// Which one.
        id: Uuid,
        /// What it says.
        frame: FromShepherd,
    },
    /// A shepherd's connection ended.
    ShepherdGone {
        /// Which one.
        id: Uuid,
    },
    /// Records are on disk.
    Journalled(Vec<Effect>),
    /// Records could not be put on disk.
    NotJournalled {
        /// What was to follow.
        then: Vec<Effect>,
        /// What the disk said.
        reason: String,
    },
    /// Of a GPU.
    Gpu(GpuEvent),
    /// Asks whether an attempt may still write output.
    IsAlive {
        /// Which attempt.
        attempt: AttemptId,
        /// Where the answer goes.
        answer: oneshot::Sender<bool>,
    },
    /// Time passed.
    Tick,
}

/// What the node knows of itself and of its account; fixed for the life of the process.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// Its name, from its certificate.
    pub name: NodeName,
    /// This boot.
    pub boot: tessera_model::BootId,
    /// A number that tells this process from another with the same identity (A8).
    pub process: u64,
    /// Processor cores.
    pub cores: u32,
    /// Memory.
    pub memory: Bytes,
    /// The data folder.
    pub data: PathBuf,
    /// What attempts find in their environment.
    pub environment: NodeEnvironment,
    /// How many folders of attempts that are over are kept for their output.
    pub keep_attempts: usize,
}

/// Why the agent must not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fatal {
    /// What the controller said.
    pub reason: String,
}

/// One node.
pub struct Node {
    facts: NodeFacts,
    state: NodeState,
    lease_deadline: Millis,
    page: LeasePage,
    attempts: Attempts,
    pool: Pool,
    journal: Journal,
    gpus: BTreeMap<GpuId, GpuReport>,
    /// Plans under way, with the slots that they take away.
    plans: BTreeMap<GpuId, (PlanId, BTreeSet<Slot>)>,
    gpu_port: mpsc::Sender<GpuOrder>,
    session: Option<Session>,
    fatal: Option<oneshot::Sender<Fatal>>,
    over: std::collections::VecDeque<AttemptId>,
}

impl Node {
    /// Takes one input in.
    pub fn hear(&mut self, input: Input) {
        match input {
            Input::Link(event) => self.on_link(event),
            Input::Shepherd { id, frame } => self.on_shepherd(id, frame),
            Input::ShepherdGone { id } => self.on_shepherd_gone(id),
            Input::Journalled(then) => self.act(then),
            Input::NotJournalled { then, reason } => self.on_not_journalled(then, &reason),
            Input::Gpu(event) => self.on_gpu(event),
            Input::IsAlive { attempt, answer } => {
                // Nobody waits any more if the reader went away.
                let _ = answer.send(self.attempts.is_alive(attempt));
            }
            Input::Tick => {}
        }
        self.keep_session();
    }

    fn standing(&self) -> Standing {
        Standing {
            generation: self.state.generation,
            leased: clock::boot_now() < self.lease_deadline,
            now_unix: clock::unix_now(),
        }
    }

    fn act(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send(frame) => self.send(frame),
                Effect::Record(record, then) => {
                    if let Err(then) = self.journal.append(record, then) {
                        self.on_not_journalled(then, "its queue is full");
                    }
                }
                Effect::RecordLater(record) => {
                    // If it is lost, the end is reported once more after a restart: harmless.
                    let _ = self.journal.append(record, Vec::new());
                }
                Effect::Journalled(attempt) => {
                    let effects = self.attempts.journalled(attempt, self.standing());
                    self.act(effects);
                }
                Effect::Spawn(order) => self.spawn(*order),
                Effect::Stop(attempt, cause) => {
                    self.pool.tell(attempt, ToShepherd::Stop { attempt, cause });
                }
                Effect::Kill(attempt, reason) => {
                    self.pool.tell(attempt, ToShepherd::Kill { attempt, reason });
                }
            }
        }
    }

    fn on_not_journalled(&mut self, then: Vec<Effect>, reason: &str) {
        for effect in then {
            let effects = match effect {
                Effect::Journalled(attempt) => {
                    self.attempts.not_journalled(attempt, reason, clock::unix_now())
                }
                // A tombstone that isn't on disk is none: the controller asks again.
                Effect::Send(ToController::Tombstoned { .. }) => Vec::new(),
                other => vec![other],
            };
            self.act(effects);
        }
    }

    fn launch(&mut self, order: Box<LaunchOrder>) {
        let facts = Facts {
            attempt: order.attempt,
            job: order.job,
            generation: order.generation,
            gpu: order.gpu.clone(),
            slot: order.slot,
        };
        let place = self.check_place(&order);
        let effects = self.attempts.launch(order, facts, place, self.standing());
        self.act(effects);
    }

    /// Checks that the slice is still the one that was meant (G11).
    fn check_place(&self, order: &LaunchOrder) -> Result<(), String> {
        let gpu = self.gpus.get(&order.gpu);
        let gpu = gpu.ok_or_else(|| format!("the node has no GPU {}", order.gpu))?;
        match &gpu.health {
            GpuHealth::Healthy => {}
            GpuHealth::Unresponsive => return Err("the GPU's driver doesn't answer".to_owned()),
            GpuHealth::Faulty { reason } => return Err(format!("the GPU is faulty: {reason}")),
        }
        let Some(slot) = order.slot else {
            return match gpu.mig {
                MigReport::On { .. } => Err("the GPU is partitioned".to_owned()),
                MigReport::Off | MigReport::Unsupported
                    if order.slice.as_str() != order.gpu.as_str() =>
                {
                    Err(format!("{} is not the whole GPU", order.slice))
                }
                MigReport::Off | MigReport::Unsupported => Ok(()),
            };
        };
        if self.plans.get(&order.gpu).is_some_and(|(_, leaving)| leaving.contains(&slot)) {
            return Err("the instance is being destroyed".to_owned());
        }
        let instance = gpu.instances.iter().find(|instance| instance.slot == slot);
        match instance.map(|instance| &instance.slice) {
            Some(Some(slice)) if *slice == order.slice => Ok(()),
            Some(Some(slice)) => Err(format!("the instance is {slice} by now")),
            Some(None) => Err("the instance is half made".to_owned()),
            None => Err("the instance is gone".to_owned()),
        }
    }

    fn spawn(&mut self, order: LaunchOrder) {
        let attempt = order.attempt;
        let (order, script) = self.spawn_order(order);
        if let Err(reason) = self.pool.assign(order, script) {
            let record = never_ran(tessera_model::life::Outcome::NotStarted, reason);
            let effects = self.attempts.end_here(attempt, record);
            self.act(effects);
        }
    }

    fn spawn_order(&self, order: LaunchOrder) -> (SpawnOrder, Option<String>) {
        let own = record::folder(&self.facts.data, order.attempt);
        let base = order.work_dir.as_ref().map_or(own, PathBuf::from);
        let name = &self.facts.name;
        let path = |pattern: &Option<String>| {
            pattern.as_ref().map(|pattern| output::expand(pattern, &order, name, &base))
        };
        let (stdout, stderr) = (path(&order.output.stdout), path(&order.output.stderr));
        let environment = match self.gpus.get(&order.gpu) {
            Some(gpu) => environment(&order, name, gpu, &self.facts.environment),
            None => Vec::new(),
        };
        let (command, script) = match order.program {
            tessera_model::spec::Program::Command(command) => (Some(command), None),
            tessera_model::spec::Program::Script(text) => (None, Some(text)),
        };
        let spawn = SpawnOrder {
            attempt: order.attempt,
            job: order.job,
            number: order.number,
            generation: order.generation,
            gpu: order.gpu,
            slot: order.slot,
            command,
            work_dir: order.work_dir,
            environment,
            stdout,
            stderr,
            // Tasks of an array may share a file.
            append: order.number > 1 || order.array.is_some(),
            time_limit: order.time_limit,
            grace: order.grace,
        };
        (spawn, script)
    }

    fn on_shepherd(&mut self, id: Uuid, frame: FromShepherd) {
        let effects = match frame {
            FromShepherd::Hello(hello) if hello.id == id => {
                self.pool.greeted(&hello);
                Vec::new()
            }
            FromShepherd::Hello(_) => Vec::new(),
            FromShepherd::Started { attempt, pid, started_unix } => {
                self.attempts.started(attempt, pid, started_unix)
            }
            FromShepherd::Ended { attempt, record, kept } => {
                if kept {
                    self.pool.release(attempt);
                }
                self.attempts.ended(attempt, record)
            }
        };
        self.act(effects);
    }

    fn on_shepherd_gone(&mut self, id: Uuid) {
        let Some(attempt) = self.pool.bury(id) else { return };
        let effects = match record::read(&self.facts.data, attempt) {
            Some(kept) => self.attempts.ended(attempt, kept.record),
            None => {
                tracing::warn!(%attempt, "a shepherd died with its attempt");
                let record = recovery::lost(&self.facts.data, attempt, "its shepherd died");
                self.attempts.end_here(attempt, record)
            }
        };
        self.act(effects);
    }

    fn acknowledged(&mut self, attempt: AttemptId) {
        let effects = self.attempts.acknowledged(attempt);
        if effects.is_empty() {
            return;
        }
        self.act(effects);
        // Only a shepherd that could not write its record waits for this.
        self.pool.tell(attempt, ToShepherd::Forget { attempt });
        self.pool.release(attempt);
        self.over.push_back(attempt);
        while self.over.len() > self.facts.keep_attempts
            && let Some(oldest) = self.over.pop_front()
        {
            let folder = record::folder(&self.facts.data, oldest);
            tokio::task::spawn_blocking(move || std::fs::remove_dir_all(folder));
        }
    }

    fn on_gpu(&mut self, event: GpuEvent) {
        match event {
            GpuEvent::Changed(report) => {
                let known = self.gpus.insert(report.gpu.clone(), (*report).clone());
                if known.as_ref() != Some(&*report) {
                    self.send(ToController::Gpu(*report));
                }
            }
            GpuEvent::PlanEnded { gpu, plan, end } => {
                self.plans.remove(&gpu);
                self.send(ToController::PlanEnded { plan, gpu, end });
            }
            GpuEvent::MigModeEnded { gpu, problem } => {
                self.send(ToController::MigModeEnded { gpu, problem });
            }
        }
    }

    fn apply_plan(&mut self, order: PlanOrder) {
        let (gpu, plan) = (order.gpu.clone(), order.plan);
        if self.plans.get(&gpu).is_some_and(|(running, _)| *running == plan) {
            return;
        }
        let leaving: BTreeSet<Slot> = order
            .steps
            .iter()
            .filter_map(|step| match step {
                Step::Destroy(slot) => Some(*slot),
                Step::Create(_) => None,
            })
            .collect();
        let busy = leaving.iter().find(|slot| self.attempts.uses(&gpu, Some(**slot)));
        let refused = if self.plans.contains_key(&gpu) {
            Some("another plan is under way".to_owned())
        } else if !self.gpus.contains_key(&gpu) {
            Some(format!("the node has no GPU {gpu}"))
        } else {
            busy.map(|slot| format!("an attempt runs on memory slice {}", slot.start))
        };
        let refused = refused.or_else(|| {
            self.gpu_port.try_send(GpuOrder::Apply(order)).err().map(|_| "too many plans".into())
        });
        match refused {
            Some(reason) => {
                self.send(ToController::PlanEnded { plan, gpu, end: PlanEnd::Refused { reason } });
            }
            None => {
                self.plans.insert(gpu, (plan, leaving));
            }
        }
    }

    fn set_mig_mode(&mut self, gpu: GpuId, on: bool) {
        let problem = if self.attempts.uses(&gpu, None) {
            Some("attempts run on this GPU".to_owned())
        } else if self.plans.contains_key(&gpu) {
            Some("a plan is under way on this GPU".to_owned())
        } else {
            let order = GpuOrder::SetMigMode { gpu: gpu.clone(), on };
            self.gpu_port.try_send(order).err().map(|_| "too many orders".to_owned())
        };
        if problem.is_some() {
            self.send(ToController::MigModeEnded { gpu, problem });
        }
    }

    fn obey(&mut self, frame: ToAgent) {
        match frame {
            ToAgent::Launch(order) if self.obeys(order.epoch) => self.launch(order),
            ToAgent::Stop { epoch, attempt, cause } if self.obeys(epoch) => {
                let effects = self.attempts.stop(attempt, cause);
                self.act(effects);
            }
            ToAgent::Revoke { epoch, attempt } if self.obeys(epoch) => {
                let effects = self.attempts.revoke(attempt);
                self.act(effects);
            }
            ToAgent::ApplyPlan(order) if self.obeys(order.epoch) => self.apply_plan(order),
            ToAgent::SetMigMode { epoch, gpu, on } if self.obeys(epoch) => {
                self.set_mig_mode(gpu, on);
            }
            ToAgent::EndAck { attempt } => self.acknowledged(attempt),
            ToAgent::RenewOk { sent, generation } => self.renewed(sent, generation),
            ToAgent::Welcome(welcome) => self.welcomed(welcome),
            ToAgent::Refused { reason, retry } => self.refused(reason, retry),
            ToAgent::ApplyPlan(PlanOrder { plan, gpu, .. }) => {
                let reason = "an older leader sent it".to_owned();
                self.send(ToController::PlanEnded { plan, gpu, end: PlanEnd::Refused { reason } });
            }
            // Refused by the epoch: `obeys` has said so.
            ToAgent::Launch(_)
            | ToAgent::Stop { .. }
            | ToAgent::Revoke { .. }
            | ToAgent::SetMigMode { .. } => {}
        }
    }

    /// Judges a command by its leader's epoch (rule F15).
    fn obeys(&mut self, epoch: u64) -> bool {
        let highest = self.state.highest_epoch;
        if epoch < highest {
            tracing::error!(epoch, highest, "a command of an older leader is refused");
            return false;
        }
        epoch == highest || self.remember(NodeState { highest_epoch: epoch, ..self.state.clone() })
    }

    /// Puts a new state on disk; only then is it acted on.
    fn remember(&mut self, state: NodeState) -> bool {
        match state.save(&self.facts.data) {
            Ok(()) => {
                self.state = state;
                true
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%error, cause, "the node's state can't be written");
                false
            }
        }
    }

    fn write_lease(&self) {
        let lease = Lease {
            generation: self.state.generation,
            deadline: self.lease_deadline,
            boot: self.facts.boot,
        };
        if let Err(error) = self.page.write(&lease) {
            tracing::error!(%error, "the lease can't be written: attempts end at the old deadline");
        }
    }
}
