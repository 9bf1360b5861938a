mod growth;
mod just_in_time;
mod learning;
mod preemption;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tessera_frames::cluster::{
    AttemptReport, AttemptStatus, GpuHealth, GpuReport, Hello, InstanceReport, MigReport,
    PROTOCOL_VERSION, StopCause, ToAgent, ToController,
};
use tessera_model::life::{JobState, Outcome};
use tessera_placement::{InstanceState, StayingJobs};

use tessera_model::lease::LeaseTerms;
use tessera_model::mig::{Layout, catalog};
use tessera_model::spec::{JobSpec, RawJobSpec};
use tessera_model::{BootId, Bytes, ControllerId, NodeId, NodeIdentity};
use tessera_placement::{Decision, JobTable as _, Knowledge, PlacedJob, Policy, QueuedJob};

use super::*;
use crate::LaunchSpec;
use crate::input::Input;
use crate::predictions::TaskFacts;
use crate::round::{Round, RoundEffect};
use crate::rows::snapshot::GpuRow;
use crate::rows::snapshot::LiveRow;
use crate::rows::snapshot::NodeRow;
use crate::rows::snapshot::StoreSnapshot;

const START: Millis = Millis::from_secs(10_000);
const GPU: &str = "GPU-1";

/// A policy that decides the given reshapes once.
#[derive(Clone, Debug, Default)]
struct GivenReshapes(Arc<Mutex<Vec<Reshape>>>);

impl Policy for GivenReshapes {
    fn name(&self) -> &'static str {
        "told"
    }

    fn moves(&self) -> bool {
        true
    }

    fn decide_with(
        &self,
        _: &ClusterView,
        _: Knowledge<'_>,
        _: &mut dyn Iterator<Item = &QueuedJob>,
        _: Millis,
        _: usize,
    ) -> Vec<Decision> {
        let given = std::mem::take(&mut *self.0.lock().unwrap());
        let why =
            Explanation { summary: "its node was notified".to_owned(), ..Explanation::default() };
        given.into_iter().map(|reshape| Decision::Reshape { reshape, why: why.clone() }).collect()
    }
}

struct Rig {
    cluster: ClusterState,
    policy: GivenReshapes,
}

fn slot(name: &str, start: u8) -> Slot {
    let geometry = catalog::models()["a100-40gb"].geometry();
    Slot { start, profile: geometry.by_name(&name.parse().unwrap()).unwrap().id }
}

fn job(number: u64) -> JobId {
    JobId::from_number(number)
}

fn attempt(number: u64) -> AttemptId {
    AttemptId::from_uuid(Uuid::from_u128(u128::from(number)))
}

fn node() -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(1))
}

fn report(standing: &[Slot]) -> GpuReport {
    let geometry = catalog::models()["a100-40gb"].geometry();
    let instance = |slot: &Slot| InstanceReport {
        slot: *slot,
        slice: Some(format!("MIG-{}", Uuid::from_u128(slot.start.into())).parse().unwrap()),
        memory: geometry.profile(slot.profile).unwrap().memory,
        sms: geometry.profile(slot.profile).unwrap().sms,
        trouble: None,
        parts: Vec::new(),
    };
    GpuReport {
        gpu: GPU.parse().unwrap(),
        index: 0,
        model: "a100-40gb".to_owned(),
        memory: Bytes::from_mib(40_960),
        sms: None,
        instances: standing.iter().map(instance).collect(),
        mig: MigReport::On { geometry },
        layout_gen: 0,
        health: GpuHealth::Healthy,
        faults: Vec::new(),
        quarantine: None,
        refused: Vec::new(),
    }
}

impl Rig {
    /// One A100 with jobs that run, each in its slot; those with a signal can be moved.
    fn new(running: &[(u64, Slot, Option<&str>)]) -> Self {
        Self::with(running, |_| {})
    }

