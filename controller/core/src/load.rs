//! How the state is read from the store: at the start, and whenever the two may differ.

use crate::predictions::TaskFacts;
use crate::rows::snapshot::StoreSnapshot;
use crate::rows::submitted::SubmittedJob;
use crate::state::ClusterState;
use crate::state::attempts::LiveAttempt;
use crate::state::inventory::{GpuState, NodeState};
use crate::state::queue::WaitingJob;
use std::sync::Arc;
use tessera_model::lease::LeaseTerms;
use tessera_model::life::JobState;
use tessera_model::spec::{GpuRequest, Priority};
use tessera_model::{ControllerId, Millis};
use tessera_placement::{Policy, QueuedJob};

use crate::state::RoundClock;
use crate::state::accounting::Accounting;
use crate::state::attempts::AttemptTable;
use crate::state::guards::LeaderGuards;
use crate::state::inventory::NodeInventory;
use crate::state::layouts::LayoutRequests;
use crate::state::migrations::Migrations;
use crate::state::overrides::OverrideTable;
use crate::state::planner::Planner;
use crate::state::predictions::Predictions;
use crate::state::queue::JobQueue;

impl ClusterState {
    /// Builds the state from the store. Every node gets a fresh lease, since the earlier leader
    /// may have renewed it (rule F4).
    pub fn new(
        epoch: u64,
        controller: ControllerId,
        terms: LeaseTerms,
        policy: Box<dyn Policy>,
        picture: StoreSnapshot,
        now: Millis,
    ) -> Self {
        let mut cluster = Self {
            guards: LeaderGuards {
                epoch,
                controller,
                lease: terms,
                hold_until: Millis::ZERO,
                granted_until: Millis::ZERO,
                generation_min: 0,
            },
            inventory: NodeInventory::default(),
            queue: JobQueue::default(),
            attempts: AttemptTable::default(),
            layouts: LayoutRequests::default(),
            migrations: Migrations::default(),
            accounting: Accounting::default(),
            predictions: Predictions::default(),
            overrides: OverrideTable::default(),
            planner: Planner::new(policy.into()),
            clock: RoundClock { unix: Millis::ZERO, round_at: now },
        };
        cluster.take_in(picture, now);
        cluster
    }

    /// Replaces the state by what the store has now. Only the ends of leases are kept: agents
    /// report everything else again, so that it reaches the store, too.
    pub fn reload(&mut self, epoch: u64, picture: StoreSnapshot, now: Millis) {
        self.guards.epoch = epoch;
        self.inventory.duplicates.clear();
        self.queue.waiting.clear();
        self.queue.ranks.clear();
        self.queue.user_lines.clear();
        self.accounting.ledger.release_all(&self.accounting.accounts, now);
        self.attempts.live.clear();
        self.attempts.by_job.clear();
        self.layouts.unsent_plans.clear();
        self.layouts.pending.clear();
        self.migrations.forget();
        // The records of rounds that failed were not stored.
        self.planner.recorder.begin_new_chain();
        self.attempts.broken_gangs.clear();
        self.inventory.gpus.clear();
        self.take_in(picture, now);
    }

