use std::collections::HashMap;
use std::sync::Arc;

use tessera_frames::cluster::{
    AttemptReport, AttemptStatus, GpuHealth, GpuReport, Hello, InstanceReport, MigReport,
    PROTOCOL_VERSION, ToController,
};
use tessera_model::lease::LeaseTerms;
use tessera_model::life::JobState;
use tessera_model::mig::{Slot, catalog};
use tessera_model::share::{MpsShare, SliceShare};
use tessera_model::spec::{GpuRequest, JobSpec, RawJobSpec};
use tessera_model::{
    AttemptId, BootId, Bytes, ControllerId, DecisionId, GangMember, GangShape, NodeId, NodeIdentity,
};
use tessera_placement::SharingRequest;
use uuid::Uuid;

use super::*;
use crate::LaunchSpec;
use crate::accounts::AccountSettings;
use crate::accounts::Accounts;
use crate::input::Input;
use crate::rows::snapshot::GpuRow;
use crate::rows::snapshot::LiveRow;
use crate::rows::snapshot::NodeRow;
use crate::rows::snapshot::StoreSnapshot;
use crate::rows::submitted::SubmittedJob;

mod deadline;
mod dependency;
mod large;
mod memory;

const START: Millis = Millis::from_secs(10_000);

/// A job that runs: its number, the index of its GPU, its profile, and its part of it.
type Runs = (u64, u32, &'static str, Option<u8>);

fn node() -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(1))
}

fn slot(profile: &str) -> Slot {
    let geometry = catalog::models()["a100-40gb"].geometry();
    Slot { start: 0, profile: geometry.by_name(&profile.parse().unwrap()).unwrap().id }
}

fn report(index: u32, running: &[Runs]) -> GpuReport {
    let geometry = catalog::models()["a100-40gb"].geometry();
    let profiles = running.iter().filter(|(_, gpu, ..)| *gpu == index).map(|(_, _, name, _)| *name);
    let mut instances: Vec<InstanceReport> = profiles
        .map(|name| {
            let profile = geometry.by_name(&name.parse().unwrap()).unwrap();
            InstanceReport {
                slot: slot(name),
                slice: Some(format!("MIG-{}", Uuid::from_u128(index.into())).parse().unwrap()),
                memory: profile.memory,
                sms: profile.sms,
                trouble: None,
                parts: Vec::new(),
            }
        })
        .collect();
    instances.dedup_by_key(|instance| instance.slot);
    GpuReport {
        gpu: format!("GPU-{index}").parse().unwrap(),
        index,
        model: "a100-40gb".to_owned(),
        memory: Bytes::from_mib(40_960),
        sms: None,
        instances,
        mig: MigReport::On { geometry },
        layout_gen: 0,
        health: GpuHealth::Healthy,
        faults: Vec::new(),
        quarantine: None,
        refused: Vec::new(),
    }
}

fn spec(user: &str, limit_secs: Option<u64>) -> JobSpec {
    let raw = RawJobSpec {
        command: Some(vec!["train".to_owned()]),
        user: Some(user.to_owned()),
        time_limit_secs: limit_secs,
        ..RawJobSpec::default()
    };
    JobSpec::parse(raw).unwrap()
}

fn fresh(number: u64, user: &str, gpu: GpuRequest) -> SubmittedJob {
    let fresh = SubmittedJob::new(JobId::from_number(number), &spec(user, None), None, 0);
    SubmittedJob { gpu, waited: Millis::from_secs(5_000 - number), ..fresh }
}

fn gang(first: u64, user: &str, (nodes, gpus): (u32, u32)) -> Vec<SubmittedJob> {
    let shape = GangShape::new(nodes, gpus).unwrap();
    let gang = JobId::from_number(first);
    let one = |rank: u32| SubmittedJob {
        gang: Some(GangMember { gang, shape, rank }),
        waited: Millis::from_secs(5_000 - first),
        ..fresh(first + u64::from(rank), user, GpuRequest::Whole)
    };
    (0..shape.members()).map(one).collect()
}

