//! A filler whose every launch has a new shape, next to a holder with 2 ms of work and 8 ms of pause. The whole
//! protocol of records and frames runs in virtual time, with samples that come late or never.

#[path = "support/kernel_tasks.rs"]
mod kernel_tasks;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kernel_tasks::{admission, measured};
use tessera_agent_core::kernel::slice::{SliceEffect, SliceQueue};
use tessera_frames::kernel::{PROTOCOL_VERSION, ShimRecord, ToShim};
use tessera_kernel_queue::limits::SHAPES_MAX;
use tessera_kernel_queue::{
    Dims, GateState, GrantBudget, KernelId, KernelIndex, KernelSample, LaunchDecision, Nanos,
    QueueRules, SessionId, TaskProfile,
};

const HOLDER: SessionId = SessionId::new(1);
const FILLER: SessionId = SessionId::new(2);
const WORK: Nanos = Nanos::from_millis(2);
const PAUSE: Nanos = Nanos::from_millis(8);
const TOOK: Nanos = Nanos::from_micros(300);
/// The step of virtual time.
const STEP: Nanos = Nanos::from_micros(10);

/// The delivery of a launch's sample, by the launch's number from 1.
#[derive(Clone, Copy, Debug)]
enum SampleFate {
    /// It arrives with the kernel's end.
    Comes,
    /// It arrives with the next launch, since it was not polled before.
    ComesWithNextLaunch,
    /// It never arrives.
    Lost,
}

/// Decides about the sample of each launch.
type Fate = fn(u64) -> SampleFate;

/// The filler's process: one thread, which launches one kernel after another.
struct FillerProcess {
    budget: GrantBudget,
    /// The number of its waiting launch, from 1.
    launch: u64,
    requested: Option<KernelIndex>,
    /// The queue's reports about each kernel, by launch.
    facts: BTreeMap<u64, (KernelIndex, Option<Nanos>)>,
    defined: u64,
    /// Launches in flight with their starts and ends.
    in_flight: VecDeque<(u64, Nanos, Nanos)>,
    /// Samples that arrive with the next launch.
    late: Vec<ShimRecord>,
    fate: Fate,
}

struct Scene {
    queue: SliceQueue,
    now: Nanos,
    gate: GateState,
    device_free_at: Nanos,
    filler: FillerProcess,
    /// When each of the filler's kernels ran.
    ran: Vec<(Nanos, Nanos)>,
    holder_launches: u64,
}

fn kernel(launch: u64) -> KernelId {
    KernelId::new("step", Dims([u32::try_from(19 + launch).unwrap(), 1, 1]), Dims([256, 1, 1]))
        .unwrap()
}

fn holders_kernel() -> KernelId {
    KernelId::new("holder", Dims([64, 1, 1]), Dims([256, 1, 1])).unwrap()
}

impl Scene {
    /// `ahead` is how long the device runs kernels that the filler launched before its session
    /// began.
    fn new(fate: Fate, ahead: Nanos) -> Self {
        Self::after(TaskProfile::default(), fate, ahead)
    }

    /// The same with a filler whose task was measured with the kernels of a profile.
    fn after(mut other: TaskProfile, fate: Fate, ahead: Nanos) -> Self {
        let now = Nanos::from_millis(1_000);
        let mut queue = SliceQueue::new(QueueRules::default(), GateState::default(), now);
        let (high, low) = (admission(1, 0), admission(2, 9));
        queue.add_profile(&high.task, measured(&holders_kernel(), WORK, PAUSE), now);
        // The filler's task was measured with other kernels.
        other.close_measuring();
        queue.add_profile(&low.task, other, now);
        queue.admit(&high, now);
        queue.admit(&low, now);
        queue.add_session(FILLER, &low, PROTOCOL_VERSION, now).unwrap();
        let filler = FillerProcess {
            budget: GrantBudget::new(),
            launch: 1,
            requested: None,
            facts: BTreeMap::new(),
            defined: 0,
            in_flight: VecDeque::new(),
            late: Vec::new(),
            fate,
        };
        let gate = GateState::default();
        let (ran, holder_launches) = (Vec::new(), 0);
        let device_free_at = now.plus(ahead);
        let mut scene = Self { queue, now, gate, device_free_at, filler, ran, holder_launches };
        // The holder is admitted, and begins a little later.
        scene.pass_until(now.plus(Nanos::from_millis(1)));
        scene.queue.add_session(HOLDER, &high, PROTOCOL_VERSION, scene.now).unwrap();
        scene.carry_out();
        let number = 0;
        scene.report(HOLDER, vec![ShimRecord::Define { number, kernel: holders_kernel() }]);
        scene
    }

    fn report(&mut self, session: SessionId, records: Vec<ShimRecord>) {
        assert!(self.queue.add_records(session, records, self.now));
        self.carry_out();
    }

