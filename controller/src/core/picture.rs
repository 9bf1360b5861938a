//! Where the picture comes from: the store, at the start and whenever the two may differ.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tessera_model::lease::LeaseTerms;
use tessera_model::life::JobState;
use tessera_model::spec::{GpuAsk, Priority};
use tessera_model::{Bytes, ControllerId, JobId, Millis};
use tessera_placement::record::Recorder;
use tessera_placement::{Policy, QueuedJob};

use super::accounts::{Accounts, Book};
use super::foresight::Facts;
use super::{Cluster, Gpu, Live, Node, Waiting};
use crate::store::load::Picture;
use crate::store::submit::FreshJob;

impl Cluster {
    /// Builds the picture from the store. Every node gets a fresh lease: it may have been
    /// renewed by the leader before (rule F4).
    pub fn new(
        epoch: u64,
        controller: ControllerId,
        terms: LeaseTerms,
        policy: Box<dyn Policy>,
        picture: Picture,
        now: Millis,
    ) -> Self {
        let mut cluster = Self {
            epoch,
            controller,
            terms,
            policy: policy.into(),
            nodes: BTreeMap::new(),
            gpus: BTreeMap::new(),
            queue: BTreeMap::new(),
            ranks: HashMap::new(),
            rivals: BTreeMap::new(),
            live: BTreeMap::new(),
            attempts: HashMap::new(),
            mig_views: Vec::new(),
            moved: BTreeMap::new(),
            hold_until: Millis::ZERO,
            granted_until: Millis::ZERO,
            generation_floor: 0,
            unsent_plans: Vec::new(),
            words: BTreeMap::new(),
            wishes: Vec::new(),
            now_unix: Millis::ZERO,
            moving: super::moving::Moving::default(),
            move_rest: super::moving::MOVE_REST,
            stopwatch: Arc::new(super::Standstill),
            improve_for: super::IMPROVE_FOR,
            reviewed: None,
            estimator: super::foresight::taught::Forecaster::default(),
            ended: super::floors::Ended::default(),
            memory_came: super::foresight::Outcomes::default(),
            largest: Bytes::ZERO,
            busy: Arc::default(),
            forest: super::company::Forest::default(),
            asides: BTreeMap::new(),
            accounts: Accounts::default(),
            book: Book::default(),
            lines: BTreeMap::new(),
            stepped: now,
            recorder: Recorder::default(),
            broken: BTreeSet::new(),
        };
        cluster.take_in(picture, now);
        cluster
    }

    /// Replaces the picture by what the store says now. Only the ends of leases stay: whatever
    /// else agents reported since is asked for again, so that it reaches the store too.
    pub fn reload(&mut self, epoch: u64, picture: Picture, now: Millis) {
        self.epoch = epoch;
        self.rivals.clear();
        self.queue.clear();
        self.ranks.clear();
        self.lines.clear();
        self.book.let_go(&self.accounts, now);
        self.live.clear();
        self.attempts.clear();
        self.unsent_plans.clear();
        self.wishes.clear();
        self.moving = super::moving::Moving::default();
        // The records of rounds that failed were not stored.
        self.recorder.forget();
        self.broken.clear();
        self.gpus.clear();
        self.take_in(picture, now);
    }

