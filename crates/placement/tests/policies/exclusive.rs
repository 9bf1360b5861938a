//! `exclusive`.

use tessera_model::spec::GpuRequest::{self, Unknown, Whole};
use tessera_placement::GpuView;

use crate::build::*;

fn round(gpus: impl IntoIterator<Item = GpuView>, requests: &[GpuRequest]) -> Vec<String> {
    let cluster = cluster(gpus);
    let decisions = decide("exclusive", &cluster, &queue(requests.iter().cloned()));
    short(&cluster, &decisions)
}

#[test]
fn every_job_gets_its_own_gpu_in_the_order_of_the_queue() {
    assert_eq!(
        round(
            [unpartitioned(40_960, IDLE), unpartitioned(40_960, IDLE)],
            &[Unknown, gib(5), Whole]
        ),
        ["1: whole on 0", "2: whole on 1", "3: resources"]
    );
}

#[test]
fn a_partitioned_gpu_is_merged_to_its_largest_profile() {
    assert_eq!(
        round([a100(&[("1g.5gb", 0, IDLE), ("1g.5gb", 6, IDLE)])], &[Unknown]),
        ["1: -1g.5gb@0 -1g.5gb@6 +7g.40gb@0 7g.40gb@0 on 0"]
    );
}

#[test]
fn a_merged_gpu_is_taken_before_one_that_must_be_merged() {
    let gpus = [a100(&[("1g.5gb", 0, IDLE)]), a100(&[]), a100(&[("7g.40gb", 0, IDLE)])];

    assert_eq!(
        round(gpus, &[Unknown, Unknown, Unknown]),
        [
            "1: 7g.40gb@0 on 2",
            "2: +7g.40gb@0 7g.40gb@0 on 1",
            "3: -1g.5gb@0 +7g.40gb@0 7g.40gb@0 on 0"
        ]
    );
}

#[test]
fn one_small_job_keeps_the_whole_gpu_from_others() {
    let cluster = cluster([a100(&[("1g.5gb", 0, taken(17))])]);

    let decisions = decide("exclusive", &cluster, &queue([Unknown]));

    assert_eq!(short(&cluster, &decisions), ["1: resources"]);
    assert_eq!(
        why(&decisions[0]).summary,
        "no size requested: the only suitable GPU, GPU 0 of node a, is in use"
    );
    assert_eq!(why(&decisions[0]).would_start_if.as_deref(), Some("job 17 ends"));
}

#[test]
fn the_smallest_gpu_that_is_enough_is_taken() {
    assert_eq!(
        round([a100(&[]), a30(&[]), unpartitioned(24_576, IDLE)], &[gib(23), gib(24), gib(30)]),
        ["1: +4g.24gb@0 4g.24gb@0 on 1", "2: whole on 2", "3: +7g.40gb@0 7g.40gb@0 on 0"]
    );
}

#[test]
fn a_named_profile_means_a_gpu_that_offers_it() {
    let gpus = [unpartitioned(40_960, IDLE), a30(&[]), a100(&[])];

    assert_eq!(
        round(gpus, &[named("2g.10gb"), named("8g.1gb")]),
        ["1: +7g.40gb@0 7g.40gb@0 on 2", "2: bad_constraints"]
    );
}

#[test]
fn a_gpu_with_a_foreign_instance_is_not_used() {
    assert_eq!(
        round([a100(&[("1g.5gb", 0, FOREIGN)]), a30(&[])], &[gib(30), Unknown]),
        ["1: gpu_blocked", "2: +4g.24gb@0 4g.24gb@0 on 1"]
    );
}
