//! What the leader does, as pure functions over its picture of the cluster.
//!
//! [`Cluster`] is changed by [`Cluster::step`] as if the returned [`Round`] were committed
//! already; its effects are carried out only after the commit. If the commit fails, the picture
//! is thrown away and read anew from the store, so it never runs ahead of it.
//!
//! Time is an argument: milliseconds on the controller's boot clock.

pub mod accounts;
mod attempts;
pub mod company;
pub mod counterfactual;
#[cfg(test)]
mod crowded;
mod describe;
pub mod floors;
pub mod foresight;
mod gangs;
mod input;
pub mod inquiry;
mod layouts;
mod moving;
mod operator;
mod picture;
mod placing;
#[cfg(test)]
mod rewind;
mod rivals;
mod sessions;
pub mod setback;
mod settle;
#[cfg(test)]
mod simulation;
mod turns;
mod view;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tessera_model::lease::LeaseTerms;
use tessera_model::life::JobState;
use tessera_model::mig::Slot;
use tessera_model::spec::{GpuAsk, Priority};
use tessera_model::{
    AttemptId, BootId, Bytes, ControllerId, DecisionId, GpuId, JobId, Member, Millis, NodeId,
    NodeName, PlanId, SliceId,
};
use tessera_placement::record::{Record, Recorder};
use tessera_placement::{MigView, Policy, QueuedJob, Sharer, SliceKind, WaitReason};
use tessera_predict::memory::Floor;
use tessera_wire::frames::{GpuReport, ToAgent, ToController, Usage};
use uuid::Uuid;

use crate::ports::operator::{Kind, OperatorDone, OperatorOrder, OperatorRefused};
use crate::ports::{CommandResult, JobCommand, JobMoved};
pub use crate::store::load::JobSheet;
use crate::store::operator::{self as said, Target, Word};
use crate::store::submit::FreshJob;
use crate::store::{moves, nodes, terms};
use accounts::{Accounts, Book};
use foresight::{Facts, Foretold};
use rivals::Rivals;
use setback::SetBack;

/// Most attempts that one round starts: bounds the transaction, and with it how long the next
/// inputs wait.
pub const STARTS_MAX: usize = 256;
/// How long a command to an agent may stay unanswered before it is sent again.
const RESEND_AFTER: Millis = Millis::from_secs(2);
/// How long a GPU is left alone after a plan failed on it; doubled while that goes on.
const PLAN_PAUSE: Millis = Millis::from_secs(5);
/// How long a GPU is left alone after it refused an attempt; doubled while that goes on.
const REFUSAL_PAUSE: Millis = Millis::from_secs(1);
/// How often a pause is doubled: a bad GPU must not eat the patience of every job in the queue,
/// one that was mended must not wait for hours.
const DOUBLINGS_MAX: u32 = 6;
/// How long it is remembered that a user moved a job that was perhaps not announced yet: far
/// longer than an announcement can be under way.
const MOVED_KEPT_FOR: Millis = Millis::from_secs(600);

/// Something that happened.
#[derive(Debug)]
pub enum Input {
    /// Jobs were accepted.
    Fresh(Vec<FreshJob>),
    /// A user commands jobs; the token leads the results back.
    Command {
        /// Which call.
        token: u64,
        /// What.
        command: JobCommand,
        /// On which jobs.
        jobs: Vec<JobId>,
    },
    /// Released jobs are queued again, as the store says.
    Requeued(Vec<FreshJob>),
    /// An agent says hello on a new connection.
    Hello {
        /// Who, by its certificate.
        peer: tessera_wire::tls::NodeIdentity,
        /// The connection's number.
        session: u64,
        /// What it says.
        hello: Box<tessera_wire::frames::Hello>,
    },
    /// An agent sends a frame.
    Frame {
        /// Who.
        node: NodeId,
        /// On which connection.
        session: u64,
        /// What.
        frame: Box<ToController>,
    },
    /// A connection ended.
    Closed {
        /// Whose.
        node: NodeId,
        /// Which.
        session: u64,
    },
    /// An administrator switches a GPU's MIG mode.
    SetMigMode {
        /// Which GPU.
        gpu: GpuId,
        /// On or off.
        on: bool,
    },
    /// An operator's word; the token leads the answer back.
    Operate {
        /// Which call.
        token: u64,
        /// What.
        order: OperatorOrder,
        /// When, milliseconds since 1970.
        now_unix: Millis,
    },
    /// Time passed.
    Tick,
}

