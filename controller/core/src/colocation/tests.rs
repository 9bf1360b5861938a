use crate::ClusterState;
use tessera_model::Bytes;
use tessera_model::share::{MpsShare, SmPercent};
use tessera_placement::{AdminOverride, GpuView, SpeedBasis};
use uuid::Uuid;

use super::*;

const HOUR: u64 = 3_600_000;

fn on() -> SliceKind {
    SliceKind { model: "a100".to_owned(), profile: "3g.20gb".to_owned(), part: 428 }
}

fn sample(task: &str, secs: u64) -> RunSample {
    RunSample { task: task.to_owned(), on: on(), ran: Millis::from_secs(secs) }
}

fn run(number: u128, task: &str, (began, ended): (u64, u64)) -> SharedRun {
    SharedRun {
        attempt: AttemptId::from_uuid(Uuid::from_u128(number)),
        place: ("GPU-1".parse().unwrap(), 4),
        task: task.to_owned(),
        on: on(),
        client: seen::SharingClient { online: false, sm_percent: 50, busy: None },
        began: Millis::from_secs(began),
        ended: Millis::from_secs(ended),
        whole: true,
    }
}

#[test]
fn a_runs_speed_is_its_time_alone_over_its_time_and_co_runners_count_by_their_overlap() {
    // The second run overlaps the first half of the first; no run of its task without co-runners is
    // known.
    let runs = [run(1, "train", (1_000, 1_200)), run(2, "other", (900, 1_100))];

    let known = measure_outcomes(&runs, &[sample("train", 150)]);

    let [(came, row)] = &known[..] else { panic!("{known:?}") };
    assert_eq!((came.attempt, came.speed, came.co_runners), (runs[0].attempt, 750, 500));
    assert_eq!((row.colocation.others.count, row.colocation.others.sm), (500, 25_000));
    assert_eq!(
        row.colocation.others.unknown, 500,
        "it was never measured, and it doesn't count as idle"
    );
    assert_eq!((row.colocation.slice, row.speed_per_mille), (428, 750));
}

#[test]
fn runs_elsewhere_or_at_another_time_or_without_an_end_give_no_training_samples() {
    let elsewhere = SharedRun { place: ("GPU-2".parse().unwrap(), 4), ..run(2, "b", (0, HOUR)) };
    let before = run(3, "b", (0, 1_000));
    let stopped = SharedRun { whole: false, ..run(4, "train", (2_000, 2_100)) };
    let other_slice = RunSample { on: SliceKind::whole("a100"), ..sample("b", 10) };
    let runs = [run(1, "train", (1_000, 1_200)), elsewhere, before, stopped];

    let known = measure_outcomes(&runs, &[sample("train", 200), other_slice]);

    let [(came, _)] = &known[..] else { panic!("{known:?}") };
    assert_eq!((came.attempt, came.speed, came.co_runners), (runs[0].attempt, 1_000, 0));
}

/// Tasks that each take 100 s alone, and run at half speed with a co-runner.
fn history(tasks: u64) -> Vec<ColocatedRun> {
    let mut runs = Vec::new();
    let mut alone = Vec::new();
    for task in 0..tasks {
        let name = format!("task{task}");
        alone.push(sample(&name, 100));
        let at = task * 1_000;
        runs.push(run(u128::from(task * 3), &name, (at, at + 200)));
        runs.push(run(u128::from(task * 3 + 1), &name, (at, at + 200)));
        runs.push(run(u128::from(task * 3 + 2), &name, (at + 300, at + 400)));
    }
    measure_outcomes(&runs, &alone).into_iter().map(|(_, row)| row).collect()
}

fn cluster() -> ClusterState {
    let policy = tessera_placement::by_name("tessera").unwrap();
    let controller = tessera_model::ControllerId::from_uuid(Uuid::from_u128(9));
    let terms = tessera_model::lease::LeaseTerms::default();
    let snapshot = crate::rows::snapshot::StoreSnapshot::default();
    ClusterState::new(5, controller, terms, policy, snapshot, Millis::ZERO)
}

