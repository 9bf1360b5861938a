//! Reads the state from the store: at the start, and whenever the two may differ.

use crate::LaunchSpec;
use crate::arrivals::enqueue;
use crate::gangs::ended_before_leader;
use crate::memory_growth::resume_growths;
use crate::memory_requests::{measure_largest_slice, memory_request, sized};
use crate::predictions::{TaskFacts, unknown};
use crate::preemption::resume_preemptions;
use crate::rows::overrides::AdminOverrideRow;
use crate::rows::snapshot::{GpuRow, LiveRow, NodeRow, OpenPlan, StoreSnapshot};
use crate::state::accounting::Accounting;
use crate::state::attempts::{AttemptTable, LiveAttempt, TimeLimitNotice};
use crate::state::guards::LeaderGuards;
use crate::state::inventory::{GpuState, NodeInventory, NodeState, capacity};
use crate::state::layouts::{LayoutInProgress, LayoutRequests};
use crate::state::migrations::Migrations;
use crate::state::overrides::OverrideTable;
use crate::state::planner::Planner;
use crate::state::predictions::Predictions;
use crate::state::queue::JobQueue;
use crate::state::watches::MemoryWatches;
use crate::state::{ClusterState, RoundClock};
use std::sync::Arc;
use tessera_model::lease::LeaseTerms;
use tessera_model::life::JobState;
use tessera_model::spec::{GpuRequest, Priority};
use tessera_model::{Bytes, ControllerId, Millis};
use tessera_placement::Policy;

impl ClusterState {
    /// Builds the state from the store. Every node gets a new lease, since the earlier leader may
    /// have renewed the old one (rule F4).
    pub fn new(
        epoch: u64,
        controller: ControllerId,
        terms: LeaseTerms,
        policy: Box<dyn Policy>,
        snapshot: StoreSnapshot,
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
            watches: MemoryWatches::default(),
            overrides: OverrideTable::default(),
            planner: Planner::new(policy.into()),
            clock: RoundClock { unix: Millis::ZERO, round_at: now, unix_ahead: Millis::ZERO },
        };
        cluster.read_snapshot(snapshot, now);
        cluster
    }

    /// Replaces the state by that of the store. Only the ends of leases are kept: agents report
    /// everything else again, so that it also reaches the store.
    pub fn reload(&mut self, epoch: u64, snapshot: StoreSnapshot, now: Millis) {
        self.guards.epoch = epoch;
        self.inventory.duplicates.clear();
        self.queue.clear();
        self.accounting.ledger.release_all(&self.accounting.accounts, now);
        self.attempts.clear();
        self.layouts.clear();
        self.migrations.forget();
        self.watches.forget();
        // The records of failed rounds were not stored.
        self.planner.recorder.begin_new_chain();
        self.inventory.gpus.clear();
        self.read_snapshot(snapshot, now);
    }

    fn read_snapshot(&mut self, mut snapshot: StoreSnapshot, now: Millis) {
        // The store's clock may have been set; this one is monotonic.
        self.guards.hold_until = self.guards.hold_until.max(now.plus(snapshot.hold_left));
        self.guards.granted_until = self.guards.granted_until.max(now.plus(snapshot.granted_left));
        self.guards.generation_min = self.guards.generation_min.max(snapshot.generation_min);
        read_nodes(&mut self.inventory, snapshot.nodes, self.guards.expiry_from(now));
        read_gpus(&mut self.inventory, snapshot.gpus, snapshot.plans);
        let keyed = |row: AdminOverrideRow| ((row.kind, row.target.clone()), row);
        self.overrides.in_force = snapshot.overrides.into_iter().map(keyed).collect();
        // Earlier runs are read first: they determine the memory of jobs that name no size.
        self.predictions.learn_runs(&snapshot.runs);
        for sample in &snapshot.memory_samples {
            self.predictions.estimator.learn_memory(sample);
        }
        measure_largest_slice(&mut self.inventory, &mut self.queue, &self.predictions);
        for row in snapshot.waiting {
            let submitted = now.minus(row.waited);
            let Self { queue, attempts, predictions, inventory, .. } = &mut *self;
            enqueue(queue, attempts, predictions, inventory, row, submitted);
        }
        for (task, took) in &snapshot.migrations {
            self.predictions.learn_migration(task, *took);
        }
        self.predictions.checkpoints.clear();
        for kept in snapshot.checkpoints {
            self.predictions.add_checkpoint(kept.job, kept.on, kept.ran);
        }
        for row in snapshot.live {
            let launch_spec = snapshot.launch_specs.remove(&row.job);
            let attempt = row.attempt;
            let live = live_attempt(&self.predictions, &self.inventory, row, launch_spec, now);
            self.accounting.charge(&live.user, live.weight, now);
            self.attempts.insert(attempt, live);
        }
        let Self { attempts, migrations, watches, .. } = self;
        resume_growths(attempts, migrations, watches, &snapshot.growths, now);
        let StoreSnapshot { preemptions, sent_back, .. } = snapshot;
        resume_preemptions(attempts, migrations, &self.queue, preemptions, &sent_back, now);
    }
}