/// One command's results: its token, and for each job what came of it, where the picture tells.
pub type Results = (u64, Vec<(JobId, Option<CommandResult>)>);

/// Everything that one transaction commits.
#[derive(Debug, Default)]
pub struct Round {
    /// Nodes that register.
    pub attaches: Vec<nodes::Attach>,
    /// Generations that rise: node, new generation, whether it is lost.
    pub raises: Vec<(NodeId, u64, bool)>,
    /// GPUs that changed.
    pub reports: Vec<(NodeId, GpuReport)>,
    /// Plans that ended.
    pub closed: Vec<nodes::PlanClosed>,
    /// Attempts whose slices stand.
    pub ready: Vec<moves::Ready>,
    /// Attempts whose programs run.
    pub started: Vec<moves::Started>,
    /// Attempts that are to end.
    pub stopping: Vec<moves::Stopping>,
    /// Jobs with live attempts that are to have other shares.
    pub reshared: Vec<moves::Reshared>,
    /// Jobs with live attempts that are to have other terms.
    pub amended: Vec<terms::Amended>,
    /// Attempts that are over.
    pub ended: Vec<moves::Ended>,
    /// What attempts used, by the nodes that they ran on.
    pub usages: Vec<(NodeId, Usage)>,
    /// Waiting jobs that their users moved.
    pub commands: Vec<moves::Command>,
    /// Jobs that get places.
    pub reservations: Vec<moves::Reservation>,
    /// Running jobs that are asked to put their work aside and go on elsewhere.
    pub moving: Vec<moves::Moving>,
    /// Waiting jobs whose reasons changed.
    pub waits: Vec<moves::WaitRow>,
    /// Plans that are ordered.
    pub orders: Vec<nodes::PlanRow>,
    /// What the policy was asked and said, if it was asked and anything is committed.
    pub record: Option<Arc<Record>>,
    /// What to do after the commit.
    pub effects: Vec<Effect>,
    /// Results of commands, by token; `None` where the store has to tell.
    pub results: Vec<Results>,
    /// What operators said.
    pub words: Vec<said::Change>,
    /// What is to be recorded of what they did.
    pub events: Vec<said::EventRow>,
    /// Answers to operators, by token.
    pub operated: Vec<(u64, Result<OperatorDone, OperatorRefused>)>,
    /// Whether the shape that submits are measured against changed.
    pub shape_changed: bool,
    /// Set if an agent holds what the store never gave it: the store was set back (rule F14).
    pub rewound: Option<SetBack>,
}

impl Round {
    /// Tells whether there is anything to commit. A record alone is not: where nothing else is
    /// written nothing changed, and time alone is no reason to write.
    pub fn is_empty(&self) -> bool {
        self.attaches.is_empty()
            && self.raises.is_empty()
            && self.reports.is_empty()
            && self.closed.is_empty()
            && self.ready.is_empty()
            && self.started.is_empty()
            && self.stopping.is_empty()
            && self.reshared.is_empty()
            && self.amended.is_empty()
            && self.ended.is_empty()
            && self.usages.is_empty()
            && self.commands.is_empty()
            && self.reservations.is_empty()
            && self.moving.is_empty()
            && self.waits.is_empty()
            && self.orders.is_empty()
            && self.words.is_empty()
            && self.events.is_empty()
    }
}

/// What is carried out after a commit.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a frame to a node; lost if it is not connected, repeated by later rounds.
    Send {
        /// To whom.
        node: NodeId,
        /// What.
        frame: Box<ToAgent>,
    },
    /// Answer a connection that is not a session (yet), and close it.
    Refuse {
        /// Which.
        session: u64,
        /// Why, for people.
        reason: String,
        /// Whether trying again makes sense.
        retry: bool,
    },
    /// A connection becomes a node's session.
    Bind {
        /// Whose.
        node: NodeId,
        /// Which.
        session: u64,
    },
    /// A job moved.
    Moved(JobMoved),
}

/// One node.
#[derive(Clone, Debug)]
struct Node {
    name: NodeName,
    generation: u64,
    lost: bool,
    boot: BootId,
    software: String,
    cores: u32,
    memory_bytes: u64,
    /// Whether its slices can be shared.
    mps: bool,
    kernel: bool,
    session: Option<Session>,
    /// From when on the node may be declared lost (rule F6).
    expiry: Millis,
    /// When it was last heard of, milliseconds since 1970.
    last_seen_unix: Millis,
}

