//! The node: handles the messages of its controller, its shepherds, its GPUs and its disk, lets the
//! pure cores decide, and carries out what they decided.
//!
//! Knows neither actix nor QUIC nor NVML: it receives [`NodeInput`]s and sends through ports.

mod kernel_queue;
mod launch;
mod layout;
mod recovery;
mod session;
mod sharing;
mod struck_attempts;
mod traces;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use tessera_frames::cluster::{
    AttemptNeeds, ExitRecord, GpuReport, LaunchOrder, PlanEnd, PlanOrder, ToAgent, ToController,
};
use tessera_model::isolation::IsolationGap;
use tessera_model::mig::Slot;
use tessera_model::needs::LaunchNeeds;
use tessera_model::share::SmPercent;
use tessera_model::{AttemptId, Bytes, GpuId, Millis, NodeName, PlanId};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::accounts::{AccountCache, AccountRules, JobAccount};
use crate::container::ContainerFacts;
use crate::disk::{self, NodeState};
use crate::journal::{Journal, SyncUrgency};
use crate::kernel::EndpointHandle;
use crate::lease_page::{LeasePage, StoredLease};
use crate::messages::NodeInput;
use crate::messages::gpu::{GpuNumbers, GpuOrder};
use crate::messages::mps::MpsOrder;
use crate::messages::telemetry::TelemetryEvent;
use crate::outputs::OutputKeeper;
use crate::pool::ShepherdPool;
use crate::shepherd::protocol::{FromShepherd, ToShepherd};
use crate::shepherd::{now, record};
use crate::sys::clock;
use tessera_agent_core::attempts::{AttemptEffect, Attempts, LaunchConditions};
use tessera_agent_core::environment::NodeEnvironment;
use tessera_agent_core::telemetry::readings::CompanionTrail;

pub use recovery::NodeParts;
use session::ControllerSession;

/// How often the node checks its clock.
pub const TICK_EVERY: Duration = Duration::from_millis(100);

/// What the node knows about itself and its account; fixed for the life of the process.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// Its name, from its certificate.
    pub name: NodeName,
    /// This boot.
    pub boot: tessera_model::BootId,
    /// A number that distinguishes this process from another with the same identity (A8).
    pub process: u64,
    /// Processor cores.
    pub cores: u32,
    /// The host's memory.
    pub memory: Bytes,
    /// The data folder.
    pub data: PathBuf,
    /// The node's part of attempts' environments.
    pub environment: NodeEnvironment,
    /// The accounts that attempts run under.
    pub accounts: AccountRules,
    /// Which limits and protections they don't have.
    pub isolation_gaps: BTreeSet<IsolationGap>,
    /// NVIDIA's MPS control program, if the node has it.
    pub mps: Option<PathBuf>,
    /// Whether jobs that share a slice kernel by kernel also use MPS.
    pub kernel_over_mps: bool,
    /// The part of the multiprocessors that their offline jobs may use then.
    pub kernel_offline_percent: SmPercent,
    /// The folder of the Python companion; `None` if it is off.
    pub companion: Option<String>,
    /// What it has for containers.
    pub containers: ContainerFacts,
    /// Whether the shim watches programs whose jobs do not state it.
    pub watch: bool,
    /// Where other nodes reach this one, if its operator set it.
    pub address: Option<String>,
}

/// Why the agent must not continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FatalRefusal {
    /// The controller's reason.
    pub reason: String,
}