/// Reads the nodes. Known nodes keep the ends of their leases.
fn read_nodes(inventory: &mut NodeInventory, rows: Vec<NodeRow>, new_expiry: Millis) {
    let mut known = std::mem::take(&mut inventory.nodes);
    for row in rows {
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
            // Agents report again in a new session what the store missed.
            session: None,
            expiry: known.remove(&row.node).map_or(new_expiry, |node| node.expiry),
            last_seen_unix: row.last_seen_unix,
        };
        inventory.nodes.insert(row.node, node);
    }
}

/// Reads the GPUs with the plans that are under way on them.
fn read_gpus(inventory: &mut NodeInventory, rows: Vec<GpuRow>, plans: Vec<OpenPlan>) {
    for row in rows {
        let mig = inventory.mig_view(&row.report);
        let gpu = GpuState {
            node: row.node,
            layout_gen: row.layout_gen.max(row.report.layout_gen),
            report: row.report,
            mig,
            fresh: false,
            open_plan: None,
            layout_in_progress: None,
            paused_until: Millis::ZERO,
            failures: 0,
        };
        inventory.gpus.insert(gpu.report.gpu.clone(), gpu);
    }
    for plan in plans {
        if let Some(gpu) = inventory.gpus.get_mut(&plan.gpu) {
            gpu.open_plan = Some(plan.plan);
            gpu.layout_in_progress = plan.requested_layout.map(LayoutInProgress::resume);
        }
    }
}

/// Returns a live attempt from the store, with its predictions.
fn live_attempt(
    predictions: &Predictions,
    inventory: &NodeInventory,
    row: LiveRow,
    launch_spec: Option<LaunchSpec>,
    now: Millis,
) -> LiveAttempt {
    let spec = launch_spec.as_ref().map(|launch_spec| &launch_spec.spec);
    let facts = spec.map_or_else(unknown, |spec| Arc::new(TaskFacts::of(spec)));
    let priority = spec.map_or(Priority::DEFAULT, |spec| spec.queue_rank.priority);
    let share = predictions.with_service_order(row.share, &facts, priority);
    let on = inventory.slice_kind(&row.gpu, row.slot).filter(|_| share.is_none());
    let run_prediction = on.map(|on| predictions.predict_attempt(row.job, &facts, row.done, on));
    let declared = spec.map_or(GpuRequest::Unknown, |spec| spec.gpu.clone());
    let own = launch_spec.as_ref().map(|launch_spec| launch_spec.own).unwrap_or_default();
    let gang = launch_spec.as_ref().and_then(|launch_spec| launch_spec.gang);
    let memory = memory_request(predictions, inventory, &declared, &facts, own, gang);
    let (request, _) = sized(&declared, None, memory.as_ref());
    let of_slice = || inventory.gpus.get(&row.gpu).map(|gpu| capacity(gpu, row.slot));
    let gpu_memory = row.gpu_memory.or_else(of_slice).unwrap_or(Bytes::ZERO);
    let is_relimited = launch_spec.as_ref().is_some_and(|launch_spec| launch_spec.relimited);
    let mut live = LiveAttempt {
        requeue: false,
        weight: inventory.usage_weight(&row.gpu, row.slot, share.as_ref().map(|s| s.share)),
        limit: match is_relimited {
            true => TimeLimitNotice::Due,
            false => TimeLimitNotice::AsLaunched,
        },
        user: spec.map_or("", |spec| spec.user.as_str()).into(),
        gang,
        end: None,
        request,
        facts,
        submitted: now.minus(row.waited),
        placed: now.minus(row.ran.unwrap_or_default()),
        began: row.ran.map(|ran| now.minus(ran)),
        done: row.done,
        memory: memory.filter(|_| run_prediction.is_some()).and_then(|memory| memory.learned()),
        run_prediction,
        refused: Bytes::ZERO,
        gpu_memory,
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
        launch_spec,
    };
    live.end = ended_before_leader(inventory, &live);
    live
}
