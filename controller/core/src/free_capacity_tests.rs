//! A round that can start nothing runs no policy, and starts no less.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use serde_json::Value;
use tessera_frames::cluster::{
    AttemptReport, AttemptStatus, ExitRecord, GpuHealth, GpuReport, Hello, InstanceReport,
    MigReport, PROTOCOL_VERSION, PlanEnd, ToController,
};
use tessera_model::lease::LeaseTerms;
use tessera_model::life::Outcome;
use tessera_model::mig::{PlanStep, Slot, catalog};
use tessera_model::spec::{GpuRequest, JobSpec, RawJobSpec};
use tessera_model::{
    AttemptId, BootId, Bytes, ControllerId, GpuId, JobId, Millis, NodeId, NodeIdentity,
};
use tessera_placement::policy::SliceManner;
use tessera_placement::{ClusterView, Decision, Knowledge, Policy, QueuedJob};
use uuid::Uuid;

use crate::LaunchSpec;
use crate::input::Input;
use crate::round::Round;
use crate::rows::snapshot::{GpuRow, NodeRow, StoreSnapshot};
use crate::rows::submitted::SubmittedJob;
use crate::state::ClusterState;

const START: Millis = Millis::from_secs(10_000);
const SECOND: u64 = 1_000;
const WHOLE: &str = "7g.40gb";
const SMALL: &str = "1g.5gb";

/// A policy that counts how often it decides.
#[derive(Debug)]
struct CountedPolicy {
    policy: Box<dyn Policy>,
    runs: Arc<AtomicUsize>,
}

impl Policy for CountedPolicy {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn moves(&self) -> bool {
        self.policy.moves()
    }

    fn settings(&self) -> Value {
        self.policy.settings()
    }

    fn shares_fairly(&self) -> bool {
        self.policy.shares_fairly()
    }

    fn needs_run_times(&self) -> bool {
        self.policy.needs_run_times()
    }

    fn slice_manner(&self) -> SliceManner {
        self.policy.slice_manner()
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.policy.decide_with(cluster, knowledge, queue, now, starts_max)
    }
}

/// A cluster of one node with A100s, whose agent carries out commands at once.
struct Rig {
    cluster: ClusterState,
    runs: Arc<AtomicUsize>,
    now: Millis,
    instances: Vec<Vec<Slot>>,
    running: BTreeMap<JobId, AttemptId>,
    next_job: u64,
    /// Whether every round runs the policy.
    always_searches: bool,
    /// Whether run times are learned from ends.
    learns: bool,
}

impl Rig {
    fn new(policy: &str, gpus: usize) -> Self {
        let runs = Arc::default();
        let counted = CountedPolicy {
            policy: tessera_placement::by_name(policy).unwrap(),
            runs: Arc::clone(&runs),
        };
        let instances = vec![Vec::new(); gpus];
        let gpu_row = |(index, instances): (usize, &Vec<Slot>)| GpuRow {
            node: node(),
            layout_gen: 0,
            report: report(index, instances),
        };
        let snapshot = StoreSnapshot {
            nodes: vec![node_row()],
            gpus: instances.iter().enumerate().map(gpu_row).collect(),
            ..StoreSnapshot::default()
        };
        let controller = ControllerId::from_uuid(Uuid::from_u128(9));
        let terms = LeaseTerms::default();
        let cluster = ClusterState::new(5, controller, terms, Box::new(counted), snapshot, START);
        let mut rig = Self {
            cluster,
            runs,
            now: START,
            instances,
            running: BTreeMap::new(),
            next_job: 1,
            always_searches: false,
            learns: false,
        };
        rig.step(vec![hello()]);
        let mut frames: Vec<Input> = (0..gpus).map(|gpu| rig.gpu_frame(gpu)).collect();
        frames.push(frame(ToController::InventoryDone));
        rig.step(frames);
        rig
    }

    /// Runs a round with its consequences. Returns where jobs start.
    fn step(&mut self, inputs: Vec<Input>) -> Vec<(JobId, GpuId, Option<Slot>)> {
        let mut starts = Vec::new();
        let mut inputs = Some(inputs);
        while let Some(next) = inputs.take() {
            if self.always_searches {
                self.cluster.planner.settled.unsettle();
            }
            let round = self.cluster.step(next, self.now, &mut Uuid::now_v7);
            let placed = round.jobs.reservations.iter();
            starts.extend(placed.map(|r| (r.job, r.place.gpu.clone(), r.place.slot)));
            inputs = self.answer(&round);
        }
        starts
    }

