//! A GPU whose driver lists more placements than can be planned with.

use crate::input::Input;
use crate::rows::snapshot::{GpuRow, NodeRow, StoreSnapshot};
use crate::rows::submitted::SubmittedJob;
use crate::state::ClusterState;
use std::collections::BTreeMap;
use tessera_frames::cluster::{GpuHealth, GpuReport, MigReport};
use tessera_model::lease::LeaseTerms;
use tessera_model::mig::{DesiredLayout, Geometry, MediaEngines, Profile, ProfileId};
use tessera_model::spec::{JobSpec, RawJobSpec};
use tessera_model::{Bytes, ControllerId, GpuId, JobId, Millis, NodeId};
use tessera_placement::WaitReason;
use uuid::Uuid;

/// Five profiles with 32 starts each: 160 placements.
pub(crate) fn geometry() -> Geometry {
    let profile = |id: u32| Profile {
        id: ProfileId(id),
        name: format!("1g.{}gb", id + 1).parse().unwrap(),
        compute_slices: 1,
        memory_slices: 1,
        max_instances: 1,
        memory: Bytes::from_mib(u64::from(id + 1) * 1024),
        sms: 1,
        copy_engines: 0,
        media: MediaEngines::default(),
        starts: (0..32).collect(),
    };
    Geometry::new((0..5).map(profile).collect())
}

pub(crate) fn snapshot() -> StoreSnapshot {
    let node = NodeId::from_uuid(Uuid::from_u128(1));
    let gpu = GpuReport {
        gpu: "GPU-1".parse().unwrap(),
        index: 0,
        model: "Invented".to_owned(),
        memory: Bytes::from_mib(40_960),
        sms: None,
        mig: MigReport::On { geometry: geometry() },
        instances: Vec::new(),
        layout_gen: 0,
        health: GpuHealth::Healthy,
        faults: Vec::new(),
        quarantine: None,
        refused: Vec::new(),
    };
    let row = NodeRow {
        node,
        name: "n1".parse().unwrap(),
        generation: 1,
        lost: false,
        boot: tessera_model::BootId::from_uuid(Uuid::nil()),
        software: String::new(),
        cores: 1,
        memory_bytes: 1,
        last_seen_unix: Millis::ZERO,
        mps: false,
        kernel: false,
    };
    let command = Some(vec!["true".to_owned()]);
    let spec = JobSpec::parse(RawJobSpec { command, ..RawJobSpec::default() }).unwrap();
    StoreSnapshot {
        nodes: vec![row],
        gpus: vec![GpuRow { node, layout_gen: 0, report: gpu }],
        waiting: vec![SubmittedJob::new(JobId::from_number(7), &spec, None, 0)],
        ..StoreSnapshot::default()
    }
}

#[test]
fn a_gpu_with_too_many_placements_is_not_partitioned_and_the_reason_is_stated() {
    let now = Millis::from_secs(1_000);
    let policy = tessera_placement::by_name("scheme-b").unwrap();
    let controller = ControllerId::from_uuid(Uuid::from_u128(9));
    let mut cluster =
        ClusterState::new(5, controller, LeaseTerms::default(), policy, snapshot(), now);
    let gpu: GpuId = "GPU-1".parse().unwrap();
    let why = "its driver lists 160 placements of instances, and Tessera can plan with at most 128";

    let round = cluster.step(vec![Input::Tick], now, &mut Uuid::now_v7);

    assert!(round.jobs.reservations.is_empty() && round.plans.begun.is_empty());
    let waiting = cluster.explain_waiting(JobId::from_number(7), now).unwrap();
    assert_eq!(waiting.reason, WaitReason::GpuQuarantined.word());
    assert!(waiting.why.summary.contains(why), "{}", waiting.why.summary);
    let until = waiting.why.would_start_if.unwrap();
    assert!(until.contains("MIG mode of GPU 0 of node n1 is switched off"), "{until}");
    let shown = &cluster.describe(now)[0].gpus[0];
    let said = shown.quarantined.as_ref().unwrap().reason.as_deref().unwrap();
    assert!(said.contains(why), "{said}");
    let wanted: DesiredLayout = "1g.1gb".parse().unwrap();
    let refused = cluster.preview_layout(&gpu, &wanted).unwrap_err();
    assert!(refused.problem.contains(why), "{refused:?}");
    assert!(
        cluster.gpu_availability(&gpu, &BTreeMap::new()).is_ok(),
        "its instances are still listed"
    );
}

