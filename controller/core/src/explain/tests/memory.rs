//! Jobs that name no memory, with earlier runs of their tasks.

use tessera_frames::cluster::{AttemptMemory, AttemptUsage, ExitRecord};
use tessera_model::life::{JobState, Outcome, ProgramExit};
use tessera_model::readings::{MemoryReadings, ReadingUnit};
use tessera_model::sizing::SizeSource;
use tessera_predict::memory::MemoryEvidence;

use super::*;
use crate::predictions::{MemorySample, OutcomeCounts};
use crate::round::Round;
use crate::rows::transitions::record_without_exit;
use crate::rows::transitions::{OutOfMemoryRow, Reservation};

const NAMES_NONE: &str = "it states no memory size itself";

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

/// Ada's jobs 90 and 91 run on separate GPUs. Her job 1 and bob's job 2 wait, and neither names
/// a size.
fn cluster_of_two() -> ClusterState {
    let running = [(90, 0, "7g.40gb", None), (91, 1, "7g.40gb", None)];
    let waiting = vec![fresh(1, "ada", GpuRequest::Unknown), fresh(2, "bob", GpuRequest::Unknown)];
    let mut cluster = cluster(2, &running, waiting, Accounts::default());
    // It takes the smallest slice that fits, which shows the size that a job requested.
    cluster.planner.policy = Arc::new(tessera_placement::policy::SchemeB);
    cluster
}

fn placed(cluster: &mut ClusterState, number: u64) -> Reservation {
    let round = cluster.step(Vec::new(), START, &mut Uuid::now_v7);
    round.jobs.reservations.into_iter().find(|r| r.job == JobId::from_number(number)).unwrap()
}

/// Ada's task ran `runs` times on 2g.10gb, with this peak each time.
fn runs_with(cluster: &mut ClusterState, runs: u64, peak: Bytes) {
    let task = crate::predictions::TaskFacts::of(&spec("ada", None)).task;
    for run in 0..runs {
        let sample = MemorySample {
            attempt: attempt(1_000 + run),
            task: task.clone(),
            gpu_model: "a100-40gb".to_owned(),
            slice: Bytes::from_mib(9_856),
            evidence: MemoryEvidence::Peak(peak),
            prediction: None,
        };
        cluster.predictions.estimator.learn_memory(&sample);
    }
    // Waiting jobs get the new size with the next run of the task.
    ends(cluster, 90, well());
}

#[test]
fn a_job_that_names_no_memory_requests_what_was_enough_for_its_task() {
    let mut cluster = cluster_of_two();
    let before = explain(&cluster, 1);
    assert!(before.why.summary.contains("no size requested"), "{}", before.why.summary);
    assert_eq!((before.memory, before.size), (None, (SizeSource::Unknown, None)));

    runs_with(&mut cluster, 3, gib(3));

    let after = explain(&cluster, 1);
    // Three runs had enough with 9.62 GiB and one with a whole GPU, whose peak is not known.
    let words = "it states no memory size itself: 39.25 GiB was enough for 4 earlier runs of its \
                 task";
    assert!(after.why.summary.contains(words), "{}", after.why.summary);
    assert_eq!(after.size, (SizeSource::Learned, Some(Bytes::from_mib(40_192))));
    let other = explain(&cluster, 2).why.summary;
    assert!(!other.contains(words), "bob's task never ran: {other}");
}

/// Returns the least memory that Ada's task is known to need after a run that used 30 GiB.
fn known_need_after(preallocated: bool) -> Bytes {
    let mut cluster = cluster_of_two();
    let readings = Vec::new();
    let (unit, left_out) = (ReadingUnit::Iterations, Bytes::ZERO);
    let memory = MemoryReadings { unit, left_out, preallocated, readings };
    frame(&mut cluster, ToController::Memory(vec![AttemptMemory { attempt: attempt(90), memory }]));
    had(&mut cluster, 90, gib(30));
    runs_with(&mut cluster, 7, gib(3));
    let task = crate::predictions::TaskFacts::of(&spec("ada", None)).task;
    cluster.predictions.estimator.learned_size(&task).unwrap().at_least
}

#[test]
fn memory_that_a_framework_allocated_in_advance_is_no_training_sample() {
    assert_eq!(known_need_after(false), gib(30), "the largest of eight peaks");
    assert_eq!(known_need_after(true), gib(3));
}