    /// Does what a round decided, as the store and the node would.
    fn answer(&mut self, round: &Round) -> Option<Vec<Input>> {
        let jobs = round.jobs.reservations.iter().map(|reserved| reserved.job);
        let specs: HashMap<JobId, LaunchSpec> = jobs.map(|job| (job, launch_spec())).collect();
        self.cluster.set_launch_specs(specs, &HashMap::new());
        self.cluster.dispatch(self.now);
        let mut frames = Vec::new();
        for plan in &round.plans.begun {
            let gpu: usize = plan.gpu.as_str().strip_prefix("GPU-").unwrap().parse().unwrap();
            for step in &plan.steps {
                match *step {
                    PlanStep::Destroy(slot) => self.instances[gpu].retain(|known| *known != slot),
                    PlanStep::Create(slot) => self.instances[gpu].push(slot),
                    PlanStep::Cut(..) => unreachable!("no job requests a compute instance"),
                }
            }
            frames.push(self.gpu_frame(gpu));
            let (plan, gpu) = (plan.plan, plan.gpu.clone());
            frames.push(frame(ToController::PlanEnded { plan, gpu, end: PlanEnd::Done }));
        }
        for reserved in &round.jobs.reservations {
            self.running.insert(reserved.job, reserved.attempt);
        }
        let launched = round.jobs.ready.iter().map(|ready| (ready.job, ready.attempt));
        let at_once = round.jobs.reservations.iter().filter(|reserved| reserved.slice.is_some());
        let launched = launched.chain(at_once.map(|reserved| (reserved.job, reserved.attempt)));
        let started_unix = self.now;
        frames.extend(launched.map(|(job, attempt)| {
            let status = AttemptStatus::Running { pid: 1, started_unix };
            frame(ToController::Attempt(AttemptReport { attempt, job, status }))
        }));
        (!frames.is_empty()).then_some(frames)
    }

    fn gpu_frame(&self, gpu: usize) -> Input {
        frame(ToController::Gpu(report(gpu, &self.instances[gpu])))
    }

    fn submit(&mut self, profile: &str) -> Vec<(JobId, GpuId, Option<Slot>)> {
        self.submit_with(profile, GpuRequest::Profile(profile.parse().unwrap()))
    }

    /// Submits a run of a task.
    fn submit_with(&mut self, task: &str, gpu: GpuRequest) -> Vec<(JobId, GpuId, Option<Slot>)> {
        let job = JobId::from_number(self.next_job);
        self.next_job += 1;
        let submitted = SubmittedJob { gpu, ..SubmittedJob::new(job, &spec(task), None, 0) };
        self.step(vec![Input::Submitted(vec![submitted])])
    }

    /// Lets the job at this place among those that run end.
    fn end(&mut self, place: usize) -> Vec<(JobId, GpuId, Option<Slot>)> {
        let Some((job, attempt)) = self.running.iter().nth(place).map(|(j, a)| (*j, *a)) else {
            return Vec::new();
        };
        self.running.remove(&job);
        let (began, ended) = match self.learns {
            true => (self.now.minus(Millis::from_secs(100)), self.now),
            false => (Millis::ZERO, Millis::ZERO),
        };
        let record = ExitRecord {
            outcome: Outcome::Succeeded,
            exit: None,
            detail: String::new(),
            started_unix: began,
            ended_unix: ended,
            user_time: Millis::ZERO,
            system_time: Millis::ZERO,
            max_rss: Bytes::ZERO,
        };
        let status = AttemptStatus::Ended(record);
        self.step(vec![frame(ToController::Attempt(AttemptReport { attempt, job, status }))])
    }

    fn wait(&mut self, millis: u64) -> Vec<(JobId, GpuId, Option<Slot>)> {
        self.now = self.now.plus(Millis::new(millis));
        self.step(vec![Input::Tick])
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::Relaxed)
    }
}

fn node() -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(1))
}

fn node_row() -> NodeRow {
    NodeRow {
        node: node(),
        name: "n1".parse().unwrap(),
        generation: 1,
        lost: false,
        boot: BootId::from_uuid(Uuid::from_u128(1)),
        software: String::new(),
        cores: 1,
        memory_bytes: 1,
        last_seen_unix: Millis::ZERO,
        mps: false,
        kernel: false,
    }
}

fn hello() -> Input {
    let hello = Hello {
        protocol: PROTOCOL_VERSION,
        software: String::new(),
        boot: BootId::from_uuid(Uuid::from_u128(1)),
        process: 1,
        generation: 1,
        highest_epoch: 0,
        receipt: Vec::new(),
        controller: None,
        cores: 1,
        memory: Bytes::new(1),
        mps: false,
        kernel: false,
        address: String::new(),
        isolation_gaps: std::collections::BTreeSet::new(),
    };
    let peer = NodeIdentity { id: node(), name: "n1".parse().unwrap() };
    Input::Hello { peer, session: 1, hello: Box::new(hello) }
}

fn frame(frame: ToController) -> Input {
    Input::Frame { node: node(), session: 1, frame: Box::new(frame) }
}

fn report(index: usize, instances: &[Slot]) -> GpuReport {
    let geometry = catalog::models()["a100-40gb"].geometry();
    let instance = |slot: &Slot| {
        let profile = geometry.profile(slot.profile).unwrap();
        let id =
            (index as u128 + 1) << 64 | u128::from(slot.profile.0) << 32 | u128::from(slot.start);
        InstanceReport {
            slot: *slot,
            slice: Some(format!("MIG-{}", Uuid::from_u128(id)).parse().unwrap()),
            memory: profile.memory,
            sms: profile.sms,
            trouble: None,
            parts: Vec::new(),
        }
    };
    GpuReport {
        gpu: format!("GPU-{index}").parse().unwrap(),
        index: index.try_into().unwrap(),
        model: "a100-40gb".to_owned(),
        memory: Bytes::from_mib(40_960),
        sms: None,
        instances: instances.iter().map(instance).collect(),
        mig: MigReport::On { geometry },
        layout_gen: 0,
        health: GpuHealth::Healthy,
        faults: Vec::new(),
        quarantine: None,
        refused: Vec::new(),
    }
}

