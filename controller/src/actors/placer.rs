//! The placer: owns the leader's cluster state, and carries out its rounds one after another.
//!
//! A round is decided on another thread, and then committed. Meanwhile inputs gather; they make up the next
//! round. Leases are answered during the commit, so that a slow database can't make nodes give up.

mod database;
mod handlers;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actix::{
    Actor, ActorFutureExt as _, Addr, AsyncContext as _, Context, System, WrapFuture as _,
};
use futures_util::stream::poll_fn;
use tessera_frames::cluster::ToAgent;
use tessera_model::backoff::Backoff;
use tessera_model::{Millis, NodeId};
use tessera_placement::largest_possible;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use uuid::Uuid;

use self::database::{commit_on, read_until_it_works, rollback_of};
use super::agent_link::{AgentLink, LinkRenews};
use super::intake::Chain;
use super::leadership::LeaderCandidate;
use super::prediction_metrics;
use super::questions::{self, Questions};
use crate::clock;
use crate::figures::FigureCache;
use crate::notifications::Outbox;
use crate::ports::{ClusterShape, JobChanges, OperatorAnswer, Readiness, ToPlacer};
use crate::requests::RequestError;
use crate::store::{ConnectOptions, Connection, StoreError};
use tessera_control::commands::CommandResult;
use tessera_control::rollback::DatabaseRollback;
use tessera_control::rows::findings::CommitFindings;
use tessera_control::rows::snapshot::StoreSnapshot;
use tessera_control::rows::submitted::SubmittedJob;
use tessera_control::{ClusterState, CommandResults, Input, Round, RoundEffect};

/// Messages that may wait: agents and handlers wait beyond it.
const MAILBOX_CAPACITY: usize = 1_024;
/// How often a round runs for time alone: leases expire, commands are sent again.
const TICK_EVERY: Duration = Duration::from_millis(500);
/// How long to wait before a failed read of the snapshot is tried again.
const RELOAD_PAUSE: Duration = Duration::from_millis(500);
/// From this many contradictions of the store in short succession on, reading again does not help: an
/// administrator must look.
const CONTRADICTIONS_ALARM: u32 = 3;
/// Contradictions further apart are not counted together.
const CONTRADICTIONS_WITHIN: Millis = Millis::from_secs(300);
/// Longest pause before the snapshot is read again after a contradiction.
const CONTRADICTION_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Exit status of a controller that was deposed: its service manager starts it as a standby.
pub const DEPOSED_STATUS: i32 = 75;

type CommandReply = oneshot::Sender<Result<Vec<CommandResult>, RequestError>>;
type OperatorReply = oneshot::Sender<Result<OperatorAnswer, RequestError>>;

/// Everything that the placer needs from outside.
#[derive(Debug)]
pub struct PlacerParts {
    /// How rounds reach the database.
    pub options: ConnectOptions,
    /// This controller as a candidate; the snapshot is read on its connections.
    pub candidate: LeaderCandidate,
    /// Where the shape for submits is published.
    pub shape: watch::Sender<Arc<ClusterShape>>,
    /// Where state changes of jobs are announced.
    pub job_changes: broadcast::Sender<JobChanges>,
    /// Where readiness is published.
    pub readiness: watch::Sender<Readiness>,
    /// Where the epoch is published.
    pub epoch: watch::Sender<u64>,
    /// What leaves the cluster.
    pub outbox: Outbox,
    /// The live figures of attempts, by which idle ones are found.
    pub figures: FigureCache,
}

/// Starts the placer with this cluster state on this thread's actor system, fed by the two queues.
pub fn start(
    cluster: ClusterState,
    parts: PlacerParts,
    mut queries: mpsc::Receiver<ToPlacer>,
    mut submitted: mpsc::Receiver<Vec<SubmittedJob>>,
) -> Addr<Placer> {
    Placer::create(move |ctx| {
        ctx.add_stream(poll_fn(move |waker| queries.poll_recv(waker)));
        ctx.add_stream(poll_fn(move |waker| submitted.poll_recv(waker)));
        Placer::new(cluster, parts)
    })
}

/// The actor.
#[derive(Debug)]
pub struct Placer {
    parts: PlacerParts,
    /// The cluster state; none while a round is being decided, on another thread.
    cluster: Option<Box<ClusterState>>,
    /// What arrived meanwhile and needs the cluster state, in order.
    deferred: Vec<Deferred>,
    inbox: Vec<Input>,
    phase: Phase,
    /// Connections by number, welcomed or not.
    links: HashMap<u64, AgentLink>,
    /// Each node's session.
    sessions: HashMap<NodeId, u64>,
    replies: HashMap<u64, CommandReply>,
    operators: HashMap<u64, OperatorReply>,
    questions: Questions,
    next_token: u64,
    /// Whether the last look found most nodes silent.
    braking: bool,
    /// Kept from round to round; none while one is being committed, and after an error.
    connection: Option<Connection>,
    /// A rollback of the database that was found while a round was being decided.
    rolled_back: Option<DatabaseRollback>,
    contradictions: Contradictions,
}

