//! `tessera`: the sizes of jobs of which no run time is known, or only that on another slice.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tessera_model::Millis;
use tessera_model::spec::GpuRequest;
use tessera_placement::{ClusterView, Decision, InstanceState, QueuedJob, WaitReason};

use super::{KnownFacts, NOW, decide, just_now};
use crate::arbitrary;
use crate::build::{a100, cluster, gib, queue, short, taken, why};
use crate::hardware::Hardware;

/// A cluster of A100s on which each of `busy` GPUs has seven jobs, which came at different times.
fn partly_busy(gpus: usize, busy: usize) -> (ClusterView, KnownFacts) {
    let slots = |gpu: u64| (0..7_u8).map(move |slot| (slot, 1_000 + 10 * gpu + u64::from(slot)));
    let full = |gpu: u64| {
        let held: Vec<_> = slots(gpu).map(|(slot, job)| ("1g.5gb", slot, taken(job))).collect();
        a100(&held)
    };
    let (gpus, busy) = (u64::try_from(gpus).unwrap(), u64::try_from(busy).unwrap());
    let view = cluster((0..gpus).map(|gpu| if gpu < busy { full(gpu) } else { a100(&[]) }));
    let ran = (0..busy).flat_map(slots).map(|(_, job)| (job, 300 * (job - 999))).collect();
    (view, KnownFacts { ran, ..KnownFacts::default() })
}

/// The compute slices that the first of so many waiting jobs gets.
fn first_slices((view, known): &(ClusterView, KnownFacts), jobs: Vec<GpuRequest>) -> u8 {
    let mut jobs = queue(jobs);
    just_now(&mut jobs);
    let decided = decide(known, view, &jobs);
    let Decision::Start { place, .. } = &decided[0] else { panic!("{:?}", short(view, &decided)) };
    let on = view.gpus.iter().find(|gpu| gpu.id == place.gpu).unwrap();
    on.mig.as_ref().unwrap().geometry.profile(place.slot.unwrap().profile).unwrap().compute_slices
}

/// Facts about jobs that run: each began so many seconds ago.
fn began(view: &ClusterView, ages: &[u64]) -> KnownFacts {
    let mut ran = BTreeMap::new();
    for instance in view.gpus.iter().flat_map(|gpu| &gpu.instances) {
        if let InstanceState::Taken { job } = instance.state {
            let at = usize::try_from(job.number()).unwrap() % ages.len();
            ran.insert(job.number(), ages[at]);
        }
    }
    KnownFacts { ran, ..KnownFacts::default() }
}

/// Jobs that were submitted at different times before now.
fn submitted(mut jobs: Vec<QueuedJob>, ages: &[u64]) -> Vec<QueuedJob> {
    for (job, age) in jobs.iter_mut().zip(ages.iter().cycle()) {
        job.submitted = NOW.minus(Millis::from_secs(*age));
    }
    jobs
}

#[test]
fn while_few_jobs_run_and_wait_a_job_gets_half_of_a_gpu_at_least() {
    assert!(first_slices(&partly_busy(8, 1), vec![gib(4)]) >= 3);
    assert!(first_slices(&partly_busy(8, 1), vec![gib(4); 12]) >= 3);
}

#[test]
fn once_many_jobs_run_or_wait_a_job_gets_a_small_slice() {
    assert_eq!(first_slices(&partly_busy(8, 6), vec![gib(4)]), 1);
    assert_eq!(first_slices(&partly_busy(8, 1), vec![gib(4); 60]), 1);
}

#[test]
fn a_task_that_only_ran_on_a_small_slice_gets_a_larger_one_while_no_other_job_waits() {
    let known = KnownFacts { times: [(1, 600)].into(), ..KnownFacts::default() };
    let alone = cluster([a100(&[])]);
    let on_small = KnownFacts { seen: [(1, 1)].into(), ..known.clone() };

    assert_eq!(first_slices(&(alone.clone(), on_small), vec![gib(4)]), 7);
    let on_whole = KnownFacts { seen: [(1, 7)].into(), ..known };
    assert_eq!(first_slices(&(alone, on_whole), vec![gib(4)]), 7);
}

#[test]
fn a_job_takes_a_small_slice_if_no_other_is_free() {
    let (mut view, known) = partly_busy(8, 8);
    view.gpus[3].instances.pop();

    assert_eq!(first_slices(&(view, known), vec![gib(4)]), 1);
}

#[test]
fn a_job_without_a_size_gets_the_smallest_slice_however_few_jobs_there_are() {
    assert_eq!(first_slices(&partly_busy(8, 0), vec![GpuRequest::Unknown]), 1);
    assert_eq!(first_slices(&partly_busy(8, 1), vec![GpuRequest::Unknown]), 1);
}

#[test]
fn the_explanation_of_a_size_states_how_many_jobs_wait() {
    let (view, known) = partly_busy(8, 1);
    let mut jobs = queue([gib(4), gib(4)]);
    just_now(&mut jobs);

    let decided = decide(&known, &view, &jobs);

    let summary = &why(&decided[0]).summary;
    let expected =
        "how long it takes is not known, so the size leaves space for others, of which 1 wait";
    assert!(summary.contains(expected), "{summary}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_job_waits_beside_a_free_suitable_slice_that_no_reservation_needs(
        view in arbitrary::cluster(),
        jobs in arbitrary::queue(),
        ages in prop::collection::vec(0_u64..40_000, 1..9),
    ) {
        let jobs = submitted(jobs, &ages);
        let decided = decide(&began(&view, &ages), &view, &jobs);
        let mut hardware = Hardware::new(&view);
        for decision in &decided {
            if let Decision::Start { job, place, .. } = decision {
                hardware.start(*job, place);
            }
        }
        for decision in &decided {
            let Decision::Wait { job, reason, why } = decision else { continue };
            let request = &jobs.iter().find(|known| known.id == *job).unwrap().gpu;
            // A slice is reserved for it, or for a job ahead of it with the same request.
            let reserved = *reason == WaitReason::Priority;
            prop_assert!(hardware.places(request).is_empty() || reserved, "{job} {reason:?} {why:?}");
        }
    }

    #[test]
    fn a_job_without_a_size_starts_on_the_smallest_slice_that_is_free(
        view in arbitrary::cluster(),
        jobs in arbitrary::queue(),
        ages in prop::collection::vec(0_u64..40_000, 1..9),
    ) {
        let jobs = submitted(jobs, &ages);
        let decided = decide(&began(&view, &ages), &view, &jobs);
        let mut hardware = Hardware::new(&view);
        // A job that waits may have a slice reserved.
        let mut somebody_waits = false;
        for decision in &decided {
            let Decision::Start { job, place, .. } = decision else {
                somebody_waits = true;
                continue;
            };
            let request = &jobs.iter().find(|known| known.id == *job).unwrap().gpu;
            if *request == GpuRequest::Unknown && !somebody_waits {
                let mut partitioned = hardware.cluster.clone();
                partitioned.gpus.retain(|gpu| gpu.mig.is_some());
                let could = Hardware::new(&partitioned).places(request);
                let smallest = hardware.gpu(place).mig.as_ref().is_some_and(|mig| {
                    let own = place.slot.and_then(|slot| mig.geometry.profile(slot.profile));
                    own.map(|own| own.memory) == mig.plain().map(|plain| plain.memory).min()
                });
                prop_assert!(smallest || could.is_empty(), "{job} {:?}", short(&view, &decided));
            }
            hardware.start(*job, place);
        }
    }
}
