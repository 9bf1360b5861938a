//! What a program allocates before its first kernel, and what the driver refuses it, decides about its next attempt.

use super::*;
use crate::forecast::ClusterForecast;
use crate::memory::evidence_text;
use tessera_frames::cluster::{AttemptNeeds, ExitRecord};
use tessera_model::life::ProgramExit;
use tessera_model::sizing::{MemoryPrediction, OOM_EXIT_CODE, SizeSource, next_size};
use tessera_placement::JobTable;

const HAD: Bytes = Bytes::from_mib(4_864);

fn rig(mode: MemoryPrediction) -> Rig {
    Rig::with(&[(1, slot("1g.5gb", 6), Some("USR1"))], |snapshot| {
        for known in snapshot.launch_specs.values_mut() {
            let spec = Arc::make_mut(&mut known.spec);
            spec.memory_prediction = Some(mode);
            spec.gpu = tessera_model::spec::GpuRequest::Unknown;
        }
        snapshot.live[0].gpu_memory = Some(HAD);
    })
}

fn needs(held: Bytes, refused: Bytes) -> Input {
    let needs = AttemptNeeds { attempt: attempt(1), held, multiprocessors: 14, refused };
    frame(ToController::Needs(needs))
}

fn ran_out() -> Input {
    let record = ExitRecord {
        exit: Some(ProgramExit::Code(OOM_EXIT_CODE)),
        ..crate::rows::transitions::record_without_exit(Outcome::OutOfMemory, String::new())
    };
    let status = AttemptStatus::Ended(record);
    frame(ToController::Attempt(AttemptReport { attempt: attempt(1), job: job(1), status }))
}

fn gib(number: u64) -> Bytes {
    Bytes::from_mib(number * 1_024)
}

#[test]
fn a_job_that_is_interrupted_requests_no_less_than_it_had_allocated_before_its_first_kernel() {
    let mut rig = rig(MemoryPrediction::Advise);

    let first = rig.step(vec![needs(gib(3), Bytes::ZERO)], Millis::from_secs(1));
    let again = rig.step(vec![needs(gib(3), Bytes::ZERO)], Millis::from_secs(2));
    rig.step(vec![ended(1, Outcome::Lost)], Millis::from_secs(3));

    let [row] = &first.jobs.needs[..] else { panic!("{:?}", first.jobs.needs) };
    assert_eq!((row.job, row.held, row.multiprocessors), (job(1), Some(gib(3)), Some(14)));
    assert!(again.jobs.needs.is_empty() && first.jobs.growths.is_empty(), "its slice holds that");
    let waiting = rig.cluster.queue.queued(job(1)).unwrap();
    let memory = waiting.memory.as_ref().unwrap();
    assert_eq!((memory.bytes, memory.source()), (gib(3), SizeSource::FirstLaunch));
    let why = evidence_text(memory);
    assert!(why.contains("it had allocated 3 GiB before its first kernel"), "{why}");
    let forecast = ClusterForecast::new(&rig.cluster, Millis::from_secs(4));
    assert_eq!(forecast.facts(job(1)).multiprocessors, Some(14), "for the size of its next slice");
}

#[test]
fn a_request_that_the_driver_refused_skips_the_sizes_that_are_too_small_for_it() {
    for (refused, at_least) in
        [(gib(12), gib(12)), (gib(5), next_size(HAD)), (gib(1), next_size(HAD))]
    {
        let mut rig = rig(MemoryPrediction::Advise);

        rig.step(vec![needs(gib(1), refused)], Millis::from_secs(1));
        let round = rig.step(vec![ran_out()], Millis::from_secs(2));

        let event = round.jobs.ended[0].out_of_memory.unwrap();
        assert_eq!(event.at_least, Some(at_least), "{refused}");
    }
}

#[test]
fn a_refusal_that_was_survived_in_the_end_counts_for_nothing() {
    let mut rig = rig(MemoryPrediction::Advise);

    rig.step(vec![needs(gib(1), gib(12))], Millis::from_secs(1));
    rig.step(vec![needs(gib(1), Bytes::ZERO)], Millis::from_secs(2));
    let round = rig.step(vec![ran_out()], Millis::from_secs(3));

    assert_eq!(round.jobs.ended[0].out_of_memory.unwrap().at_least, Some(next_size(HAD)));
}

#[test]
fn a_refused_request_above_the_largest_slice_fails_the_job_at_once_with_both_sizes() {
    let mut rig = rig(MemoryPrediction::Advise);

    rig.step(vec![needs(gib(1), gib(100))], Millis::from_secs(1));
    let round = rig.step(vec![ran_out()], Millis::from_secs(2));

    let ended = &round.jobs.ended[0];
    assert_eq!(ended.to, JobState::Failed);
    assert!(ended.record.detail.contains("at least 100 GiB"), "{}", ended.record.detail);
}

#[test]
fn a_slice_that_cannot_hold_what_was_allocated_is_left_at_once_if_predictions_are_acted_on() {
    let mut acts = rig(MemoryPrediction::Act);
    let round = acts.step(vec![needs(gib(7), Bytes::ZERO)], Millis::from_secs(1));
    let [row] = &round.jobs.growths[..] else { panic!("{:?}", round.jobs.growths) };
    assert_eq!((row.is_first, row.at_least), (true, Some(gib(7))));
    let event = row.event.as_deref().unwrap();
    assert!(event.contains("more than its 4.75 GiB: it is moved to a slice with at least 7 GiB"));
    let repeated = acts.step(vec![needs(gib(7), Bytes::ZERO)], Millis::from_secs(2));
    assert!(repeated.jobs.growths.is_empty(), "once from each size");
    acts.step(vec![ended(1, Outcome::Preempted)], Millis::from_secs(3));
    assert_eq!(acts.cluster.queue.queued(job(1)).unwrap().memory.unwrap().bytes, gib(7));

    let mut advises = rig(MemoryPrediction::Advise);
    let round = advises.step(vec![needs(gib(7), Bytes::ZERO)], Millis::from_secs(1));
    assert_eq!((round.jobs.growths.len(), round.jobs.growths[0].at_least), (1, None));
    let mut off = rig(MemoryPrediction::Off);
    let round = off.step(vec![needs(gib(7), Bytes::ZERO)], Millis::from_secs(1));
    assert!(round.jobs.growths.is_empty() && round.jobs.needs.len() == 1);
}
