//! Jobs that name no memory, and what their tasks had.

use tessera_frames::cluster::{AttemptUsage, ExitRecord};
use tessera_model::life::{Outcome, ProgramExit};
use tessera_predict::memory::MemoryEvidence;

use super::*;
use crate::predictions::{MemorySample, OutcomeCounts};
use crate::round::Round;
use crate::rows::transitions::Reservation;
use crate::rows::transitions::record_without_exit;

const NAMES_NONE: &str = "it names no memory itself";

fn gib(number: u64) -> Bytes {
    Bytes::from_mib(number * 1_024)
}

fn frame(cluster: &mut ClusterState, frame: ToController) -> Round {
    let mut round = Round::default();
    let input = Input::Frame { node: node(), session: 1, frame: Box::new(frame) };
    cluster.handle_input(input, START, &mut round);
    round
}

fn attempt(number: u64) -> AttemptId {
    AttemptId::from_uuid(Uuid::from_u128(number.into()))
}

fn ends(cluster: &mut ClusterState, number: u64, record: ExitRecord) -> Round {
    let status = AttemptStatus::Ended(record);
    let job = JobId::from_number(number);
    frame(cluster, ToController::Attempt(AttemptReport { attempt: attempt(number), job, status }))
}

fn had(cluster: &mut ClusterState, number: u64, peak: Bytes) {
    let usage = AttemptUsage { attempt: attempt(number), energy_mj: None, peak_memory: Some(peak) };
    frame(cluster, ToController::Usage(usage));
}

fn well() -> ExitRecord {
    record_without_exit(Outcome::Succeeded, String::new())
}

/// Ada's job 90 and 91 run on GPUs of their own, her job 1 waits and bob's job 2, and neither names
/// a size.
fn cluster_of_two() -> ClusterState {
    let running = [(90, 0, "7g.40gb", None), (91, 1, "7g.40gb", None)];
    let waiting = vec![fresh(1, "ada", GpuRequest::Unknown), fresh(2, "bob", GpuRequest::Unknown)];
    let mut cluster = cluster(2, &running, waiting, Accounts::default());
    // It takes the smallest slice that fits, which shows what a job asked for.
    cluster.planner.policy = Arc::new(tessera_placement::policy::SchemeB);
    cluster
}

fn placed(cluster: &mut ClusterState, number: u64) -> Reservation {
    let round = cluster.step(Vec::new(), START, &mut Uuid::now_v7);
    round.jobs.reservations.into_iter().find(|r| r.job == JobId::from_number(number)).unwrap()
}

#[test]
fn a_job_that_names_no_memory_asks_for_what_earlier_runs_of_its_task_had() {
    let mut cluster = cluster_of_two();
    let before = explain(&cluster, 1);
    assert!(before.why.summary.contains("no size requested"), "{}", before.why.summary);
    assert_eq!(before.memory, None);

    ends(&mut cluster, 90, well());
    had(&mut cluster, 90, gib(9));

    let after = explain(&cluster, 1);
    let words = "it names no memory itself: earlier runs of its task used at most 9 GiB";
    assert!(after.why.summary.contains(words), "{}", after.why.summary);
    assert_eq!(after.memory.map(|floor| (floor.runs, floor.value)), Some((1, gib(9))));
    let other = explain(&cluster, 2).why.summary;
    assert!(!other.contains(words), "bob's task never ran: {other}");
    let reservation = placed(&mut cluster, 1);
    assert_eq!(reservation.profile, "2g.10gb");
    assert!(reservation.why.summary.contains(words), "{}", reservation.why.summary);
    let kept = reservation.memory.unwrap();
    assert_eq!((kept.runs, kept.value, kept.cautious), (1, gib(9), false));
    assert!(kept.low < gib(9) && kept.high > gib(9));
}

#[test]
fn what_came_of_foretold_memory_is_counted_once_a_run() {
    let mut cluster = cluster_of_two();
    ends(&mut cluster, 90, well());
    had(&mut cluster, 90, gib(9));
    let before = cluster.take_memory_outcomes();
    assert_eq!(before, OutcomeCounts::default(), "nothing was predicted of the first run");
    let reservation = placed(&mut cluster, 1);
    assert!(reservation.memory.is_some());

    let (attempt, job) = (reservation.attempt, reservation.job);
    let status = AttemptStatus::Ended(well());
    frame(&mut cluster, ToController::Attempt(AttemptReport { attempt, job, status }));
    for _ in 0..2 {
        let usage = AttemptUsage { attempt, energy_mj: None, peak_memory: Some(gib(3)) };
        frame(&mut cluster, ToController::Usage(usage));
    }

    assert_eq!(cluster.take_memory_outcomes(), OutcomeCounts { within: 0, outside: 1 });
    assert_eq!(cluster.take_memory_outcomes(), OutcomeCounts::default(), "told once");
}

#[test]
fn what_later_runs_needed_reaches_those_who_wait_already() {
    let mut cluster = cluster_of_two();
    // Its node tells what one had before it tells of its end.
    had(&mut cluster, 90, gib(4));
    ends(&mut cluster, 90, well());
    assert!(explain(&cluster, 1).why.summary.contains("used at most 4 GiB"));

    ends(&mut cluster, 91, well());
    had(&mut cluster, 91, gib(17));
    // Nodes repeat themselves.
    had(&mut cluster, 91, gib(17));

    let why = explain(&cluster, 1);
    assert!(why.why.summary.contains("used at most 17 GiB"), "{}", why.why.summary);
    let floor = why.memory.unwrap();
    assert_eq!((floor.runs, floor.value), (2, gib(17)));
    assert_eq!(placed(&mut cluster, 1).profile, "3g.20gb");
}