fn spec(task: &str) -> JobSpec {
    let (command, name) = (Some(vec!["train".to_owned()]), Some(task.to_owned()));
    JobSpec::parse(RawJobSpec { command, name, ..RawJobSpec::default() }).unwrap()
}

fn launch_spec() -> LaunchSpec {
    LaunchSpec {
        spec: Arc::new(spec("train")),
        array: None,
        gang: None,
        traceparent: None,
        charged: 0,
        uncharged: 0,
        attempts: 1,
        relimited: false,
        restart_reason: None,
        waited: Millis::ZERO,
        done: 0,
        own: Default::default(),
    }
}

#[test]
fn an_end_that_frees_what_no_job_requests_runs_no_policy() {
    let mut rig = Rig::new("tessera", 1);
    for _ in 0..7 {
        assert_eq!(rig.submit(SMALL).len(), 1);
    }
    assert!(rig.submit(WHOLE).is_empty());
    rig.wait(SECOND);
    let before = rig.runs();

    for _ in 0..6 {
        assert!(rig.end(0).is_empty());
    }

    assert_eq!(rig.runs(), before, "six ends that free too little");
    assert_eq!(rig.end(0).len(), 1, "the last one frees the GPU");
    assert!(rig.runs() > before);
}

#[test]
fn a_job_that_nothing_free_could_hold_runs_no_policy_while_other_jobs_end() {
    let mut rig = Rig::new("tessera", 1);
    for _ in 0..7 {
        rig.submit(SMALL);
    }
    rig.submit(WHOLE);
    rig.wait(SECOND);
    let before = rig.runs();

    for _ in 0..5 {
        rig.end(0);
        assert!(rig.submit(WHOLE).is_empty());
    }

    assert_eq!(rig.runs(), before);
    rig.submit(SMALL);
    assert!(rig.runs() > before, "another request is considered at once");
}

#[test]
fn what_was_skipped_is_considered_within_a_second() {
    let mut rig = Rig::new("tessera", 1);
    rig.submit(SMALL);
    rig.submit(SMALL);
    rig.submit(WHOLE);
    rig.wait(SECOND);
    rig.end(0);
    let before = rig.runs();

    rig.wait(SECOND);

    assert!(rig.runs() > before);
}

/// What happens in a cluster.
#[derive(Clone, Debug)]
enum Event {
    Submit(GpuRequest),
    End(usize),
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let profile = prop::sample::select(vec![SMALL, "2g.10gb", "3g.20gb", "4g.20gb", WHOLE]);
    let request = prop_oneof![
        4 => profile.prop_map(|name| GpuRequest::Profile(name.parse().unwrap())),
        2 => (1_u64..40).prop_map(|gib| GpuRequest::Memory(Bytes::from_mib(1_024 * gib))),
        1 => Just(GpuRequest::Unknown),
        1 => Just(GpuRequest::Whole),
    ];
    prop_oneof![
        4 => request.prop_map(Event::Submit),
        4 => (0_usize..8).prop_map(Event::End),
        2 => (1_u64..1_500).prop_map(Event::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_round_without_a_search_would_have_started_nothing_or_it_starts_within_a_second(
        policy in prop::sample::select(vec!["tessera", "scheme-b", "static", "exclusive"]),
        gpus in 1_usize..4,
        learns in any::<bool>(),
        events in prop::collection::vec(event(), 1..60),
    ) {
        let mut rig = Rig::new(policy, gpus);
        let mut searching = Rig::new(policy, gpus);
        searching.always_searches = true;
        (rig.learns, searching.learns) = (learns, learns);

        for event in events {
            let apply = |rig: &mut Rig| match event.clone() {
                Event::Submit(request) => rig.submit_with("train", request),
                Event::End(place) => rig.end(place),
                Event::Wait(millis) => rig.wait(millis),
            };
            let (starts, expected) = (apply(&mut rig), apply(&mut searching));
            if starts == expected {
                continue;
            }
            // For a second, neither an equal request nor time alone brings a search. But sizes depend on how many jobs wait
            // and for how long, so a search would have started one. It comes within that second. An end that frees
            // enough for a waiting job brings a search at once.
            let may_come_later = matches!(event, Event::Submit(_) | Event::Wait(_));
            prop_assert!(may_come_later && starts.is_empty(), "after {:?}", event);
            let late = rig.wait(SECOND);
            prop_assert!(!late.is_empty(), "a second after {:?}", event);
            // From now on, both have other pasts.
            return Ok(());
        }
        prop_assert!(rig.runs() <= searching.runs());
    }
}