#[test]
fn many_peaks_lower_what_a_task_requests() {
    let mut cluster = cluster_of_two();

    runs_with(&mut cluster, 7, gib(3));
    had(&mut cluster, 90, gib(3));

    let words =
        "8 earlier runs of its task used at most 3 GiB, and it requests 3.59 GiB with headroom";
    let after = explain(&cluster, 1);
    assert!(after.why.summary.contains(words), "{}", after.why.summary);
    let reservation = placed(&mut cluster, 1);
    assert_eq!(reservation.profile, "1g.5gb");
    assert_eq!(reservation.size_source, SizeSource::Learned);
    let kept = reservation.memory.unwrap();
    assert_eq!((kept.runs, kept.cautious), (8, false));
    assert!(kept.low < gib(3) && kept.high > kept.value);
}

#[test]
fn the_outcome_of_predicted_memory_is_counted_once_a_run() {
    let mut cluster = cluster_of_two();
    ends(&mut cluster, 90, well());
    had(&mut cluster, 90, gib(9));
    let before = cluster.take_memory_outcomes();
    assert_eq!(before, OutcomeCounts::default(), "nothing was predicted for the first run");
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
fn the_size_of_a_finished_run_reaches_waiting_jobs_before_any_peak_is_known() {
    let mut cluster = cluster_of_two();

    ends(&mut cluster, 90, well());
    let first = explain(&cluster, 1).size;
    had(&mut cluster, 90, gib(17));
    // Nodes repeat their reports.
    had(&mut cluster, 90, gib(17));

    assert_eq!(first, (SizeSource::Learned, Some(Bytes::from_mib(40_192))));
    let why = explain(&cluster, 1);
    assert_eq!(why.memory.map(|estimate| estimate.runs), Some(1), "{}", why.why.summary);
    assert_eq!(placed(&mut cluster, 1).profile, "7g.40gb");
}

#[test]
fn an_estimate_counts_while_nothing_is_learned() {
    let mut cluster = cluster_of_two();
    let estimated = JobSpec { estimated_memory: Some(gib(7)), ..spec("eve", None) };
    let job = SubmittedJob::new(JobId::from_number(3), &estimated, None, 0);
    cluster.step(vec![Input::Submitted(vec![job])], START, &mut Uuid::now_v7);

    let why = explain(&cluster, 3);

    assert_eq!(why.size, (SizeSource::Estimated, Some(gib(7))));
    assert!(why.why.summary.contains("its user's estimate is 7 GiB"), "{}", why.why.summary);
}

/// The record of a program that printed why it failed.
fn printed(exit: ProgramExit) -> ExitRecord {
    ExitRecord { exit: Some(exit), ..record_without_exit(Outcome::OutOfMemory, String::new()) }
}

#[test]
fn a_run_that_reports_it_raises_what_its_task_needs() {
    let running = [(90, 0, "1g.5gb", None), (91, 1, "7g.40gb", None)];
    let waiting = vec![fresh(1, "ada", GpuRequest::Unknown)];
    let mut cluster = cluster(2, &running, waiting, Accounts::default());
    cluster.planner.policy = Arc::new(tessera_placement::policy::SchemeB);
    // The host's memory is not a slice's memory.
    let round = ends(&mut cluster, 91, printed(ProgramExit::Signal(9)));
    assert_eq!(round.jobs.ended[0].ran_out_of, None);
    assert!(!explain(&cluster, 1).why.summary.contains(NAMES_NONE));

    let round = ends(&mut cluster, 90, printed(ProgramExit::Code(112)));

    let slice = Bytes::from_mib(4_864);
    assert_eq!(round.jobs.ended[0].ran_out_of, Some(slice));
    let why = explain(&cluster, 1).why.summary;
    assert!(why.contains("an earlier run of its task ran out of 4.75 GiB"), "{why}");
    assert_eq!(placed(&mut cluster, 1).profile, "2g.10gb");
}

#[test]
fn output_alone_restarts_the_job_and_is_learned_only_with_a_peak_near_the_slice() {
    for (peak, learns) in [(gib(1), false), (gib(3), true)] {
        let running = [(90, 0, "1g.5gb", None)];
        let waiting = vec![fresh(1, "ada", GpuRequest::Unknown)];
        let mut cluster = cluster(1, &running, waiting, Accounts::default());

        let round = ends(&mut cluster, 90, printed(ProgramExit::Code(1)));
        had(&mut cluster, 90, peak);

        assert_eq!(round.jobs.ended[0].to, JobState::Queued, "it runs again");
        assert_eq!(round.jobs.ended[0].ran_out_of, None, "no peak is known yet");
        let task = crate::predictions::TaskFacts::of(&spec("ada", None)).task;
        assert_eq!(cluster.predictions.estimator.learned_size(&task).is_some(), learns, "{peak}");
    }
}

#[test]
fn a_job_that_ran_out_gets_the_next_size_and_is_charged_nothing() {
    let mut cluster = cluster(1, &[(90, 0, "1g.5gb", None)], Vec::new(), Accounts::default());
    cluster.planner.policy = Arc::new(tessera_placement::policy::SchemeB);

    let round = ends(&mut cluster, 90, printed(ProgramExit::Code(1)));

    let ended = &round.jobs.ended[0];
    assert_eq!((ended.to, ended.charged, ended.uncharged), (JobState::Queued, false, false));
    let at_least = Some(Bytes::from_mib(4_864 + 1_024));
    assert_eq!(ended.out_of_memory, Some(OutOfMemoryRow { at_least }));
    assert!(ended.record.detail.contains("it runs again with at least 5.75 GiB"));
    let why = explain(&cluster, 90);
    assert_eq!(why.size, (SizeSource::OutOfMemory, at_least));
    assert!(why.why.summary.contains("it ran out of GPU memory once"), "{}", why.why.summary);
    let reservation = placed(&mut cluster, 90);
    assert_eq!((reservation.profile.as_str(), reservation.number), ("2g.10gb", 2));
    assert_eq!(reservation.size_source, SizeSource::OutOfMemory);
}

#[test]
fn a_job_that_ran_out_of_the_largest_slice_fails_with_the_sizes_stated() {
    let mut cluster = cluster(1, &[(90, 0, "7g.40gb", None)], Vec::new(), Accounts::default());

    let round = ends(&mut cluster, 90, printed(ProgramExit::Code(1)));

    let ended = &round.jobs.ended[0];
    assert_eq!(ended.to, JobState::Failed);
    let detail = &ended.record.detail;
    assert!(detail.contains("the largest slice of this cluster has 39.25 GiB"), "{detail}");
}

#[test]
fn a_size_that_a_job_ran_out_of_is_not_advised() {
    let waiting = vec![fresh(1, "bob", GpuRequest::Memory(gib(9)))];
    let mut cluster = cluster(1, &[(90, 0, "4g.20gb", None)], waiting, Accounts::default());

    ends(&mut cluster, 90, printed(ProgramExit::Code(1)));

    // Behind bob's job a slice of 19.5 GiB would be free at once, but the job ran out of that size.
    let why = explain(&cluster, 90);
    let smaller =
        why.alternatives.iter().find(|alternative| alternative.change.contains("GPU memory"));
    assert_eq!(smaller, None, "{why:?}");
}

#[test]
fn a_tasks_need_is_learned_from_a_gangs_members() {
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

    // The first member reports its memory before its gang has ended, and the second one after.
    said(&mut cluster, members[0]);
    used(&mut cluster, members[0], gib(6));
    said(&mut cluster, members[1]);
    used(&mut cluster, members[1], gib(7));

    let task = crate::predictions::TaskFacts::of(&spec("ada", None)).task;
    let size = cluster.predictions.estimator.learned_size(&task).unwrap();
    assert_eq!((size.estimate.runs, size.at_least), (2, gib(7)));
}

#[test]
fn a_new_leader_gives_the_cautious_sizes_that_the_one_before_gave() {
    let task = crate::predictions::TaskFacts::of(&spec("ada", None)).task;
    let mut one = cluster_of_two();
    let mut samples = Vec::new();
    for run in 1..=6 {
        let slice = gib(2 * run);
        let prediction = one.predictions.estimator.learned_size(&task).map(|size| size.estimate);
        let sample = MemorySample {
            attempt: attempt(run),
            task: task.clone(),
            gpu_model: "a100".to_owned(),
            slice,
            evidence: MemoryEvidence::OutOf(slice),
            prediction,
        };
        one.predictions.estimator.learn_memory(&sample);
        samples.push(sample);
    }
    let expected = one.predictions.estimator.learned_size(&task).unwrap();
    assert!(expected.estimate.cautious);

    let mut next = cluster_of_two();
    samples.iter().for_each(|sample| next.predictions.estimator.learn_memory(sample));

    assert_eq!(next.predictions.estimator.learned_size(&task), Some(expected));
    assert_eq!(next.model_status().low_confidence_tasks, 1);
}