/// A round, with the cluster state that it belongs to.
struct DecidedRound {
    cluster: Box<ClusterState>,
    round: Round,
    /// What submits are compared with, if that changed.
    shape: Option<ClusterShape>,
    /// The policy that decided.
    policy: &'static str,
    epoch: u64,
}

/// A message that needs the cluster state.
#[derive(Debug)]
enum Deferred {
    Query(ToPlacer),
    Renewal(LinkRenews, oneshot::Sender<Option<ToAgent>>),
}

/// How often the store recently contradicted the cluster state.
#[derive(Clone, Copy, Debug, Default)]
struct Contradictions {
    count: u32,
    last: Millis,
}

impl Contradictions {
    /// Counts one more, and returns how long to wait before the snapshot is read again.
    fn count(&mut self, now: Millis) -> Duration {
        let soon = now < self.last.plus(CONTRADICTIONS_WITHIN);
        self.count = if soon { self.count.saturating_add(1) } else { 1 };
        self.last = now;
        let backoff = Backoff::new(RELOAD_PAUSE, CONTRADICTION_PAUSE_MAX);
        // A single contradiction is not a failure yet.
        if self.count == 1 { Duration::ZERO } else { backoff.pause_after(self.count) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The cluster state equals the store.
    Idle,
    /// A round is being decided.
    Deciding,
    /// A round is being committed.
    Committing,
    /// The snapshot is being read again.
    Reloading,
}

impl Placer {
    /// Makes the actor.
    pub fn new(cluster: ClusterState, parts: PlacerParts) -> Self {
        Self {
            parts,
            cluster: Some(Box::new(cluster)),
            deferred: Vec::new(),
            inbox: Vec::new(),
            phase: Phase::Idle,
            links: HashMap::new(),
            sessions: HashMap::new(),
            replies: HashMap::new(),
            operators: HashMap::new(),
            questions: Questions::default(),
            next_token: 0,
            braking: false,
            connection: None,
            rolled_back: None,
            contradictions: Contradictions::default(),
        }
    }

    /// Requests a node to run its checks.
    fn examine(&mut self, node: Option<NodeId>, reply: questions::Reply) {
        let link = node.and_then(|node| self.links.get(self.sessions.get(&node)?));
        match (node, link) {
            (Some(node), Some(link)) => {
                let token = self.questions.add(node, reply);
                link.send(ToAgent::Examine { token });
            }
            // Fails if the requester is gone.
            _ => drop(reply.send(None)),
        }
    }

    /// Adds what is reported of the attempts with an idle timeout.
    fn watch_idle(&mut self) {
        let watched = self.cluster.as_ref().map(|cluster| cluster.idle_watched());
        let Some(watched) = watched.filter(|watched| !watched.is_empty()) else { return };
        let reports = self.parts.figures.idle_of(&watched);
        if !reports.is_empty() {
            self.inbox.push(Input::Idle(reports));
        }
    }

    fn take(&mut self, input: Input, ctx: &mut Context<Self>) {
        self.inbox.push(input);
        self.run(ctx);
    }

    /// Logs once that nodes are not declared lost although their leases ran out, and once that they
    /// are again.
    fn log_silent_nodes(&mut self) {
        let Some(cluster) = &self.cluster else { return };
        let braking = cluster.is_braking(clock::boot());
        if braking && !self.braking {
            tracing::error!("most nodes fell silent at once: none is declared lost");
        } else if !braking && self.braking {
            tracing::info!("most nodes report again");
        }
        self.braking = braking;
    }

    /// Decides, records, then acts: in no other order.
    fn run(&mut self, ctx: &mut Context<Self>) {
        if self.phase != Phase::Idle {
            return;
        }
        let Some(mut cluster) = self.cluster.take() else { return };
        self.phase = Phase::Deciding;
        let inputs = std::mem::take(&mut self.inbox);
        // A search may take long, and other actors share this thread.
        let deciding = tokio::task::spawn_blocking(move || {
            let now = clock::boot();
            cluster.set_wall_clock(now, clock::unix());
            let round = cluster.step(inputs, now, &mut Uuid::now_v7);
            DecidedRound {
                shape: round.shape_changed().then(|| shape_of(&cluster)),
                policy: cluster.policy_name(),
                epoch: cluster.epoch(),
                round,
                cluster,
            }
        });
        ctx.spawn(deciding.into_actor(self).map(|decided, placer, ctx| match decided {
            Ok(decided) => placer.use_round(decided, ctx),
            Err(panic) => {
                tracing::error!(%panic, "a round panicked");
                System::current().stop_with_code(1);
            }
        }));
    }

    fn use_round(&mut self, decided: DecidedRound, ctx: &mut Context<Self>) {
        let DecidedRound { cluster, round, shape, policy, epoch } = decided;
        self.cluster = Some(cluster);
        if let Some(shape) = shape {
            // Published at once: a client that sees an available node may submit for it.
            self.parts.shape.send_replace(Arc::new(shape));
        }
        // Before the next round takes the cluster state away again.
        self.answer_deferred(ctx);
        if let Some(how) = round.rollback.or(self.rolled_back.take()) {
            self.refuse_results(&round.answers.users);
            self.connection = None;
            self.reload(Some(how), Duration::ZERO, ctx);
            return;
        }
        if round.is_empty() {
            self.phase = Phase::Idle;
            self.act(round, CommitFindings::default(), ctx);
            if !self.inbox.is_empty() {
                self.run(ctx);
            }
            return;
        }
        self.phase = Phase::Committing;
        let options = self.parts.options.clone();
        let memory = Arc::clone(&self.parts.candidate.memory);
        let kept = self.connection.take();
        let outbox = self.parts.outbox.clone();
        // Spawned, so that nothing can drop it halfway.
        let commit = tokio::spawn(async move {
            let committed =
                commit_on(kept, &options, &memory, &round, policy, epoch, &outbox).await;
            (round, committed)
        });
        ctx.spawn(commit.into_actor(self).map(|ended, placer, ctx| match ended {
            Ok((round, Ok((connection, findings)))) => {
                placer.connection = Some(connection);
                placer.phase = Phase::Idle;
                placer.act(round, findings, ctx);
                if !placer.inbox.is_empty() {
                    placer.run(ctx);
                }
            }
            Ok((round, Err(error))) => placer.handle_failed_commit(&round, &error, ctx),
            Err(panic) => {
                tracing::error!(%panic, "a commit panicked");
                System::current().stop_with_code(1);
            }
        }));
    }

    fn handle_failed_commit(&mut self, round: &Round, error: &StoreError, ctx: &mut Context<Self>) {
        tracing::warn!(error = %Chain(error), "the round was not committed; the snapshot is read again");
        self.refuse_results(&round.answers.users);
        if let Some(how) = rollback_of(error) {
            self.reload(Some(how), Duration::ZERO, ctx);
            return;
        }
        if matches!(error, StoreError::Deposed { .. }) {
            System::current().stop_with_code(DEPOSED_STATUS);
            return;
        }
        let mut pause = Duration::ZERO;
        if error.is_contradiction() {
            pause = self.contradictions.count(clock::boot());
            let count = self.contradictions.count;
            if count >= CONTRADICTIONS_ALARM {
                tracing::error!(
                    count,
                    error = %Chain(error),
                    "the store keeps contradicting the cluster state: an administrator must look"
                );
            }
        }
        self.reload(None, pause, ctx);
    }

    fn refuse_results(&mut self, results: &[CommandResults]) {
        for (token, _) in results {
            if let Some(reply) = self.replies.remove(token) {
                let _ = reply.send(Err(unavailable()));
            }
        }
    }

    /// Carries out what follows from a committed round.
    fn act(&mut self, mut round: Round, mut findings: CommitFindings, ctx: &mut Context<Self>) {
        let Some(mut cluster) = self.cluster.take() else { return };
        for (token, results) in round.complete_answers(&findings) {
            if let Some(reply) = self.replies.remove(&token) {
                // A disconnected client finds the result in the job.
                let _ = reply.send(Ok(results));
            }
        }
        for event in &round.overrides.events {
            tracing::info!(
                kind = event.kind,
                by = event.by,
                what = event.text,
                "an administrator changed the cluster"
            );
        }
        for (token, answer) in std::mem::take(&mut round.answers.operators) {
            if let Some(reply) = self.operators.remove(&token) {
                // A disconnected client repeats its request: every request may be repeated.
                let _ = reply.send(Ok(answer));
            }
        }
        for moved in round.commanded_changes(&findings) {
            self.carry_out(RoundEffect::Moved(moved));
        }
        prediction_metrics::count_run_outcomes(&round.jobs.ended);
        prediction_metrics::count_deadlines(&round.jobs.ended, clock::unix());
        prediction_metrics::count_growths(&round.jobs.growths);
        prediction_metrics::count_idle(&round.jobs.idle);
        prediction_metrics::count_preemptions(&round.jobs.preemptions);
        prediction_metrics::count_memory_outcomes(cluster.take_memory_outcomes());
        prediction_metrics::export_trust(&cluster.model_status());
        cluster.remember_commanded(&round, &findings, clock::boot());
        let requeued = findings.take_requeued();
        let dependencies = findings.take_dependencies();
        let traces = super::traces::placed(&round.jobs.reservations, &findings.launch_specs);
        cluster.set_launch_specs(findings.launch_specs, &traces);
        for effect in round.effects {
            self.carry_out(effect);
        }
        for effect in cluster.dispatch(clock::boot()) {
            self.carry_out(effect);
        }
        self.cluster = Some(cluster);
        // Before all inputs that arrived meanwhile.
        for input in [dependencies, requeued].into_iter().flatten() {
            self.inbox.insert(0, input);
            ctx.notify(Wake);
        }
    }

    fn carry_out(&mut self, effect: RoundEffect) {
        match effect {
            RoundEffect::Send { node, frame } => {
                let link = self.sessions.get(&node).and_then(|session| self.links.get(session));
                // Not connected: the next session's rounds send it again.
                if let Some(link) = link {
                    link.send(*frame);
                }
            }
            RoundEffect::Refuse { session, reason, retry } => {
                tracing::warn!(session, reason, "agent refused");
                if let Some(link) = self.links.remove(&session) {
                    link.send(ToAgent::Refused { reason, retry });
                }
            }
            RoundEffect::Bind { node, session } => {
                if let Some(old) = self.sessions.insert(node, session)
                    && let Some(link) = self.links.remove(&old)
                {
                    let reason = "a newer connection of this node took over".to_owned();
                    link.send(ToAgent::Refused { reason, retry: false });
                }
            }
            RoundEffect::Moved(moved) => {
                // There may be no listener.
                let _ = self.parts.job_changes.send([moved].into());
            }
        }
    }

    /// Reads the snapshot again, after a rollback of the database if one was found.
    fn reload(
        &mut self,
        rollback: Option<DatabaseRollback>,
        pause: Duration,
        ctx: &mut Context<Self>,
    ) {
        self.phase = Phase::Reloading;
        let reason = "the controller reconnects to the database".to_owned();
        self.parts.readiness.send_replace(Readiness::NotReady { reason });
        for (_, reply) in self.operators.drain() {
            let _ = reply.send(Err(unavailable()));
        }
        for input in std::mem::take(&mut self.inbox) {
            if let Input::Command { token, .. } = input
                && let Some(reply) = self.replies.remove(&token)
            {
                let _ = reply.send(Err(unavailable()));
            }
        }
        let candidate = self.parts.candidate.clone();
        let Some(epoch) = self.cluster.as_ref().map(|cluster| cluster.epoch()) else { return };
        let reading = tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            read_until_it_works(&candidate, epoch, rollback).await
        });
        ctx.spawn(reading.into_actor(self).map(|read, placer, ctx| match read {
            Ok(Ok((epoch, snapshot))) => placer.use_snapshot(epoch, snapshot, ctx),
            Ok(Err(error)) => {
                tracing::error!(error = %Chain(&error), "the snapshot can't be read");
                System::current().stop_with_code(DEPOSED_STATUS);
            }
            Err(panic) => {
                tracing::error!(%panic, "reading the snapshot panicked");
                System::current().stop_with_code(1);
            }
        }));
    }

    fn use_snapshot(&mut self, epoch: u64, snapshot: StoreSnapshot, ctx: &mut Context<Self>) {
        let Some(cluster) = &mut self.cluster else { return };
        cluster.reload(epoch, snapshot, clock::boot());
        // Agents report everything again on new connections, also what did not reach the store.
        for (_, link) in self.links.drain() {
            let reason = "the controller recovers from a rollback of its database".to_owned();
            link.send(ToAgent::Refused { reason, retry: true });
        }
        self.sessions.clear();
        self.parts.epoch.send_replace(epoch);
        self.parts.readiness.send_replace(Readiness::Ready { epoch });
        tracing::info!(epoch, "the cluster state equals the store again");
        self.phase = Phase::Idle;
        self.run(ctx);
    }
}

/// Returns what submits are compared with.
fn shape_of(cluster: &ClusterState) -> ClusterShape {
    let view = cluster.view(clock::boot());
    ClusterShape { largest: largest_possible(&view), known: !view.gpus.is_empty(), view }
}

fn unavailable() -> RequestError {
    RequestError::Unavailable { reason: "the database does not respond".to_owned() }
}

#[derive(Debug, actix::Message)]
#[rtype(result = "()")]
struct Wake;
