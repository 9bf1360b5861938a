//! `static`, with StaCon's layout of Dyna-P.

use tessera_lab_policies::StaticBySize;
use tessera_model::spec::GpuRequest::{self, Unknown, Whole};
use tessera_placement::{GpuView, Policy};

use crate::build::*;

fn round(gpus: impl IntoIterator<Item = GpuView>, requests: &[GpuRequest]) -> Vec<String> {
    let cluster = cluster(gpus);
    let decisions = decide("static", &cluster, &queue(requests.iter().cloned()));
    short(&cluster, &decisions)
}

fn stacon() -> GpuView {
    a30(&[("2g.12gb", 0, IDLE), ("1g.6gb", 2, IDLE), ("1g.6gb", 3, IDLE)])
}

#[test]
fn each_job_takes_the_tightest_idle_instance() {
    assert_eq!(
        round([stacon()], &[gib(5), gib(10), gib(5)]),
        ["1: 1g.6gb@2 on 0", "2: 2g.12gb@0 on 0", "3: 1g.6gb@3 on 0"]
    );
}

#[test]
fn a_larger_instance_is_used_rather_than_left_idle() {
    assert_eq!(
        round([stacon()], &[Unknown, Unknown, Unknown, Unknown]),
        ["1: 1g.6gb@2 on 0", "2: 1g.6gb@3 on 0", "3: 2g.12gb@0 on 0", "4: resources"]
    );
}

#[test]
fn by_size_a_larger_instance_is_left_to_those_that_request_it() {
    let view = cluster([stacon()]);
    let jobs = queue([Unknown, Unknown, Unknown, gib(10), gib(10)]);

    let decisions = StaticBySize.decide(&view, &mut jobs.iter(), tessera_model::Millis::ZERO, 10);

    assert_eq!(
        short(&view, &decisions),
        [
            "1: 1g.6gb@2 on 0",
            "2: 1g.6gb@3 on 0",
            "3: resources",
            "4: 2g.12gb@0 on 0",
            "5: resources"
        ]
    );
}

#[test]
fn a_waiting_job_does_not_hold_up_jobs_of_other_sizes() {
    // Like job C of Dyna-P's figure 7: it waits for a 2g while 1g partitions are free.
    let gpu = a30(&[("2g.12gb", 0, taken(17)), ("1g.6gb", 2, IDLE), ("1g.6gb", 3, IDLE)]);
    let cluster = cluster([gpu]);

    let decisions = decide("static", &cluster, &queue([gib(10), gib(10), gib(5)]));

    assert_eq!(short(&cluster, &decisions), ["1: resources", "3: 1g.6gb@2 on 0"]);
    assert_eq!(why(&decisions[0]).would_start_if.as_deref(), Some("job 17 ends"));
}

#[test]
fn a_layout_is_never_changed() {
    assert_eq!(
        round([stacon(), a100(&[])], &[gib(20), Whole, named("1g.5gb"), named("1g.6gb")]),
        [
            "1: mig_fragmentation",
            "2: mig_fragmentation",
            "3: mig_fragmentation",
            "4: 1g.6gb@2 on 0"
        ]
    );
}

#[test]
fn a_job_without_an_instance_gets_the_layout_in_its_way_explained() {
    let cluster = cluster([stacon()]);

    let decisions = decide("static", &cluster, &queue([gib(20)]));

    assert_eq!(
        why(&decisions[0]).summary,
        "20 GiB requested: no existing instance fits, and policy static changes no layout"
    );
    assert_eq!(
        why(&decisions[0]).would_start_if.as_deref(),
        Some("the layout of GPU 0 of node a is changed")
    );
}

#[test]
fn a_changing_gpu_still_gives_its_idle_instances() {
    assert_eq!(round([changing(stacon())], &[Unknown]), ["1: 1g.6gb@2 on 0"]);
}

#[test]
fn a_whole_gpu_is_the_largest_profile_or_a_gpu_with_mig_off() {
    let gpus = [a30(&[("4g.24gb", 0, IDLE)]), unpartitioned(24_576, IDLE)];

    assert_eq!(round(gpus, &[Whole, Whole]), ["1: 4g.24gb@0 on 0", "2: whole on 1"]);
}