/// One connection that was welcomed.
#[derive(Clone, Debug)]
struct Session {
    id: u64,
    /// The agent's process, by the number that it drew (rule A8).
    process: u64,
    /// Where other nodes reach its node.
    address: String,
    /// Whether everything that stood at the welcome was reported.
    ready: bool,
    reported: HashSet<AttemptId>,
}

/// One GPU.
#[derive(Clone, Debug)]
struct Gpu {
    node: NodeId,
    report: GpuReport,
    layout_gen: u64,
    mig: Option<Arc<MigView>>,
    /// Whether the agent reported it in its present session.
    fresh: bool,
    open_plan: Option<PlanId>,
    /// The layout that an operator asked for, while the open plan makes it.
    wish: Option<layouts::Wish>,
    /// Until when nothing new is tried on it.
    paused_until: Millis,
    /// Plans that failed and attempts that it refused since a program last started on it.
    failures: u32,
}

/// A job in the queue.
#[derive(Clone, Debug)]
struct Waiting {
    asked: QueuedJob,
    attempts: u32,
    reason: Option<WaitReason>,
    facts: Arc<Facts>,
    /// How much of it was put aside, in millionths.
    done: u32,
    /// What it asks for by what earlier runs had, if its user names no size.
    floor: Option<floors::Asked>,
}

/// What an attempt's node knows of its time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitWord {
    /// It holds as the launch said.
    AsLaunched,
    /// It changed, and the node is to be told.
    Due,
    /// It changed, and the node was told in this session.
    Told,
}

/// A live attempt.
#[derive(Clone, Debug)]
struct Live {
    job: JobId,
    state: JobState,
    number: u32,
    node: NodeId,
    generation: u64,
    gpu: GpuId,
    slot: Option<Slot>,
    /// Its part of the slice; `None` if it has the slice to itself.
    share: Option<Sharer>,
    slice: Option<SliceId>,
    decision: DecisionId,
    /// What to run; absent only between its reservation and that round's commit.
    sheet: Option<JobSheet>,
    /// The trace that its launch continues.
    traceparent: Option<String>,
    /// When a command about it was last sent to its node.
    sent: Option<Millis>,
    /// Whether its node has reported it.
    acknowledged: bool,
    /// Whether its node is still to be told its time limit.
    limit: LimitWord,
    /// Whose job it is.
    user: Arc<str>,
    /// What it counts for in its user's usage, in compute slices.
    worth: f64,
    /// What its job asks for.
    asked: GpuAsk,
    facts: Arc<Facts>,
    /// When its job was accepted.
    submitted: Millis,
    /// When its program began, as far as is known.
    began: Option<Millis>,
    /// How much of its job was done before it, in millionths.
    done: u32,
    /// What was foretold of it; `None` for a sharer.
    foretold: Option<Foretold>,
    /// What was foretold of its memory, if its job names none.
    memory: Option<Floor>,
    /// The most GPU memory that it had, if its node told that before its end.
    peak: Option<Bytes>,
    /// Its place in its gang, if it is in one.
    gang: Option<Member>,
    /// How it ended, while others of its gang have not.
    over: Option<gangs::Over>,
}

/// Tells how much time has passed since some moment of its own.
pub trait Stopwatch: Send + Sync + std::fmt::Debug {
    /// Returns the time that has passed.
    fn read(&self) -> Duration;
}

/// Time that stands still: nothing takes any.
#[derive(Clone, Copy, Debug)]
struct Standstill;

impl Stopwatch for Standstill {
    fn read(&self) -> Duration {
        Duration::ZERO
    }
}

/// How long a round may spend on improving seats, if nothing else is said.
const IMPROVE_FOR: Duration = Duration::from_millis(10);