/// One node.
pub struct AgentNode {
    facts: NodeFacts,
    state: NodeState,
    lease_deadline: Millis,
    page: LeasePage,
    attempts: Attempts,
    pool: ShepherdPool,
    journal: Journal,
    gpus: BTreeMap<GpuId, GpuReport>,
    /// What the driver calls them and their instances.
    gpu_numbers: BTreeMap<GpuId, GpuNumbers>,
    /// Plans under way, with the slots that they take away.
    plans: BTreeMap<GpuId, (PlanId, BTreeSet<Slot>)>,
    gpu_port: mpsc::Sender<GpuOrder>,
    telemetry: mpsc::Sender<TelemetryEvent>,
    doctor_port: mpsc::Sender<u64>,
    session: Option<ControllerSession>,
    fatal: Option<oneshot::Sender<FatalRefusal>>,
    outputs: OutputKeeper,
    launches: traces::LaunchSpans,
    mps: mpsc::Sender<MpsOrder>,
    /// Attempts that share a slice: their ends are judged before they are reported.
    shared: BTreeSet<AttemptId>,
    /// Those of them that wait until their slice serves.
    unshared: BTreeMap<AttemptId, LaunchOrder>,
    /// The way to the kernel queues, if there are any.
    kernel_endpoint: Option<EndpointHandle>,
    /// Attempts that were admitted to their slices' queues.
    queued: BTreeSet<AttemptId>,
    kernel_reports: kernel_queue::KernelReports,
    /// The minimum needs of running attempts, until the controller has their ends.
    needs: BTreeMap<AttemptId, AttemptNeeds>,
    accounts: AccountCache,
    /// The accounts of attempts that are on their way to a shepherd.
    job_accounts: BTreeMap<AttemptId, JobAccount>,
    /// Attempts whose slices are described to a container runtime.
    described: BTreeSet<AttemptId>,
    /// Where this node's inputs come from.
    inputs: mpsc::Sender<NodeInput>,
}

impl AgentNode {
    /// Handles one input.
    pub fn handle(&mut self, input: NodeInput) {
        match input {
            NodeInput::Link(event) => self.on_link(event),
            NodeInput::Shepherd { id, frame } => self.on_shepherd(id, frame),
            NodeInput::ShepherdGone { id, foreigner } => self.on_shepherd_gone(id, foreigner),
            NodeInput::Journalled(then) => self.act(then),
            NodeInput::NotJournalled { then, reason } => self.on_not_journalled(then, &reason),
            NodeInput::Gpu(event) => self.on_gpu(event),
            NodeInput::Telemetry(frame) => self.send(frame),
            NodeInput::IsAlive { attempt, answer } => {
                // Nobody waits any more if the reader went away.
                let _ = answer.send(self.attempts.is_alive(attempt));
            }
            NodeInput::FindShepherd { attempt, answer } => {
                // Nobody waits any more if the client went away.
                let _ = answer.send(self.pool.of_attempt(attempt));
            }
            NodeInput::FindCaller { lineage, answer } => {
                let _ = answer.send(self.pool.attempt_of(&lineage));
            }
            NodeInput::Mps(event) => self.on_mps(event),
            NodeInput::Kernel(event) => self.on_kernel_event(event),
            NodeInput::Forward(frame) => self.send(frame),
            NodeInput::Account { name, found } => self.on_account(name, found),
            NodeInput::Tick => {
                self.pool.tick(clock::boot_now());
                // Those whose attempts ended before they were started.
                self.job_accounts.retain(|attempt, _| self.attempts.is_alive(*attempt));
                self.end_queued_attempts();
                self.forget_described();
                self.send_kernel_reports();
            }
        }
        self.keep_session();
    }

    fn standing(&self) -> LaunchConditions {
        LaunchConditions {
            generation: self.state.generation,
            leased: clock::boot_now() < self.lease_deadline,
            now_unix: clock::unix_now(),
        }
    }

    fn act(&mut self, effects: Vec<AttemptEffect>) {
        for effect in effects {
            match effect {
                AttemptEffect::Send(frame) => self.send(frame),
                AttemptEffect::Record(record, then) => {
                    if let Err(then) = self.journal.append(record, SyncUrgency::Now, then) {
                        self.on_not_journalled(then, "its queue is full");
                    }
                }
                AttemptEffect::RecordLater(record) => {
                    // If it is lost, the end is reported once more after a restart: harmless.
                    let _ = self.journal.append(record, SyncUrgency::Whenever, Vec::new());
                }
                AttemptEffect::RecordSoon(record, then) => {
                    if let Err(then) = self.journal.append(record, SyncUrgency::Soon, then) {
                        self.on_not_journalled(then, "its queue is full");
                    }
                }
                AttemptEffect::EndJournalled(attempt) => self.pool.release_end(attempt),
                AttemptEffect::Journalled(attempt) => {
                    let effects = self.attempts.journalled(attempt, self.standing());
                    self.act(effects);
                }
                AttemptEffect::Spawn(order) => self.spawn(*order),
                AttemptEffect::Stop(attempt, cause) => {
                    if !self.stop_unshared(attempt, cause) {
                        self.pool.send(attempt, ToShepherd::Stop { attempt, cause });
                    }
                }
                AttemptEffect::Limit(attempt, limit) => {
                    self.pool.send(attempt, ToShepherd::SetTimeLimit { attempt, limit });
                }
                AttemptEffect::Kill(attempt, reason) => {
                    if !self.kill_unshared(attempt, reason) {
                        self.pool.send(attempt, ToShepherd::Kill { attempt, reason });
                    }
                }
            }
        }
    }

