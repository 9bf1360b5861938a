//! Large clusters: only a part of their GPUs takes part in the questions of an explanation.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tessera_model::place::PlaceFilter;

use super::*;
use crate::cluster_part::ClusterPart;
use crate::counterfactual::{StartForecast, StartQuestion};

const GPUS: u32 = 300;
/// The number of the job on GPU 0.
const RUNNING: u64 = 1_000;

/// Many GPUs. One in `free_every` is free, and each of the others has one job.
fn large(free_every: u32, small_every: u32, waiting: Vec<SubmittedJob>) -> ClusterState {
    let is_full = |gpu: &u32| free_every == 0 || !gpu.is_multiple_of(free_every);
    let profile = |gpu: u32| match small_every > 0 && gpu.is_multiple_of(small_every) {
        true => "3g.20gb",
        false => "7g.40gb",
    };
    let running: Vec<Runs> = (0..GPUS)
        .filter(is_full)
        .map(|gpu| (RUNNING + u64::from(gpu), gpu, profile(gpu), None))
        .collect();
    cluster(GPUS, &running, waiting, Accounts::default())
}

fn whole_gpus(jobs: u64) -> Vec<SubmittedJob> {
    (1..=jobs).map(|number| fresh(number, "bob", GpuRequest::Whole)).collect()
}

/// The start of a job by the part of the cluster, and by all of it.
fn starts(cluster: &ClusterState, job: u64) -> [StartForecast; 2] {
    let line = cluster.queue_position(JobId::from_number(job)).unwrap();
    let waiting = &cluster.queue.queued(line.job).unwrap().job;
    let by_part = StartQuestion::new(cluster, &line, waiting, START);
    let mut by_all = StartQuestion::new(cluster, &line, waiting, START);
    by_all.part = ClusterPart::whole();
    [by_part.find_start(), by_all.find_start()]
}

fn ends_of(start: &StartForecast) -> Option<usize> {
    match start {
        StartForecast::Now { .. } => Some(0),
        StartForecast::After { ends, .. } => Some(*ends),
        StartForecast::Unknown { .. } => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn the_expected_start_in_a_large_cluster_is_that_of_all_its_gpus_as_far_as_it_is_exact(
        free_every in prop_oneof![Just(0), 20_u32..200],
        small_every in prop_oneof![Just(0), 2_u32..40],
        ahead in 1_u64..60,
    ) {
        let cluster = large(free_every, small_every, whole_gpus(ahead));

        let [by_part, by_all] = starts(&cluster, ahead).map(|start| ends_of(&start));

        let (by_part, by_all) = (by_part.unwrap(), by_all.unwrap());
        prop_assert!((by_all..=by_all + by_all / 15).contains(&by_part), "{by_part} of {by_all}");
    }
}

#[test]
fn a_free_gpu_of_the_only_model_that_a_job_may_use_is_found_behind_many_others() {
    let mut cluster = large(0, 0, vec![fresh(1, "bob", GpuRequest::Whole)]);
    let mut waiting = cluster.queue.queued(JobId::from_number(1)).unwrap().job.clone();
    let model = "h100-80gb";
    waiting.place =
        Some(Arc::new(PlaceFilter { model: Some(model.to_owned()), ..Default::default() }));
    let mut view = cluster.view(START);
    for gpu in &mut view.gpus {
        gpu.instances.clear();
    }
    view.gpus.last_mut().unwrap().model = model.to_owned();
    cluster.queue.waiting.clear();

    let part = ClusterPart::of(&view, &[], &waiting).select(&view, &BTreeSet::new()).unwrap();

    assert!(part.gpus.len() < view.gpus.len());
    assert!(part.gpus.iter().any(|gpu| gpu.model == model));
}

#[test]
fn the_jobs_whose_single_end_would_start_a_job_are_the_same_in_a_large_cluster() {
    let cluster = large(0, 0, whole_gpus(1));

    let why = explain(&cluster, 1);

    let changes: Vec<&str> = why.alternatives.iter().map(|other| other.change.as_str()).collect();
    assert_eq!(changes.len(), 3, "{changes:?}");
    assert!(changes[0].starts_with("job 1000 ended"), "{changes:?}");
}

#[test]
fn a_job_that_no_gpu_of_a_large_cluster_could_ever_start_is_told_so() {
    let impossible = GpuRequest::Memory(Bytes::from_mib(80 * 1_024));
    let cluster = large(0, 0, vec![fresh(1, "bob", impossible)]);

    let [by_part, by_all] = starts(&cluster, 1);

    for start in [by_part, by_all] {
        let StartForecast::Unknown { text } = start else { panic!("{start:?}") };
        assert_eq!(text, "not even when every job that runs now has ended");
    }
}