/// The leader's picture of the cluster.
#[derive(Debug)]
pub struct Cluster {
    epoch: u64,
    controller: ControllerId,
    terms: LeaseTerms,
    policy: Arc<dyn Policy>,
    nodes: BTreeMap<NodeId, Node>,
    gpus: BTreeMap<GpuId, Gpu>,
    /// In service order: by priority, then by number.
    queue: BTreeMap<(Priority, JobId), Waiting>,
    ranks: HashMap<JobId, Priority>,
    /// Agents that wait until their nodes' former connections have been asked (rule A8).
    rivals: Rivals,
    /// Ordered, so that equal inputs lead to equal rounds.
    live: BTreeMap<AttemptId, Live>,
    attempts: HashMap<JobId, AttemptId>,
    mig_views: Vec<Arc<MigView>>,
    /// Jobs that users moved of late, and when: those may be announced only after that.
    moved: BTreeMap<JobId, Millis>,
    /// No placement before this moment (rule F14).
    hold_until: Millis,
    /// Earlier leaders' grants may stand until then (rule F4).
    granted_until: Millis,
    /// Nodes of lower generations are lost: the store was set back, and what was granted to them
    /// since is not known (rule F14).
    generation_floor: u64,
    /// Traces that plans continue, between their order and the sending.
    unsent_plans: Vec<nodes::PlanRow>,
    /// What operators said, and is in force.
    words: BTreeMap<(Kind, Target), Word>,
    /// Layouts that operators asked for, until their GPUs are free for them.
    wishes: Vec<layouts::PendingWish>,
    /// The wall clock as it was last told, for what people are shown.
    now_unix: Millis,
    /// Running jobs that are asked to move, and what is kept for whom.
    moving: moving::Moving,
    /// How long a job runs at least before it is asked to move.
    move_rest: Millis,
    /// What the time is read from that a round may spend on improving seats.
    stopwatch: Arc<dyn Stopwatch>,
    /// How long that may be.
    improve_for: Duration,
    /// When the policy was last asked although nobody waits.
    reviewed: Option<Millis>,
    /// What is known of how long tasks take.
    estimator: foresight::taught::Forecaster,
    /// The tasks of ended attempts of which it isn't known yet what memory they had.
    ended: floors::Ended,
    /// What came of foretold memory, and is not told yet.
    memory_came: foresight::Outcomes,
    /// Memory of the largest slice that any GPU can have; zero where none was ever seen.
    largest: Bytes,
    /// How busy tasks are that share slices, in thousandths of their time alone.
    busy: Arc<BTreeMap<String, u16>>,
    /// How jobs do beside others under MPS.
    forest: company::Forest,
    /// How long unfinished jobs ran before they put their work aside, by kind of slice.
    asides: BTreeMap<JobId, Vec<(SliceKind, Millis)>>,
    /// Who pays for whose jobs, and what each may hold at once.
    accounts: Accounts,
    /// What users have had lately.
    book: Book,
    /// By user, who waits: a round looks at no more of one user's jobs than leaves room for others'.
    lines: BTreeMap<Arc<str>, BTreeSet<(Priority, JobId)>>,
    /// When the last step was.
    stepped: Millis,
    /// Writes down what the policy is asked and says.
    recorder: Recorder,
    /// Gangs of which a member is over and did not succeed: the others are being stopped.
    broken: BTreeSet<JobId>,
}

impl Cluster {
    /// Decides what follows from `inputs`, in their order.
    ///
    /// `mint` makes new ids, ordered by time.
    pub fn step(
        &mut self,
        inputs: Vec<Input>,
        now: Millis,
        mint: &mut dyn FnMut() -> Uuid,
    ) -> Round {
        let mut round = Round::default();
        self.stepped = now;
        for input in inputs {
            self.take(input, now, &mut round);
        }
        self.welcome_successors(now, &mut round);
        self.expire(now, &mut round);
        self.resume_gangs(&mut round);
        self.make_ready(&mut round);
        self.give_up_impossible(&mut round);
        self.order_wishes(now, mint, &mut round);
        self.seat(now, mint, &mut round);
        let draft = self.place(now, mint, &mut round);
        self.order_plans(now, mint, &mut round);
        if let Some(draft) = draft.filter(|_| !round.is_empty()) {
            round.record = Some(Arc::new(self.recorder.keep(draft)));
        }
        round
    }

    /// Sets how long a round may spend on improving seats, by a stopwatch; without it only the policy's
    /// count of searches ends that.
    pub fn improve_for(&mut self, time: Duration, stopwatch: Arc<dyn Stopwatch>) {
        self.improve_for = time;
        self.stopwatch = stopwatch;
    }

    /// Sets how long a job runs at least before it is asked to move, or to move again.
    pub const fn rest_between_moves(&mut self, rest: Millis) {
        self.move_rest = rest;
    }

    /// Sets who pays for whose jobs, and tells what users had before this leader came, in time on one
    /// compute slice.
    pub fn keep_accounts(&mut self, accounts: Accounts, had: Vec<(String, Millis)>, now: Millis) {
        self.accounts = accounts;
        self.book.begin(had, &self.accounts, now);
    }

    /// Returns the leader's epoch.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the policy's name.
    pub fn policy_name(&self) -> &'static str {
        self.policy.name()
    }

    /// Returns how long nothing is placed yet; zero if placement goes on (rule F14).
    pub fn held_for(&self, now: Millis) -> Millis {
        self.hold_until.minus(now)
    }
}