    fn on_not_journalled(&mut self, then: Vec<AttemptEffect>, reason: &str) {
        for effect in then {
            let effects = match effect {
                AttemptEffect::Journalled(attempt) => {
                    self.attempts.not_journalled(attempt, reason, clock::unix_now())
                }
                // A tombstone that isn't on disk does not count: the controller repeats its
                // request. And an end that isn't journalled stays with its shepherd.
                AttemptEffect::Send(ToController::Tombstoned { .. })
                | AttemptEffect::EndJournalled(_) => Vec::new(),
                other => vec![other],
            };
            self.act(effects);
        }
    }

    fn on_shepherd(&mut self, id: Uuid, frame: FromShepherd) {
        let effects = match frame {
            FromShepherd::Hello(hello) if hello.id == id => {
                self.pool.record_identity(&hello);
                Vec::new()
            }
            FromShepherd::Hello(_) => Vec::new(),
            FromShepherd::Started { attempt, pid, started_unix } => {
                self.launches.end(attempt);
                if self.shared.contains(&attempt) {
                    self.send_to_mps(MpsOrder::Running { attempt, pid });
                }
                let effects = self.attempts.started(attempt, pid, started_unix);
                self.report_tenancy(attempt);
                effects
            }
            FromShepherd::Ending { attempt } => {
                self.pool.note_still_ending(attempt, clock::boot_now());
                Vec::new()
            }
            FromShepherd::Memory { attempt, reserved_peak, allocated: _, iteration: _ } => {
                self.send_telemetry(TelemetryEvent::Memory { attempt, peak: reserved_peak });
                Vec::new()
            }
            FromShepherd::Trail { attempt, reserved, preallocated, readings } => {
                let trail = CompanionTrail { reserved, preallocated, readings };
                self.send_telemetry(TelemetryEvent::Trail { attempt, trail });
                Vec::new()
            }
            FromShepherd::Needs { attempt, needs } => {
                self.report_needs(attempt, needs);
                Vec::new()
            }
            FromShepherd::Ended { attempt, record } => {
                self.pool.release(attempt);
                self.launches.end(attempt);
                self.judge_or_end(attempt, record);
                Vec::new()
            }
        };
        self.act(effects);
    }

    /// Handles an end that a shepherd holds.
    fn over(&mut self, attempt: AttemptId, record: ExitRecord) {
        if let Some(facts) = self.attempts.facts_of_alive(attempt) {
            traces::attempt_ended(facts, &record);
        }
        let effects = self.attempts.ended_held(attempt, record);
        self.report_tenancy(attempt);
        self.act(effects);
    }

    fn on_shepherd_gone(&mut self, id: Uuid, foreigner: Option<u16>) {
        let began = now::read(&self.facts.data, id);
        let Some(attempt) = self.pool.remove_shepherd(id) else { return };
        self.give_share_back(attempt);
        let effects = match record::read(&self.facts.data, attempt) {
            Some(kept) => self.attempts.ended(attempt, kept.record),
            None => {
                let began = began == Some(attempt);
                let detail = match foreigner {
                    Some(version) => {
                        tracing::error!(
                            version,
                            "a new shepherd speaks another version: restart this agent"
                        );
                        "it was not started: the node's agent and shepherds are from different \
                         releases"
                    }
                    // A shepherd that can't record what it begins exits at once.
                    None if !began && disk::is_full(&self.facts.data) => {
                        "its shepherd could not start it: the node's disk is full"
                    }
                    None => {
                        tracing::warn!(%attempt, "a shepherd died with its attempt");
                        "its shepherd died"
                    }
                };
                let record = recovery::lost(began, detail);
                self.attempts.end_here(attempt, record)
            }
        };
        self.report_tenancy(attempt);
        self.act(effects);
    }