    /// The same, with a changed snapshot.
    fn with(
        running: &[(u64, Slot, Option<&str>)],
        change: impl FnOnce(&mut StoreSnapshot),
    ) -> Self {
        let gpu = report(&running.iter().map(|(_, slot, _)| *slot).collect::<Vec<_>>());
        let node_row = NodeRow {
            node: node(),
            name: "n1".parse().unwrap(),
            generation: 1,
            lost: false,
            boot: BootId::from_uuid(Uuid::from_u128(1)),
            software: String::new(),
            cores: 1,
            memory_bytes: 1,
            mps: false,
            kernel: false,
            last_seen_unix: Millis::ZERO,
        };
        let live = running.iter().map(|(number, slot, _)| LiveRow {
            attempt: attempt(*number),
            job: job(*number),
            state: JobState::Running,
            number: 1,
            node: node(),
            generation: 1,
            gpu: GPU.parse().unwrap(),
            slot: Some(*slot),
            share: None,
            slice: None,
            decision: DecisionId::from_uuid(Uuid::from_u128(7)),
            waited: Millis::from_secs(1_000),
            ran: Some(Millis::from_secs(900)),
            done: 0,
            gpu_memory: None,
        });
        let launch_specs = running.iter().map(|(number, _, signal)| {
            let launch_spec = LaunchSpec {
                spec: Arc::new(spec(*signal)),
                array: None,
                gang: None,
                traceparent: None,
                charged: 0,
                uncharged: 0,
                attempts: 1,
                relimited: false,
                restart_reason: None,
                waited: Millis::from_secs(1_000),
                done: 0,
                own: Default::default(),
            };
            (job(*number), launch_spec)
        });
        let mut snapshot = StoreSnapshot {
            nodes: vec![node_row],
            gpus: vec![GpuRow { node: node(), layout_gen: 0, report: gpu.clone() }],
            live: live.collect(),
            launch_specs: launch_specs.collect::<HashMap<_, _>>(),
            ..StoreSnapshot::default()
        };
        change(&mut snapshot);
        let policy = GivenReshapes::default();
        let controller = ControllerId::from_uuid(Uuid::from_u128(9));
        let (terms, boxed) = (LeaseTerms::default(), Box::new(policy.clone()));
        let cluster = ClusterState::new(5, controller, terms, boxed, snapshot, START);
        let mut rig = Self { cluster, policy };
        rig.step(vec![hello()], Millis::ZERO);
        let mut frames = vec![frame(ToController::Gpu(gpu))];
        frames.extend(running.iter().map(|(number, ..)| runs(*number)));
        frames.push(frame(ToController::InventoryDone));
        rig.step(frames, Millis::ZERO);
        rig
    }

    fn step(&mut self, inputs: Vec<Input>, after: Millis) -> Round {
        self.cluster.step(inputs, START.plus(after), &mut Uuid::now_v7)
    }

    /// Lets the policy decide this, and returns the round with what is sent after it.
    fn decide(&mut self, reshape: Reshape, after: Millis) -> (Round, Vec<(AttemptId, StopCause)>) {
        self.policy.0.lock().unwrap().push(reshape);
        let round = self.step(vec![Input::Tick], after);
        let sent = self.cluster.dispatch(START.plus(after));
        let stops = sent.into_iter().filter_map(|effect| match effect {
            RoundEffect::Send { frame, .. } => match *frame {
                ToAgent::Stop { attempt, cause, .. } => Some((attempt, cause)),
                _ => None,
            },
            _ => None,
        });
        (round, stops.collect())
    }
}

fn spec(signal: Option<&str>) -> JobSpec {
    let raw = RawJobSpec {
        command: Some(vec!["train".to_owned()]),
        checkpoint_signal: signal.map(str::to_owned),
        grace_secs: Some(10),
        ..RawJobSpec::default()
    };
    JobSpec::parse(raw).unwrap()
}

fn hello() -> Input {
    Input::Hello {
        peer: NodeIdentity { id: node(), name: "n1".parse().unwrap() },
        session: 1,
        hello: Box::new(Hello {
            protocol: PROTOCOL_VERSION,
            software: String::new(),
            boot: BootId::from_uuid(Uuid::from_u128(1)),
            process: 1,
            generation: 1,
            highest_epoch: 5,
            receipt: Vec::new(),
            controller: None,
            cores: 1,
            memory: Bytes::new(1),
            mps: false,
            kernel: false,
            address: String::new(),
            isolation_gaps: std::collections::BTreeSet::new(),
        }),
    }
}