    fn carry_out(&mut self) {
        let mut effects = Vec::new();
        self.queue.take_effects(&mut effects);
        for effect in effects {
            match effect {
                SliceEffect::Gate(epoch) => self.gate.epoch = epoch,
                SliceEffect::Close(session, why) => panic!("{session:?} ended: {why:?}"),
                SliceEffect::Send(FILLER, frame) => self.filler.receive(frame),
                SliceEffect::Send(..) => {}
            }
        }
    }

    /// The holder's work; then it pauses.
    fn play_task(&mut self) {
        self.gate.launches += 1;
        self.holder_launches += 1;
        let (launch, at) = (self.holder_launches, self.now);
        let (kernel, count) = (KernelIndex::new(0), self.gate.launches);
        let end = self.now.max(self.device_free_at).plus(WORK);
        self.device_free_at = end;
        self.report(HOLDER, vec![ShimRecord::Launch { launch, kernel, count, at }]);
        self.pass_until(end);
        self.report(HOLDER, vec![ShimRecord::Sync { returns: None, at: end }]);
        self.pass_until(end.plus(PAUSE));
    }

    fn pass_until(&mut self, until: Nanos) {
        while self.now < until {
            if self.queue.deadline() <= self.now {
                self.queue.tick(self.now);
                self.carry_out();
            }
            self.play_filler();
            self.now = self.now.plus(STEP);
        }
        self.report(FILLER, vec![ShimRecord::Alive]);
    }

    fn play_filler(&mut self) {
        while let Some((launch, began, end)) = self.filler.in_flight.front().copied() {
            if end > self.now {
                break;
            }
            self.filler.in_flight.pop_front();
            let mut records = Vec::new();
            let index = self.filler.index(launch);
            let took = end.minus(began);
            let sample = KernelSample { kernel: index, before: None, took, gap: None };
            match (self.filler.fate)(launch) {
                SampleFate::Comes => records.push(ShimRecord::Sample(sample)),
                SampleFate::ComesWithNextLaunch => {
                    self.filler.late.push(ShimRecord::Sample(sample));
                }
                SampleFate::Lost => {}
            }
            records.push(ShimRecord::Done { at: self.now });
            self.report(FILLER, records);
        }
        let launch = self.filler.launch;
        let predicted = self.filler.facts.get(&launch).and_then(|facts| facts.1);
        let grant = self.filler.budget.grant().copied();
        let in_flight = u16::try_from(self.filler.in_flight.len()).unwrap();
        match self.filler.budget.spend(predicted, self.gate, in_flight, self.now) {
            LaunchDecision::Launch => self.launch(launch, grant.unwrap().number),
            LaunchDecision::Wait => {}
            LaunchDecision::Request => self.request(launch, grant.map(|grant| grant.number)),
        }
    }

    fn launch(&mut self, launch: u64, grant: u64) {
        let mut records = self.filler.define(launch);
        let (now, kernel) = (self.now, self.filler.index(launch));
        let begins = now.max(self.device_free_at);
        let end = begins.plus(TOOK);
        self.device_free_at = end;
        self.ran.push((begins, end));
        self.filler.in_flight.push_back((launch, begins, end));
        self.filler.launch += 1;
        self.filler.requested = None;
        records.push(ShimRecord::Started { launch, kernel, grant, at: now });
        records.append(&mut self.filler.late);
        self.report(FILLER, records);
    }

    /// As the shim does: first without an index, and then with it. A grant is kept while the index is on its way.
    fn request(&mut self, launch: u64, beyond: Option<u64>) {
        let at = self.now;
        let kernel = self.filler.facts.get(&launch).map(|facts| facts.0);
        let index = kernel.unwrap_or(KernelIndex::UNKNOWN);
        let beyond = if kernel.is_some() {
            self.filler.budget.clear();
            beyond
        } else {
            None
        };
        if self.filler.requested == Some(index) && beyond.is_none() {
            return;
        }
        self.filler.requested = Some(index);
        let mut records = self.filler.define(launch);
        records.push(ShimRecord::Request { launch, kernel: index, beyond, at });
        self.report(FILLER, records);
    }

    /// The filler's part of the idle time from its launch of this number on, in thousandths.
    fn part_of_idle_after(&self, launch: usize, until: Nanos) -> u64 {
        let Some((from, _)) = self.ran.get(launch) else { return 0 };
        let busy = TOOK.times(u64::try_from(self.ran.len() - launch).unwrap());
        let idle = until.minus(*from).get() * PAUSE.get() / WORK.plus(PAUSE).get();
        busy.get() * 1_000 / idle
    }
}

impl FillerProcess {
    /// Returns the index of a launch's kernel, if the process knows it.
    fn index(&self, launch: u64) -> KernelIndex {
        self.facts.get(&launch).map_or(KernelIndex::UNKNOWN, |facts| facts.0)
    }