    /// Sends the state of an attempt to the GPU sampling.
    fn report_tenancy(&self, attempt: AttemptId) {
        if let Some(tenancy) = self.attempts.tenancy(attempt) {
            self.send_telemetry(TelemetryEvent::Tenancy(tenancy));
        }
    }

    /// Reports the minimum that an attempt needs, by its calls of the driver.
    fn report_needs(&mut self, attempt: AttemptId, needs: LaunchNeeds) {
        let Some(facts) = self.attempts.facts_of_alive(attempt) else { return };
        let available = self.gpus.get(&facts.gpu).and_then(|gpu| gpu.sms).unwrap_or(0);
        let multiprocessors = needs.multiprocessors(available).unwrap_or(0);
        let LaunchNeeds { held, refused, .. } = needs;
        let needs = AttemptNeeds { attempt, held, multiprocessors, refused };
        self.needs.insert(attempt, needs);
        self.send(ToController::Needs(needs));
    }

    fn send_telemetry(&self, event: TelemetryEvent) {
        if let Err(refused) = self.telemetry.try_send(event) {
            // Figures matter less than what would be delayed by waiting for them.
            tracing::warn!(%refused, "the sampling of GPUs doesn't keep up");
        }
    }

    fn acknowledged(&mut self, attempt: AttemptId) {
        self.needs.remove(&attempt);
        let effects = self.attempts.acknowledged(attempt);
        if effects.is_empty() {
            return;
        }
        self.act(effects);
        // Only the holder of an end that could not be journalled waits for this.
        self.pool.release_end(attempt);
        self.outputs.over(attempt);
    }

    fn handle_frame(&mut self, frame: ToAgent) {
        match frame {
            ToAgent::Launch(order) if self.obeys(order.epoch) => self.launch(order),
            ToAgent::Stop { epoch, attempt, cause } if self.obeys(epoch) => {
                let effects = self.attempts.stop(attempt, cause);
                self.act(effects);
            }
            ToAgent::SetTimeLimit { epoch, attempt, limit } if self.obeys(epoch) => {
                let effects = self.attempts.limit(attempt, limit);
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
            ToAgent::Clear { epoch, gpu, slot } if self.obeys(epoch) => self.clear(gpu, slot),
            // A controller that requests too often gets no answer, and repeats the request.
            ToAgent::Examine { token } => drop(self.doctor_port.try_send(token)),
            ToAgent::EndAck { attempt } => self.acknowledged(attempt),
            ToAgent::UsageAck { attempt } => {
                self.send_telemetry(TelemetryEvent::Acknowledged(attempt));
            }
            ToAgent::KernelProfile(piece) => self.on_profile_piece(piece),
            ToAgent::KernelReportAck { number } => self.on_report_acknowledged(number),
            ToAgent::RenewOk { sent, generation } => self.accept_renewal(sent, generation),
            ToAgent::Welcome(welcome) => self.accept_welcome(welcome),
            ToAgent::Refused { reason, retry } => self.accept_refusal(reason, retry),
            ToAgent::Probe { token } => self.push(ToController::Present { token }),
            ToAgent::ApplyPlan(PlanOrder { plan, gpu, .. }) => {
                let reason = "an older leader sent it".to_owned();
                self.send(ToController::PlanEnded { plan, gpu, end: PlanEnd::Refused { reason } });
            }
            // Refused by the epoch: `obeys` has logged it.
            ToAgent::Launch(_)
            | ToAgent::Stop { .. }
            | ToAgent::Revoke { .. }
            | ToAgent::SetTimeLimit { .. }
            | ToAgent::SetMigMode { .. }
            | ToAgent::Clear { .. } => {}
        }
    }

    /// Checks a command by its leader's epoch (rule F15).
    fn obeys(&mut self, epoch: u64) -> bool {
        let highest = self.state.highest_epoch;
        if epoch < highest {
            tracing::error!(epoch, highest, "a command of an older leader is refused");
            return false;
        }
        epoch == highest || self.remember(NodeState { highest_epoch: epoch, ..self.state.clone() })
    }

    /// Writes a new state to disk; only then is it acted on.
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
        let lease = StoredLease {
            generation: self.state.generation,
            deadline: self.lease_deadline,
            boot: self.facts.boot,
        };
        if let Err(error) = self.page.write(&lease) {
            tracing::error!(%error, "the lease can't be written: attempts end at the old deadline");
        }
    }
}