fn frame(frame: ToController) -> Input {
    Input::Frame { node: node(), session: 1, frame: Box::new(frame) }
}

fn runs(number: u64) -> Input {
    let status = AttemptStatus::Running { pid: 1, started_unix: Millis::new(1) };
    let report = AttemptReport { attempt: attempt(number), job: job(number), status };
    frame(ToController::Attempt(report))
}

fn ended(number: u64, outcome: Outcome) -> Input {
    let record = crate::rows::transitions::record_without_exit(outcome, String::new());
    let status = AttemptStatus::Ended(record);
    let report = AttemptReport { attempt: attempt(number), job: job(number), status };
    frame(ToController::Attempt(report))
}

fn reshape(layout: &[Slot], places: &[(u64, Slot)]) -> Reshape {
    let place = |(number, slot): &(u64, Slot)| PlacedJob::alone(job(*number), *slot);
    Reshape {
        gpu: GPU.parse().unwrap(),
        layout: layout.iter().copied().collect::<Layout>(),
        placements: places.iter().map(place).collect(),
        trial: None,
        stayers: StayingJobs::RunOn,
    }
}

fn to_the_left() -> Reshape {
    let (left, right) = (slot("3g.20gb", 0), slot("3g.20gb", 4));
    reshape(&[left, right], &[(1, left)])
}

#[test]
fn a_job_is_requested_to_checkpoint_and_continues_on_its_kept_placement() {
    let mut rig = Rig::new(&[(1, slot("2g.10gb", 4), Some("USR1"))]);

    let (asked, sent) = rig.decide(to_the_left(), Millis::from_secs(3));
    assert_eq!(sent, [(attempt(1), StopCause::Move)]);
    assert_eq!(asked.jobs.migrations.len(), 1);
    let why = &asked.jobs.migrations[0].why.summary;
    assert!(why.contains("2g.10gb@4 of GPU 0 of node n1 to 3g.20gb@0"), "{why}");
    assert!(
        why.contains("expected to cost 30 s") && why.contains("its node was notified"),
        "{why}"
    );
    let done = rig.step(vec![ended(1, Outcome::Preempted)], Millis::from_secs(5));

    assert!(!done.jobs.ended[0].charged && !done.jobs.ended[0].uncharged, "{:?}", done.jobs.ended);
    assert_eq!(done.jobs.reservations.len(), 1);
    assert_eq!(done.jobs.reservations[0].place.slot, Some(slot("3g.20gb", 0)));
    assert_eq!(done.plans.begun.len(), 1, "its slice is created");
}

#[test]
fn a_job_rests_after_its_start_and_then_has_a_price() {
    let running = [(1, slot("2g.10gb", 4), Some("USR1")), (2, slot("2g.10gb", 2), None)];
    let ran = Millis::from_secs(100);
    let rig = Rig::with(&running, |snapshot| {
        snapshot.live.iter_mut().for_each(|live| live.ran = Some(ran));
    });
    let facts = |number, after| {
        let forecast = crate::forecast::ClusterForecast::new(&rig.cluster, START.plus(after));
        forecast.facts(job(number))
    };
    let rested = rig.cluster.migrations.cooldown.minus(ran);

    let early = facts(1, rested.minus(Millis::new(1)));
    assert_eq!((early.resting, early.migration_price), (true, None));
    let late = facts(1, rested);
    assert_eq!((late.resting, late.migration_price.is_some()), (false, true));
    let never = facts(2, Millis::from_secs(1));
    assert_eq!((never.resting, never.migration_price), (false, None));
}