#[test]
fn a_task_that_needs_more_than_any_slice_has_gets_the_largest_and_is_told_so() {
    let mut cluster = cluster_of_two();
    ends(&mut cluster, 90, well());
    had(&mut cluster, 90, gib(70));

    let reservation = placed(&mut cluster, 1);

    assert_eq!(reservation.profile, "7g.40gb");
    let words =
        "no slice of this cluster is so large, so that it requests the largest, with 39.25 GiB";
    assert!(reservation.why.summary.contains(words), "{}", reservation.why.summary);
    assert_eq!(reservation.memory.unwrap().value, gib(70), "what was foretold is kept");
}

#[test]
fn who_waits_asks_for_more_once_a_gpu_has_it() {
    let mut cluster = cluster_of_two();
    ends(&mut cluster, 90, well());
    had(&mut cluster, 90, gib(70));
    let asked = |cluster: &ClusterState| {
        cluster.queue.queued(JobId::from_number(1)).unwrap().job.gpu.clone()
    };
    assert_eq!(asked(&cluster), GpuRequest::Memory(Bytes::from_mib(40_192)));

    let larger = catalog::models()["a100-80gb"].geometry();
    let larger = MigReport::On { geometry: larger };
    let report = GpuReport { memory: gib(80), mig: larger, ..report(2, &[]) };
    frame(&mut cluster, ToController::Gpu(report));

    assert_eq!(asked(&cluster), GpuRequest::Memory(gib(70)));
}

#[test]
fn a_run_that_ran_out_of_its_slice_teaches_that_its_task_needs_more() {
    let running = [(90, 0, "1g.5gb", None), (91, 1, "7g.40gb", None)];
    let waiting = vec![fresh(1, "ada", GpuRequest::Unknown)];
    let mut cluster = cluster(2, &running, waiting, Accounts::default());
    cluster.planner.policy = Arc::new(tessera_placement::policy::SchemeB);
    let record = |exit| ExitRecord {
        exit: Some(exit),
        ..record_without_exit(Outcome::OutOfMemory, String::new())
    };
    // The host's memory is none of a slice's.
    let round = ends(&mut cluster, 91, record(ProgramExit::Signal(9)));
    assert_eq!(round.jobs.ended[0].ran_out_of, None);
    assert!(!explain(&cluster, 1).why.summary.contains(NAMES_NONE));

    let round = ends(&mut cluster, 90, record(ProgramExit::Code(1)));

    let slice = Bytes::from_mib(4_864);
    assert_eq!(round.jobs.ended[0].ran_out_of, Some(slice));
    let why = explain(&cluster, 1).why.summary;
    assert!(why.contains("an earlier run of its task ran out of 4.75 GiB"), "{why}");
    assert_eq!(placed(&mut cluster, 1).profile, "2g.10gb");
}

#[test]
fn a_gangs_members_teach_what_their_task_needs() {
    let mut cluster = cluster(2, &[], gang(5, "ada", (1, 2)), Accounts::default());
    let round = cluster.step(Vec::new(), START, &mut Uuid::now_v7);
    let members: Vec<_> = round.jobs.reservations.iter().map(|r| (r.attempt, r.job)).collect();
    assert_eq!(members.len(), 2);
    let said = |cluster: &mut ClusterState, (attempt, job)| {
        let status = AttemptStatus::Ended(well());
        frame(cluster, ToController::Attempt(AttemptReport { attempt, job, status }));
    };
    let used = |cluster: &mut ClusterState, (attempt, _), peak| {
        let usage = AttemptUsage { attempt, energy_mj: None, peak_memory: Some(peak) };
        frame(cluster, ToController::Usage(usage));
    };

    // The first tells what it had before its gang is over, the second after.
    said(&mut cluster, members[0]);
    used(&mut cluster, members[0], gib(6));
    said(&mut cluster, members[1]);
    used(&mut cluster, members[1], gib(7));

    let task = crate::predictions::TaskFacts::of(&spec("ada", None)).task;
    let floor = cluster.predictions.estimator.memory_estimate(&task).unwrap();
    assert_eq!((floor.runs, floor.value), (2, gib(7)));
}

#[test]
fn a_new_leader_gives_the_cautious_floors_that_the_one_before_gave() {
    let task = crate::predictions::TaskFacts::of(&spec("ada", None)).task;
    let mut floors = tessera_predict::memory::MemoryEstimator::default();
    let mut memories = Vec::new();
    for peak in 1..=6 {
        let (evidence, prediction) = (MemoryEvidence::Peak(gib(peak)), floors.estimate(&task));
        memories.push(MemorySample { task: task.clone(), evidence, prediction });
        if let Some(prediction) = &prediction {
            floors.observe_outcome(&task, prediction, evidence);
        }
        floors.take(&task, evidence);
    }
    let expected = floors.estimate(&task).unwrap();
    assert!(expected.cautious);

    let mut cluster = cluster_of_two();
    memories.iter().for_each(|sample| cluster.predictions.estimator.learn_memory(sample));

    assert_eq!(cluster.predictions.estimator.memory_estimate(&task), Some(expected));
    assert_eq!(cluster.model_status().low_confidence_tasks, 1);
}
