//! The placer's messages and their handlers.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext as _, Context, Handler, ResponseFuture, StreamHandler};
use tessera_frames::cluster::{ToAgent, ToController};

use super::{Deferred, MAILBOX_CAPACITY, Phase, Placer, TICK_EVERY, Wake, shape_of, unavailable};
use crate::actors::agent_link::{LinkClosed, LinkFrames, LinkOpened, LinkRenews};
use crate::actors::leadership::StoreRolledBack;
use crate::actors::prediction_metrics;
use crate::clock;
use crate::ports::ToPlacer;
use crate::requests::RequestError;
use tessera_control::commands::JobStateChange;
use tessera_control::rows::submitted::SubmittedJob;
use tessera_control::{ClusterState, Input};
use tessera_model::life::JobState;
use tokio::sync::oneshot;

impl Actor for Placer {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX_CAPACITY);
        ctx.run_interval(TICK_EVERY, |placer, ctx| {
            if placer.phase == Phase::Idle {
                placer.watch_idle();
                placer.take(Input::Tick, ctx);
            }
            placer.log_silent_nodes();
        });
        if let Some(cluster) = &self.cluster {
            self.parts.shape.send_replace(Arc::new(shape_of(cluster)));
        }
    }
}

impl Handler<Wake> for Placer {
    type Result = ();

    fn handle(&mut self, _: Wake, ctx: &mut Self::Context) {
        self.run(ctx);
    }
}

impl Handler<StoreRolledBack> for Placer {
    type Result = ();

    fn handle(&mut self, StoreRolledBack(how): StoreRolledBack, ctx: &mut Self::Context) {
        match self.phase {
            Phase::Idle => {
                self.connection = None;
                self.reload(Some(how), Duration::ZERO, ctx);
            }
            Phase::Deciding => self.rolled_back = Some(how),
            // A commit under way is on a connection to the lost state and fails; a reload looks itself.
            Phase::Committing | Phase::Reloading => {}
        }
    }
}

impl Handler<LinkOpened> for Placer {
    type Result = ();

    fn handle(&mut self, opened: LinkOpened, ctx: &mut Self::Context) {
        let LinkOpened { session, peer, hello, link } = opened;
        if self.phase == Phase::Reloading {
            let reason = "the controller recovers from a rollback of its database".to_owned();
            link.send(ToAgent::Refused { reason, retry: true });
            return;
        }
        self.links.insert(session, link);
        self.take(Input::Hello { peer, session, hello }, ctx);
    }
}

impl Handler<LinkFrames> for Placer {
    type Result = ();

    fn handle(&mut self, sent: LinkFrames, ctx: &mut Self::Context) {
        let LinkFrames { session, node, frames } = sent;
        if self.phase == Phase::Reloading {
            return;
        }
        let frames = frames.into_iter().filter_map(|frame| match frame {
            ToController::Examined { token, findings } => {
                self.questions.answer(node, token, findings);
                None
            }
            other => Some(Box::new(other)),
        });
        self.inbox.extend(frames.map(|frame| Input::Frame { node, session, frame }));
        self.run(ctx);
    }
}

impl Handler<LinkRenews> for Placer {
    type Result = ResponseFuture<Option<ToAgent>>;

    fn handle(&mut self, renewal: LinkRenews, ctx: &mut Self::Context) -> Self::Result {
        let (reply, answer) = oneshot::channel();
        self.use_cluster(Deferred::Renewal(renewal, reply), ctx);
        Box::pin(async move { answer.await.ok().flatten() })
    }
}

impl Handler<LinkClosed> for Placer {
    type Result = ();

    fn handle(&mut self, closed: LinkClosed, ctx: &mut Self::Context) {
        let LinkClosed { session, node } = closed;
        self.questions.forget(node);
        self.links.remove(&session);
        if self.sessions.get(&node) == Some(&session) {
            self.sessions.remove(&node);
        }
        if self.phase != Phase::Reloading {
            self.take(Input::Closed { node, session }, ctx);
        }
    }
}

impl StreamHandler<Vec<SubmittedJob>> for Placer {
    fn handle(&mut self, jobs: Vec<SubmittedJob>, ctx: &mut Self::Context) {
        // Kept through a reload: they may have been accepted after its snapshot was taken. Those
        // that it has read are known then, and left as they are.
        let queued = |job: &SubmittedJob| JobStateChange {
            job: job.job,
            attempt: None,
            state: JobState::Queued,
        };
        // There may be no listener.
        let _ = self.parts.job_changes.send(jobs.iter().map(queued).collect());
        self.take(Input::Submitted(jobs), ctx);
    }

    fn finished(&mut self, _: &mut Self::Context) {}
}

impl Placer {
    /// Draws a token for a command. While the state is being read again, the command is refused.
    fn admit<T>(
        &mut self,
        reply: oneshot::Sender<Result<T, RequestError>>,
    ) -> Option<oneshot::Sender<Result<T, RequestError>>> {
        if self.phase == Phase::Reloading {
            let _ = reply.send(Err(unavailable()));
            return None;
        }
        self.next_token += 1;
        Some(reply)
    }