fn live(of: &Runs) -> LiveRow {
    let (number, gpu, profile, sm) = *of;
    let part = |sm: u8| MpsShare { sm: sm.try_into().unwrap(), memory: Bytes::from_mib(1_024) };
    LiveRow {
        attempt: AttemptId::from_uuid(Uuid::from_u128(number.into())),
        job: JobId::from_number(number),
        state: JobState::Running,
        number: 1,
        node: node(),
        generation: 1,
        gpu: format!("GPU-{gpu}").parse().unwrap(),
        slot: Some(slot(profile)),
        share: sm.map(|sm| SharingRequest::new("ada", SliceShare::Mps(part(sm)))),
        slice: None,
        decision: DecisionId::from_uuid(Uuid::from_u128(7)),
        waited: Millis::from_secs(1_000),
        ran: Some(Millis::from_secs(900)),
        done: 0,
        gpu_memory: None,
    }
}

fn launch_spec(user: &str) -> LaunchSpec {
    LaunchSpec {
        spec: Arc::new(spec(user, Some(1_000))),
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
    }
}

/// One node with this many A100s, ada's running jobs with 100 s left of their limits, and waiting
/// jobs.
fn cluster(
    gpus: u32,
    running: &[Runs],
    waiting: Vec<SubmittedJob>,
    accounts: Accounts,
) -> ClusterState {
    let row = NodeRow {
        node: node(),
        name: "n1".parse().unwrap(),
        generation: 1,
        lost: false,
        boot: BootId::from_uuid(Uuid::from_u128(1)),
        software: String::new(),
        cores: 1,
        memory_bytes: 1,
        mps: true,
        kernel: false,
        last_seen_unix: Millis::ZERO,
    };
    let reports: Vec<GpuReport> = (0..gpus).map(|index| report(index, running)).collect();
    let snapshot = StoreSnapshot {
        nodes: vec![row],
        gpus: reports
            .iter()
            .map(|report| GpuRow { node: node(), layout_gen: 0, report: report.clone() })
            .collect(),
        live: running.iter().map(live).collect(),
        launch_specs: running
            .iter()
            .map(|(number, ..)| (JobId::from_number(*number), launch_spec("ada")))
            .collect::<HashMap<_, _>>(),
        waiting,
        ..StoreSnapshot::default()
    };
    let controller = ControllerId::from_uuid(Uuid::from_u128(9));
    let policy = tessera_placement::by_name("tessera").unwrap();
    let mut cluster =
        ClusterState::new(5, controller, LeaseTerms::default(), policy, snapshot, START);
    cluster.set_accounts(accounts, Vec::new(), START);
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
        mps: true,
        kernel: false,
        address: String::new(),
        isolation_gaps: std::collections::BTreeSet::new(),
    };
    let peer = NodeIdentity { id: node(), name: "n1".parse().unwrap() };
    let hello = Input::Hello { peer, session: 1, hello: Box::new(hello) };
    cluster.step(vec![hello], START, &mut Uuid::now_v7);
    let frame = |frame| Input::Frame { node: node(), session: 1, frame: Box::new(frame) };
    let mut inputs: Vec<Input> =
        reports.into_iter().map(|report| frame(ToController::Gpu(report))).collect();
    inputs.extend(running.iter().map(|(number, ..)| {
        frame(ToController::Attempt(AttemptReport {
            attempt: AttemptId::from_uuid(Uuid::from_u128((*number).into())),
            job: JobId::from_number(*number),
            status: AttemptStatus::Running { pid: 1, started_unix: Millis::new(1) },
        }))
    }));
    for input in inputs {
        cluster.handle_input(input, START, &mut crate::round::Round::default());
    }
    cluster.handle_input(
        frame(ToController::InventoryDone),
        START,
        &mut crate::round::Round::default(),
    );
    cluster
}

fn explain(cluster: &ClusterState, job: u64) -> WaitingExplanation {
    cluster.explain_waiting(JobId::from_number(job), START).unwrap()
}