#[test]
fn a_round_considers_the_jobs_of_every_user_however_many_another_user_has() {
    let now = Millis::from_secs(1_000);
    let spec = |user: &str| {
        let (command, user) = (Some(vec!["true".to_owned()]), Some(user.to_owned()));
        JobSpec::parse(RawJobSpec { command, user, ..RawJobSpec::default() }).unwrap()
    };
    let (flood, other) = (spec("ada"), spec("bob"));
    let fresh = |number: u64| {
        let spec = if number > 12_000 { &other } else { &flood };
        SubmittedJob::new(JobId::from_number(number), spec, None, 0)
    };
    let waiting = (1..=12_003).map(fresh).collect();
    let of = |policy: &str| {
        let policy = tessera_placement::by_name(policy).unwrap();
        let controller = ControllerId::from_uuid(Uuid::from_u128(9));
        let snapshot = StoreSnapshot { waiting, ..snapshot() };
        ClusterState::new(5, controller, LeaseTerms::default(), policy, snapshot, now)
    };

    let cluster = of("tessera");

    let shown = cluster.list_candidates(5_000, &std::collections::BTreeMap::new());
    assert_eq!(shown.len(), 5_000);
    assert_eq!(shown.iter().filter(|job| &*job.user == "bob").count(), 3);
    assert!(shown.is_sorted_by_key(|job| job.key()));

    // Of equal jobs only those that could start in one round are decided about, and some that wait.
    let of_ada = |places: usize| {
        let distinct = cluster.list_distinct(5_000, places, &std::collections::BTreeMap::new());
        let of = |user: &str| distinct.listed.iter().filter(|job| &*job.user == user).count();
        assert_eq!((of("bob"), distinct.listed.len() + distinct.unlisted), (3, 5_000));
        of("ada")
    };
    assert_eq!([1, 7, 112, 240, 1_000].map(of_ada), [17, 23, 128, 256, 256]);
}

#[test]
fn runs_of_equal_jobs_are_those_that_a_look_at_each_job_finds() {
    let now = Millis::from_secs(1_000);
    let spec = |user: &str, gib: u64| {
        let raw = RawJobSpec {
            command: Some(vec!["true".to_owned()]),
            user: Some(user.to_owned()),
            gpu_memory_bytes: Some(gib << 30),
            ..RawJobSpec::default()
        };
        JobSpec::parse(raw).unwrap()
    };
    let specs = [spec("ada", 4), spec("ada", 8), spec("bob", 4)];
    let job = |number: u64| {
        // Runs of 1 to 5 jobs, and single ones between.
        let kind = usize::try_from(number / (1 + number % 5) % 3).unwrap();
        SubmittedJob::new(JobId::from_number(number), &specs[kind], None, 0)
    };
    let policy = tessera_placement::by_name("tessera").unwrap();
    let controller = ControllerId::from_uuid(Uuid::from_u128(9));
    let snapshot = StoreSnapshot { waiting: (1..=200).step_by(2).map(job).collect(), ..snapshot() };
    let terms = LeaseTerms::default();
    let mut cluster = ClusterState::new(5, controller, terms, policy, snapshot, now);
    let check = |cluster: &ClusterState| {
        let found = cluster.queue.runs(usize::MAX).map(|run| (run.first.job.id, run.length));
        let all: Vec<_> = cluster.queue.waiting.values().collect();
        let looked_at = all.chunk_by(|before, waiting| waiting.equals(before));
        assert!(found.eq(looked_at.map(|run| (run[0].job.id, run.len()))));
    };
    check(&cluster);

    // Some come between others, and others leave.
    for number in 1..=200_u64 {
        let place = number * 37 % 200 + 1;
        match place % 2 {
            0 => {
                let input = Input::Submitted(vec![job(place)]);
                cluster.handle_input(input, now, &mut crate::round::Round::default());
            }
            _ => drop(cluster.queue.dequeue(JobId::from_number(place))),
        }
        check(&cluster);
    }
}