#[test]
fn a_policy_knows_where_a_running_job_may_run_from_the_specification_that_it_was_started_from() {
    let running = [(1, slot("2g.10gb", 4), Some("USR1")), (2, slot("2g.10gb", 2), Some("USR1"))];
    let rig = Rig::with(&running, |snapshot| {
        let launch = snapshot.launch_specs.get_mut(&job(1)).unwrap();
        let mut spec = (*launch.spec).clone();
        spec.place.exclude.insert("n2".parse().unwrap());
        launch.spec = Arc::new(spec);
    });
    let forecast = crate::forecast::ClusterForecast::new(&rig.cluster, START);

    let place = forecast.place(job(1)).unwrap();
    assert!(!place.allows(&"n2".parse().unwrap(), "a100-40gb"), "{place:?}");
    assert!(place.allows(&"n1".parse().unwrap(), "a100-40gb"), "{place:?}");
    assert_eq!(forecast.place(job(2)), None);
    assert_eq!(forecast.restricted(), [job(1)]);
    assert_eq!(forecast.place(job(3)), None, "it does not exist");
}

#[test]
fn a_job_that_does_not_end_in_time_keeps_its_slice_and_is_not_migrated_again() {
    let mut rig = Rig::new(&[(1, slot("2g.10gb", 4), Some("USR1"))]);
    rig.decide(to_the_left(), Millis::from_secs(3));

    let late = rig.step(vec![Input::Tick], Millis::from_secs(3 + 10 + 30));
    assert!(late.jobs.ended.is_empty() && late.jobs.reservations.is_empty());
    assert!(
        rig.cluster.migrations.has_reluctant_jobs()
            && !rig.cluster.migrations.has_kept_placement(job(1))
    );
    let (again, sent) = rig.decide(to_the_left(), Millis::from_secs(60));
    assert!(again.jobs.migrations.is_empty() && sent.is_empty(), "it is not migrated again");
    let end = rig.step(vec![ended(1, Outcome::Succeeded)], Millis::from_secs(70));
    assert_eq!(end.jobs.ended[0].to, JobState::Succeeded);
}

#[test]
fn no_other_job_gets_a_kept_placement() {
    let mut rig = Rig::new(&[(1, slot("2g.10gb", 4), Some("USR1"))]);
    rig.decide(to_the_left(), Millis::from_secs(3));

    let view = rig.cluster.view(START.plus(Millis::from_secs(4)));

    assert!(view.gpus[0].changing);
    let idle = view.gpus[0].instances.iter().filter(|i| i.state == InstanceState::Idle).count();
    assert_eq!(idle, 0);
}

#[test]
fn a_reshape_that_can_not_be_carried_out_moves_no_job() {
    let here = slot("2g.10gb", 4);
    let (left, right) = (slot("3g.20gb", 0), slot("3g.20gb", 4));
    let far = slot("1g.5gb", 6);
    let movable = [(1, here, Some("USR1")), (2, far, Some("USR1"))];
    let stiff = [(1, here, None), (2, far, Some("USR1"))];
    let trial = Reshape { trial: Some(Millis::from_secs(1)), ..to_the_left() };
    let restarted = Reshape { stayers: StayingJobs::Restart, ..to_the_left() };
    let elsewhere = Reshape { gpu: "GPU-9".parse().unwrap(), ..to_the_left() };
    let cases = [
        ("it can't checkpoint", &stiff, reshape(&[left, here, far], &[(1, left), (2, far)])),
        ("it would be in the way", &movable, reshape(&[left, right], &[(1, right)])),
        ("two jobs have one slot", &movable, reshape(&[left, right], &[(1, left), (2, left)])),
        ("one job has two slots", &movable, reshape(&[left, right], &[(1, left), (1, right)])),
        ("the layout is illegal", &movable, reshape(&[left, slot("7g.40gb", 0)], &[(1, left)])),
        ("the slot is not in the layout", &movable, reshape(&[right], &[(1, left)])),
        ("the job is unknown", &movable, reshape(&[left, here, far], &[(3, left), (1, here)])),
        ("trials are not supported", &movable, trial),
        ("jobs that keep their slots are not restarted", &movable, restarted),
        ("there is no such GPU", &movable, elsewhere),
    ];
    for (what, running, unsound) in cases {
        let mut rig = Rig::new(running);

        let (round, sent) = rig.decide(unsound, Millis::from_secs(3));

        assert!(round.jobs.migrations.is_empty() && sent.is_empty(), "{what}: {round:?}");
        assert!(
            round.jobs.reservations.is_empty() && round.plans.begun.is_empty(),
            "{what}: {round:?}"
        );
    }
}