#[test]
fn a_waiting_gang_gets_placements_jobs_in_its_way_a_smaller_shape_and_a_start_explained() {
    let running = [(90, 0, "7g.40gb", None)];
    let cluster = cluster(2, &running, gang(1, "bob", (1, 2)), Accounts::default());

    let why = explain(&cluster, 2);

    assert_eq!(why.reason, "resources");
    assert!(why.why.summary.contains("1 of 2 places are free now"), "{}", why.why.summary);
    assert!(why.why.summary.contains("reserved for it: GPU 1"), "{}", why.why.summary);
    let would = why.why.would_start_if.unwrap();
    // It has 100 s of its 1,000 s left, and then 30 s to end.
    assert_eq!(would, "job 90 ends (in 130 s at the latest, by time limits)");
    let changes: Vec<&str> = why.alternatives.iter().map(|inputs| inputs.change.as_str()).collect();
    assert!(changes.contains(&"it requested 1 GPU of one node"), "{changes:?}");
    assert!(changes.iter().any(|change| change.starts_with("job 90 ended")), "{changes:?}");
    let expected = why.expected_start.unwrap();
    assert_eq!(expected.after, Some(Millis::from_secs(100)), "{}", expected.text);
}

#[test]
fn gpus_reserved_for_a_gang_are_used_by_jobs_whose_time_limits_end_before_its_start() {
    let running = [(90, 0, "7g.40gb", None)];
    let mut waiting = gang(1, "bob", (1, 2));
    // Including the 30 s that each has to end, these are 131 s and 130 s.
    waiting.extend([(9, 101), (10, 100)].map(|(number, secs)| {
        let limited =
            SubmittedJob::new(JobId::from_number(number), &spec("bob", Some(secs)), None, 0);
        SubmittedJob {
            gpu: GpuRequest::Whole,
            waited: Millis::from_secs(5_000 - number),
            ..limited
        }
    }));
    let mut cluster = cluster(2, &running, waiting, Accounts::default());

    let round = cluster.step(Vec::new(), START, &mut Uuid::now_v7);

    let started: Vec<u64> = round.jobs.reservations.iter().map(|seat| seat.job.number()).collect();
    assert_eq!(started, [10]);
}

#[test]
fn a_job_and_a_gang_behind_a_gang_with_reserved_gpus_get_the_reservation_explained() {
    let running = [(90, 0, "7g.40gb", None)];
    let mut waiting = gang(1, "bob", (1, 2));
    waiting.extend(gang(5, "bob", (2, 1)));
    waiting.push(fresh(9, "bob", GpuRequest::Whole));
    let cluster = cluster(2, &running, waiting, Accounts::default());

    let job = explain(&cluster, 9);
    assert_eq!((job.reason, job.jobs_ahead), ("resources", 4));
    assert!(job.why.summary.contains("reserved for gang 1"), "{}", job.why.summary);
    let expected = job.expected_start.unwrap();
    let words = "not before some of the 4 jobs ahead of it have run: those take the \
                 capacity that running jobs free";
    assert_eq!((expected.after, expected.text.as_str()), (None, words));
}

#[test]
fn a_gang_under_an_accounts_quota_gets_the_figures_and_the_remedy_explained() {
    let terms = |members: &[&str]| AccountSettings {
        members: members.iter().map(|user| (*user).to_owned()).collect(),
        coordinators: Vec::new(),
        share: 1,
        quota: Some(14),
    };
    let lab = BTreeMap::from([("lab".to_owned(), terms(&["ada", "bob"]))]);
    let accounts = Accounts::new(BTreeMap::new(), lab, None).unwrap();
    let running = [(90, 0, "7g.40gb", None)];
    let cluster = cluster(4, &running, gang(1, "bob", (1, 2)), accounts);

    let why = explain(&cluster, 1);

    assert_eq!(why.reason, "quota");
    assert_eq!(
        why.why.summary,
        "jobs of account lab hold 7 of their limit of 14 compute slices, and this \
         gang of 2 needs at least 14 more"
    );
    assert_eq!(
        why.why.would_start_if.as_deref(),
        Some("jobs of account lab that hold 7 compute slices end, or the quota is raised to 21")
    );
}