fn speeds(cluster: &ClusterState) -> Option<Vec<u64>> {
    let sm = SmPercent::try_from(50).unwrap();
    let client = MpsClient { online: false, sm, busy: None };
    cluster
        .predictions
        .colocation
        .trusted_model()
        .map(|crowd| crowd.together(428, &[known(&client), known(&client)]))
}

#[test]
fn a_forest_learns_the_slow_down_by_co_runners_and_is_used_while_it_is_accurate() {
    let mut cluster = cluster();
    assert_eq!(speeds(&cluster), None, "there is no model yet");
    assert!(ColocationModel::from(&history(2)).is_none(), "a few runs are not enough for a model");
    let model = Arc::new(ColocationModel::from(&history(80)).unwrap());

    cluster.use_colocation_model(Arc::clone(&model), &[]);

    let told = speeds(&cluster).unwrap();
    assert!(told.iter().all(|speed| (450..=550).contains(speed)), "{told:?}");
    assert_eq!(cluster.model_status().colocation, Some((model.fingerprint(), true)));
    cluster.use_colocation_model(Arc::clone(&model), &[true; 40]);
    assert!(speeds(&cluster).is_some());

    cluster.use_colocation_model(Arc::clone(&model), &[[true; 30], [false; 30]].concat());

    assert_eq!(speeds(&cluster), None);
    assert_eq!(cluster.model_status().colocation, Some((model.fingerprint(), false)));
}

fn whole_gpu(model: &str) -> GpuView {
    GpuView {
        id: "GPU-1".parse().unwrap(),
        node: "n1".parse().unwrap(),
        index: 0,
        model: model.to_owned(),
        memory: Bytes::from_mib(40_960),
        sms: None,
        mig: None,
        mps: true,
        kernel: false,
        available: true,
        changing: false,
        instances: Vec::new(),
        operator: AdminOverride::default(),
        part: 0,
    }
}

#[test]
fn until_a_forest_has_learned_public_measurements_predict_whether_jobs_may_share() {
    let mut cluster = cluster();
    let sm = SmPercent::try_from(50).unwrap();
    let client = MpsClient { online: false, sm, busy: Some(300) };
    let speeds = |cluster: &ClusterState, basis, model: &str| {
        let clients = [client, client];
        cluster.predictions.predict_speeds(&clients, basis, &whole_gpu(model), None)
    };
    let whole = SpeedBasis::WholeInstance;
    let a100 = speeds(&cluster, whole, "NVIDIA A100-SXM4-40GB").unwrap();
    let h100 = speeds(&cluster, whole, "NVIDIA H100 80GB HBM3").unwrap();
    assert!(a100[0].expected > 900 && a100[0].low < a100[0].expected, "{a100:?}");
    assert_eq!(a100[0].expected, h100[0].expected);
    assert!(h100[0].low < a100[0].low, "no such GPU was measured: {h100:?}");
    let requested = speeds(&cluster, SpeedBasis::SamePercentage, "NVIDIA A100-SXM4-40GB");
    assert_eq!(requested, None, "a user's request is not judged by it");

    let model = Arc::new(ColocationModel::from(&history(80)).unwrap());
    cluster.use_colocation_model(Arc::clone(&model), &[]);

    assert_ne!(speeds(&cluster, whole, "NVIDIA A100-SXM4-40GB").unwrap(), a100);
    cluster.use_colocation_model(model, &[false; 40]);
    assert_eq!(
        speeds(&cluster, whole, "NVIDIA A100-SXM4-40GB"),
        None,
        "its own runs say otherwise"
    );
}

#[test]
fn only_jobs_under_mps_are_predicted() {
    let memory = Bytes::from_mib(1_024);
    let sm = SmPercent::try_from(30).unwrap();
    let facts = TaskFacts { online: true, ..TaskFacts::default() };

    let under_mps = client(SliceShare::Mps(MpsShare { sm, memory }), &facts, Some(250));

    assert_eq!(under_mps, Some(MpsClient { online: true, sm, busy: Some(250) }));
    let by_turns = SliceShare::Kernel(tessera_model::share::KernelShare { memory });
    assert_eq!(client(by_turns, &facts, Some(250)), None);
}