    /// Answers from the cluster state: now, or once the round that has it is decided.
    fn use_cluster(&mut self, message: Deferred, ctx: &mut Context<Self>) {
        let Some(mut cluster) = self.cluster.take() else {
            self.deferred.push(message);
            return;
        };
        match message {
            Deferred::Query(query) => self.answer(&mut cluster, query),
            Deferred::Renewal(renewal, reply) => {
                // The connection may be closed.
                let _ = reply.send(self.renew(&mut cluster, &renewal));
            }
        }
        self.cluster = Some(cluster);
        if !self.inbox.is_empty() {
            self.run(ctx);
        }
    }

    /// Answers what arrived while a round was being decided.
    pub(super) fn answer_deferred(&mut self, ctx: &mut Context<Self>) {
        for message in std::mem::take(&mut self.deferred) {
            self.use_cluster(message, ctx);
        }
    }

    fn answer(&mut self, cluster: &mut ClusterState, query: ToPlacer) {
        // A caller that hung up doesn't need its answer: refused sends don't matter here.
        match query {
            ToPlacer::Explain { job, reply } => {
                let Some(inquiry) = cluster.explain_query(job) else {
                    let _ = reply.send(None);
                    return;
                };
                // Outside of rounds: an answer calls the policy many times.
                tokio::task::spawn_blocking(move || {
                    let _ = reply.send(inquiry.answer(clock::boot()));
                });
            }
            ToPlacer::ForecastDeadline { spec, reply } => {
                let query = cluster.deadline_query(&spec, clock::boot());
                tokio::task::spawn_blocking(move || {
                    let _ = reply.send(query.answer(clock::boot()));
                });
            }
            ToPlacer::UseRunTimeModel { model, accurate } => {
                cluster.use_run_time_model(model, &accurate);
                prediction_metrics::export_trust(&cluster.model_status());
            }
            ToPlacer::UseColocationModel { model, accurate } => {
                cluster.use_colocation_model(model, &accurate);
                prediction_metrics::export_trust(&cluster.model_status());
            }
            ToPlacer::UseSettings { settings, accounts } => {
                cluster.replace_accounts(accounts);
                settings.apply_to(cluster);
                self.inbox.push(Input::Tick);
            }
            ToPlacer::RecordTaskLoad { tasks } => cluster.record_task_load(tasks),
            ToPlacer::DescribeModels { reply } => {
                let _ = reply.send(cluster.model_status());
            }
            ToPlacer::DescribeMemory { job, gpu, reply } => {
                let _ = reply.send(cluster.memory_overview(job, gpu.as_ref(), clock::boot()));
            }
            ToPlacer::DescribeNodes { reply } => {
                let _ = reply.send(cluster.describe(clock::boot()));
            }
            ToPlacer::ListWaitReasons { reply } => {
                let is_known = self.phase != Phase::Reloading;
                let _ = reply.send(is_known.then(|| cluster.wait_reasons()));
            }
            ToPlacer::ReportPower { reply } => {
                let _ = reply.send(cluster.power_report(clock::boot()));
            }
            ToPlacer::ReportUsage { reply } => {
                let _ = reply.send(cluster.usage(clock::boot()));
            }
            ToPlacer::FindCaller { node, attempt, reply } => {
                let _ = reply.send(cluster.caller_job(node, attempt));
            }
            ToPlacer::ExamineNode { node, reply } => self.examine(cluster.node_named(&node), reply),
            ToPlacer::PreviewLayout { gpu, desired, reply } => {
                let _ = reply.send(cluster.preview_layout(&gpu, &desired));
            }
            ToPlacer::ListAvailability { gpu, ends, reply } => {
                let _ = reply.send(cluster.gpu_availability(&gpu, &ends));
            }
            // They need no cluster state.
            ToPlacer::Command { .. }
            | ToPlacer::Operate { .. }
            | ToPlacer::OpenLog { .. }
            | ToPlacer::OpenSession { .. } => {}
        }
    }

    fn renew(&self, cluster: &mut ClusterState, renewal: &LinkRenews) -> Option<ToAgent> {
        let LinkRenews { session, node, sent, generation } = *renewal;
        let now = clock::boot();
        if !self.parts.candidate.trust.holds(now) {
            return None;
        }
        cluster.renew_lease(node, session, sent, generation, now, clock::unix())
    }
}

impl StreamHandler<ToPlacer> for Placer {
    fn handle(&mut self, query: ToPlacer, ctx: &mut Self::Context) {
        // A caller that hung up doesn't need its answer: refused sends don't matter here.
        match query {
            ToPlacer::Command { command, jobs, reply } => {
                if let Some(reply) = self.admit(reply) {
                    self.replies.insert(self.next_token, reply);
                    self.take(Input::Command { token: self.next_token, command, jobs }, ctx);
                }
            }
            ToPlacer::OpenLog { node, request, reply } => {
                let link = self.sessions.get(&node).and_then(|session| self.links.get(session));
                let _ = reply.send(link.map(|link| link.open_log(request)));
            }
            ToPlacer::OpenSession { node, request, reply } => {
                let link = self.sessions.get(&node).and_then(|session| self.links.get(session));
                let _ = reply.send(link.map(|link| link.open_session(request)));
            }
            ToPlacer::Operate { command, reply } => {
                if let Some(reply) = self.admit(reply) {
                    let (token, now_unix) = (self.next_token, clock::unix());
                    self.operators.insert(token, reply);
                    self.take(Input::Operate { token, command, now_unix }, ctx);
                }
            }
            other => self.use_cluster(Deferred::Query(other), ctx),
        }
    }

    fn finished(&mut self, _: &mut Self::Context) {}
}