#[test]
fn a_job_that_waits_for_a_shared_slice_learns_why_its_jobs_are_not_moved() {
    let running = [(90, 0, "7g.40gb", Some(30)), (91, 0, "7g.40gb", Some(40))];
    let cluster =
        cluster(1, &running, vec![fresh(1, "bob", GpuRequest::Whole)], Accounts::default());

    let why = explain(&cluster, 1).why;

    let words = "GPU 0 of node n1 would have capacity for it without the jobs that share slices \
                 there (90, 91). These jobs are never moved, and have to end: the benefit of a \
                 move is not known";
    assert!(why.summary.contains(words), "{}", why.summary);
}

#[test]
fn a_change_that_would_start_a_job_serves_earlier_jobs_first() {
    let running = [(90, 0, "7g.40gb", None), (91, 1, "7g.40gb", None)];
    let waiting = vec![
        fresh(1, "bob", GpuRequest::Whole),
        fresh(2, "bob", GpuRequest::Whole),
        fresh(3, "bob", GpuRequest::Whole),
    ];
    let cluster = cluster(2, &running, waiting, Accounts::default());

    let first = explain(&cluster, 1);
    assert_eq!((first.reason, first.alternatives.len()), ("resources", 2));
    let second = explain(&cluster, 2);
    assert_eq!(second.reason, "priority");
    assert_eq!(second.alternatives, [], "the end of one job is job 1's start");
    assert_eq!(second.expected_start.unwrap().after, Some(Millis::from_secs(100)));
    let third = explain(&cluster, 3);
    assert_eq!((third.reason, third.alternatives.len()), ("priority", 0));
    let stands = "job 1 requests the same, is ahead in the order of service, and still waits";
    assert!(third.why.summary.ends_with(stands), "{}", third.why.summary);
    assert_eq!(third.why.would_start_if.unwrap(), "job 1 starts or leaves the queue");
    let words = third.expected_start.unwrap().text;
    assert!(words.starts_with("not before some of the 2 jobs ahead of it have run"), "{words}");
}

#[test]
fn a_job_that_could_not_start_on_an_empty_cluster_gets_no_running_jobs_named() {
    let running = [(90, 0, "7g.40gb", None)];
    let waiting = vec![
        fresh(1, "bob", GpuRequest::Memory(Bytes::from_mib(90_000))),
        fresh(2, "bob", GpuRequest::Memory(Bytes::from_mib(90_000))),
    ];
    let mut cluster = cluster(1, &running, waiting, Accounts::default());
    cluster.attempts.live.values_mut().for_each(|live| live.launch_spec = None);

    for job in [1, 2] {
        let expected = explain(&cluster, job).expected_start.unwrap();
        assert_eq!(expected.text, "not even when every job that runs now has ended");
    }
}

#[test]
fn a_job_with_capacity_behind_other_jobs_gets_the_first_job_named() {
    let mut waiting = vec![fresh(1, "bob", GpuRequest::Whole), fresh(2, "bob", GpuRequest::Whole)];
    // Of jobs that come together, the one that needs least would be first.
    let waited = Millis::from_secs(1_000);
    waiting.push(SubmittedJob { waited, ..fresh(3, "bob", GpuRequest::Unknown) });
    let cluster = cluster(1, &[], waiting, Accounts::default());

    let third = explain(&cluster, 3);

    assert_eq!((third.reason, third.jobs_ahead), ("resources", 2));
    assert!(third.why.summary.ends_with("is in use"), "{}", third.why.summary);
    let first = explain(&cluster, 1);
    assert_eq!(first.jobs_ahead, 0);
    assert!(first.why.summary.starts_with("a placement is free for it"), "{}", first.why.summary);
}