    fn take_in(&mut self, mut picture: Picture, now: Millis) {
        // The store's clock may have been set; this one only goes on.
        self.hold_until = self.hold_until.max(now.plus(picture.hold_left));
        self.granted_until = self.granted_until.max(now.plus(picture.granted_left));
        self.generation_floor = self.generation_floor.max(picture.generation_floor);
        let mut known = std::mem::take(&mut self.nodes);
        for row in picture.nodes {
            let kept = known.remove(&row.node);
            let expiry = kept.as_ref().map_or_else(|| self.expiry_from(now), |node| node.expiry);
            let node = Node {
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
            self.nodes.insert(row.node, node);
        }
        for row in picture.gpus {
            let mig = self.mig_view(&row.report);
            let gpu = Gpu {
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
            self.gpus.insert(gpu.report.gpu.clone(), gpu);
        }
        for plan in picture.plans {
            if let Some(gpu) = self.gpus.get_mut(&plan.gpu) {
                gpu.open_plan = Some(plan.plan);
                gpu.wish = plan.wish.map(super::layouts::Wish::resume);
            }
        }
        let keyed = |word: crate::store::operator::Word| ((word.kind, word.target.clone()), word);
        self.words = picture.words.into_iter().map(keyed).collect();
        // First what earlier runs had: jobs that name no size ask for it.
        self.learn(&picture.lessons);
        picture.memories.iter().for_each(|lesson| self.estimator.learn_memory(lesson));
        self.measure_largest();
        for row in picture.waiting {
            let submitted = now.minus(row.waited);
            self.enqueue(row, submitted);
        }
        picture.moves.iter().for_each(|(task, took)| self.learn_move(task, *took));
        self.asides.clear();
        picture
            .asides
            .into_iter()
            .for_each(|aside| self.note_aside(aside.job, aside.on, aside.ran));
        for row in picture.live {
            let sheet = picture.sheets.remove(&row.job);
            let spec = sheet.as_ref().map(|sheet| &sheet.spec);
            let facts = spec.map_or_else(super::foresight::unknown, |s| Arc::new(Facts::of(s)));
            let priority = spec.map_or(Priority::DEFAULT, |spec| spec.priority);
            let share = self.with_turn(row.share, &facts, priority);
            let foretold = match share {
                None => self.foretell(row.job, &facts, row.done, &row.gpu, row.slot),
                Some(_) => None,
            };
            let asked = spec.map_or(GpuAsk::Unknown, |spec| spec.gpu.clone());
            let memory = self.floor(&asked, &facts).filter(|_| foretold.is_some());
            let gang = sheet.as_ref().and_then(|sheet| sheet.gang);
            let user: Arc<str> = spec.map_or("", |spec| spec.user.as_str()).into();
            let worth = self.worth(&row.gpu, row.slot, share.as_ref().map(|s| s.share));
            self.charge(&user, worth, now);
            let mut live = Live {
                worth,
                limit: match sheet.as_ref().is_some_and(|sheet| sheet.relimited) {
                    true => super::LimitWord::Due,
                    false => super::LimitWord::AsLaunched,
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
            live.over = self.over_before(&live);
            self.attempts.insert(row.job, row.attempt);
            self.live.insert(row.attempt, live);
        }
    }

    pub(super) fn enqueue(&mut self, fresh: FreshJob, submitted: Millis) {
        let FreshJob { job, gang, gpu, user, share, priority, attempts, facts, waited: _, done } =
            fresh;
        // An accepted job may be announced after a reload has read it already.
        if self.attempts.contains_key(&job) || self.ranks.contains_key(&job) {
            return;
        }
        self.ranks.insert(job, priority);
        self.lines.entry(Arc::clone(&user)).or_default().insert((priority, job));
        let share = self.with_turn(share, &facts, priority);
        let floor = self.floor(&gpu, &facts);
        let gpu = floor.map_or(gpu, |floor| GpuAsk::Memory(floor.bytes));
        let asked = QueuedJob { id: job, gpu, user, share, priority, submitted, gang };
        let waiting = Waiting { asked, attempts, reason: None, facts, done, floor };
        self.queue.insert((priority, job), waiting);
    }

    pub(super) fn dequeue(&mut self, job: JobId) -> Option<Waiting> {
        let priority = self.ranks.remove(&job)?;
        let waiting = self.queue.remove(&(priority, job))?;
        let user = &waiting.asked.user;
        if let Some(line) = self.lines.get_mut(user) {
            line.remove(&(priority, job));
            if line.is_empty() {
                self.lines.remove(user);
            }
        }
        Some(waiting)
    }
}