    fn take_in(&mut self, mut picture: StoreSnapshot, now: Millis) {
        // The store's clock may have been set; this one only goes on.
        self.guards.hold_until = self.guards.hold_until.max(now.plus(picture.hold_left));
        self.guards.granted_until = self.guards.granted_until.max(now.plus(picture.granted_left));
        self.guards.generation_min = self.guards.generation_min.max(picture.generation_floor);
        let mut known = std::mem::take(&mut self.inventory.nodes);
        for row in picture.nodes {
            let kept = known.remove(&row.node);
            let expiry =
                kept.as_ref().map_or_else(|| self.guards.expiry_from(now), |node| node.expiry);
            let node = NodeState {
                name: row.name,
                generation: row.generation,
                lost: row.lost,
                boot: row.boot,
                software: row.software,
                cores: row.cores,
                memory_bytes: row.memory_bytes,
                mps: row.mps,
                kernel: row.kernel,
                // Agents repeat what the store missed to a new session.
                session: None,
                expiry,
                last_seen_unix: row.last_seen_unix,
            };
            self.inventory.nodes.insert(row.node, node);
        }
        for row in picture.gpus {
            let mig = self.inventory.mig_view(&row.report);
            let gpu = GpuState {
                node: row.node,
                layout_gen: row.layout_gen.max(row.report.layout_gen),
                report: row.report,
                mig,
                fresh: false,
                open_plan: None,
                wish: None,
                paused_until: Millis::ZERO,
                failures: 0,
            };
            self.inventory.gpus.insert(gpu.report.gpu.clone(), gpu);
        }
        for plan in picture.plans {
            if let Some(gpu) = self.inventory.gpus.get_mut(&plan.gpu) {
                gpu.open_plan = Some(plan.plan);
                gpu.wish = plan.wish.map(crate::state::layouts::LayoutInProgress::resume);
            }
        }
        let keyed = |word: crate::rows::overrides::AdminOverrideRow| {
            ((word.kind, word.target.clone()), word)
        };
        self.overrides.in_force = picture.words.into_iter().map(keyed).collect();
        // First what earlier runs had: jobs that name no size ask for it.
        self.predictions.learn_runs(&picture.lessons);
        picture.memories.iter().for_each(|lesson| self.predictions.estimator.learn_memory(lesson));
        self.measure_largest_slice();
        for row in picture.waiting {
            let submitted = now.minus(row.waited);
            self.enqueue(row, submitted);
        }
        picture.moves.iter().for_each(|(task, took)| self.predictions.learn_migration(task, *took));
        self.predictions.checkpoints.clear();
        picture
            .asides
            .into_iter()
            .for_each(|aside| self.predictions.add_checkpoint(aside.job, aside.on, aside.ran));
        for row in picture.live {
            let sheet = picture.sheets.remove(&row.job);
            let spec = sheet.as_ref().map(|sheet| &sheet.spec);
            let facts =
                spec.map_or_else(crate::predictions::unknown, |s| Arc::new(TaskFacts::of(s)));
            let priority = spec.map_or(Priority::DEFAULT, |spec| spec.queue_rank.priority);
            let share = self.predictions.with_service_order(row.share, &facts, priority);
            let foretold = match share {
                None => self.predict_attempt(row.job, &facts, row.done, &row.gpu, row.slot),
                Some(_) => None,
            };
            let asked = spec.map_or(GpuRequest::Unknown, |spec| spec.gpu.clone());
            let memory = self.memory_request(&asked, &facts).filter(|_| foretold.is_some());
            let gang = sheet.as_ref().and_then(|sheet| sheet.gang);
            let user: Arc<str> = spec.map_or("", |spec| spec.user.as_str()).into();
            let weight =
                self.inventory.usage_weight(&row.gpu, row.slot, share.as_ref().map(|s| s.share));
            self.accounting.charge(&user, weight, now);
            let mut live = LiveAttempt {
                weight,
                limit: match sheet.as_ref().is_some_and(|sheet| sheet.relimited) {
                    true => crate::state::attempts::TimeLimitNotice::Due,
                    false => crate::state::attempts::TimeLimitNotice::AsLaunched,
                },
                user,
                gang,
                over: None,
                asked,
                facts,
                submitted: now.minus(row.waited),
                began: row.ran.map(|ran| now.minus(ran)),
                done: row.done,
                foretold,
                memory: memory.map(|asked| asked.floor),
                peak: None,
                job: row.job,
                state: row.state,
                number: row.number,
                node: row.node,
                generation: row.generation,
                gpu: row.gpu,
                slot: row.slot,
                share,
                slice: row.slice,
                decision: row.decision,
                traceparent: None,
                sent: None,
                acknowledged: row.state == JobState::Running,
                sheet,
            };
            live.over = self.ended_before_leader(&live);
            self.attempts.by_job.insert(row.job, row.attempt);
            self.attempts.live.insert(row.attempt, live);
        }
    }

    pub(crate) fn enqueue(&mut self, fresh: SubmittedJob, submitted: Millis) {
        let SubmittedJob {
            job,
            gang,
            gpu,
            user,
            share,
            queue_rank,
            attempts,
            facts,
            waited: _,
            done,
        } = fresh;
        // An accepted job may be announced after a reload has read it already.
        if self.attempts.by_job.contains_key(&job) || self.queue.ranks.contains_key(&job) {
            return;
        }
        self.queue.ranks.insert(job, queue_rank);
        self.queue.user_lines.entry(Arc::clone(&user)).or_default().insert((queue_rank, job));
        let share = self.predictions.with_service_order(share, &facts, queue_rank.priority);
        let floor = self.memory_request(&gpu, &facts);
        let gpu = floor.map_or(gpu, |floor| GpuRequest::Memory(floor.bytes));
        let asked = QueuedJob { id: job, gpu, user, share, queue_rank, submitted, gang };
        let waiting = WaitingJob { asked, attempts, reason: None, facts, done, floor };
        self.queue.waiting.insert((queue_rank, job), waiting);
    }
}