    /// Defines the kernel of a launch, once.
    fn define(&mut self, launch: u64) -> Vec<ShimRecord> {
        if std::mem::replace(&mut self.defined, launch) == launch {
            return Vec::new();
        }
        vec![ShimRecord::Define { number: u32::try_from(launch).unwrap(), kernel: kernel(launch) }]
    }

    fn receive(&mut self, frame: ToShim) {
        match frame {
            ToShim::Grant(grant) => self.budget.receive(grant),
            ToShim::Revoke { grant }
                if self.budget.grant().is_some_and(|held| held.number == grant) =>
            {
                self.budget.clear();
            }
            ToShim::Defined { number, kernel, sk, .. } => {
                self.facts.insert(u64::from(number), (kernel, sk));
            }
            ToShim::Known { kernel, sk, .. } => {
                for facts in self.facts.values_mut().filter(|facts| facts.0 == kernel) {
                    facts.1 = sk;
                }
            }
            _ => {}
        }
    }
}

const fn comes(_: u64) -> SampleFate {
    SampleFate::Comes
}

const fn comes_with_next_launch(_: u64) -> SampleFate {
    SampleFate::ComesWithNextLaunch
}

const fn the_first_is_lost(launch: u64) -> SampleFate {
    if launch == 1 { SampleFate::Lost } else { SampleFate::Comes }
}

const fn the_first_twenty_are_lost(launch: u64) -> SampleFate {
    if launch <= 20 { SampleFate::Lost } else { SampleFate::ComesWithNextLaunch }
}

const fn every_third_is_lost(launch: u64) -> SampleFate {
    if launch % 3 == 1 { SampleFate::Lost } else { SampleFate::Comes }
}

const fn all_are_lost(_: u64) -> SampleFate {
    SampleFate::Lost
}

#[test]
fn a_filler_with_new_shapes_fills_half_of_the_idle_time_whatever_samples_are_lost_or_late() {
    let scenes: [(&str, Fate); 6] = [
        ("every sample comes", comes),
        ("every sample comes with the next launch", comes_with_next_launch),
        ("the first is lost", the_first_is_lost),
        ("the first twenty are lost, the others late", the_first_twenty_are_lost),
        ("every third is lost", every_third_is_lost),
        ("all are lost", all_are_lost),
    ];
    for (name, fate) in scenes {
        let mut scene = Scene::new(fate, Nanos::ZERO);
        let begun = scene.now;
        let tasks = 60;
        for _ in 0..tasks {
            scene.play_task();
        }

        let launches = scene.ran.len();
        let part = scene.part_of_idle_after(50, scene.now);
        assert!(launches > 50 && part >= 500, "{name}: {launches} launches, {part} thousandths");
        let fiftieth = scene.ran[49].1.minus(begun);
        assert!(fiftieth < Nanos::from_millis(300), "{name}: fifty launches took {fiftieth}");
        let alone = WORK.plus(PAUSE).times(tasks);
        let took = scene.now.minus(begun).get() * 1_000 / alone.get();
        assert!(took <= 1_050, "{name}: the holder took {took} thousandths of its time alone");
    }
}

#[test]
fn a_filler_with_more_shapes_than_a_profile_holds_is_predicted_by_their_classes() {
    let mut full = TaskProfile::default();
    for blocks in 0..u32::from(SHAPES_MAX) {
        full.intern(&KernelId::new("earlier", Dims([blocks, 1, 1]), Dims([256, 1, 1])).unwrap())
            .unwrap();
    }
    let mut scene = Scene::after(full, comes, Nanos::ZERO);
    let begun = scene.now;
    for _ in 0..60 {
        scene.play_task();
    }

    let (launches, part) = (scene.ran.len(), scene.part_of_idle_after(50, scene.now));
    assert!(launches > 500 && part >= 500, "{launches} launches, {part} thousandths");
    assert!(scene.ran[49].1.minus(begun) < Nanos::from_millis(300), "it learns at once");
    let indexes: BTreeSet<_> = scene.filler.facts.values().map(|facts| facts.0).collect();
    assert!(!indexes.contains(&KernelIndex::UNKNOWN), "each of them is known");
    assert!(indexes.len() <= 12, "one for each power of two: {indexes:?}");
}

#[test]
fn kernels_before_the_session_are_no_debt_of_the_first_granted_kernel() {
    // As many launches as a driver takes at once: the end of the first granted one is seen 307 ms later.
    let ahead = TOOK.times(1_024);
    let mut scene = Scene::new(comes, ahead);
    for _ in 0..150 {
        scene.play_task();
    }

    let (launches, part) = (scene.ran.len(), scene.part_of_idle_after(50, scene.now));
    assert!(launches > 50 && part >= 500, "{launches} launches, {part} thousandths");
    assert!(scene.ran[49].1 <= scene.ran[0].1.plus(Nanos::from_millis(300)), "it learns at once");
}
