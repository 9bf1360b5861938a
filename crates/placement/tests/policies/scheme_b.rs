//! `scheme-b`, with the worked examples of MIGM.

use tessera_model::spec::GpuRequest::{Unknown, Whole};

use crate::build::*;

fn round(
    gpus: impl IntoIterator<Item = tessera_placement::GpuView>,
    requests: &[tessera_model::spec::GpuRequest],
) -> Vec<String> {
    let cluster = cluster(gpus);
    let decisions = decide("scheme-b", &cluster, &queue(requests.iter().cloned()));
    short(&cluster, &decisions)
}

#[test]
fn on_an_empty_a100_the_first_small_instance_goes_last() {
    assert_eq!(round([a100(&[])], &[mib(4_800)]), ["1: +1g.5gb@6 1g.5gb@6 on 0"]);
}

#[test]
fn a_job_of_unknown_size_starts_on_the_smallest_slice() {
    assert_eq!(round([a100(&[])], &[Unknown]), ["1: +1g.5gb@6 1g.5gb@6 on 0"]);
}

#[test]
fn the_memory_of_a_slice_is_what_the_driver_reports_not_its_name() {
    // 2g.10gb holds 9.63 GiB, so 10 GiB need the next larger one.
    assert_eq!(round([a100(&[])], &[gib(10)]), ["1: +3g.20gb@4 3g.20gb@4 on 0"]);
    assert_eq!(round([a100(&[])], &[mib(9_856)]), ["1: +2g.10gb@4 2g.10gb@4 on 0"]);
}

#[test]
fn two_jobs_of_half_the_memory_get_a_3g_and_a_4g() {
    // MIGM's mix Ml3: no other job could use the fourth slice of the first half.
    assert_eq!(
        round([a100(&[]), a100(&[])], &[gib(16), gib(16), gib(16)]),
        [
            "1: +3g.20gb@4 3g.20gb@4 on 0",
            "2: +4g.20gb@0 4g.20gb@0 on 0",
            "3: +3g.20gb@4 3g.20gb@4 on 1"
        ]
    );
}

#[test]
fn a_slice_that_other_jobs_could_use_is_left_free() {
    // Next to a busy 1g at 3, only a 3g fits the second half.
    let gpu = a100(&[("1g.5gb", 3, taken(9))]);

    assert_eq!(round([gpu], &[gib(16)]), ["1: +3g.20gb@4 3g.20gb@4 on 0"]);
}

#[test]
fn seven_small_jobs_share_an_a100_and_the_eighth_waits() {
    let starts = round(
        [a100(&[])],
        &[Unknown, Unknown, Unknown, Unknown, Unknown, Unknown, Unknown, Unknown],
    );

    assert_eq!(starts.len(), 8);
    assert!(starts[..7].iter().all(|start| start.contains("+1g.5gb@")), "{starts:?}");
    assert_eq!(starts[7], "8: resources");
}

#[test]
fn a_tight_idle_slice_is_taken_before_a_new_one_is_created() {
    let gpus = [a100(&[]), a100(&[("1g.5gb", 2, IDLE)])];

    assert_eq!(round(gpus, &[Unknown]), ["1: 1g.5gb@2 on 1"]);
}

#[test]
fn a_larger_idle_slice_is_not_used_if_a_tight_one_can_be_created() {
    let gpu = a100(&[("3g.20gb", 4, IDLE)]);

    assert_eq!(round([gpu], &[Unknown]), ["1: +1g.5gb@3 1g.5gb@3 on 0"]);
}

#[test]
fn a_larger_idle_slice_is_split_where_no_free_space_is_left() {
    let gpu = a100(&[("7g.40gb", 0, IDLE)]);

    assert_eq!(round([gpu], &[Unknown]), ["1: -7g.40gb@0 +1g.5gb@6 1g.5gb@6 on 0"]);
}

#[test]
fn idle_neighbours_are_merged_and_the_rest_is_not_changed() {
    let gpu = a100(&[
        ("1g.5gb", 0, IDLE),
        ("1g.5gb", 1, IDLE),
        ("1g.5gb", 2, IDLE),
        ("1g.5gb", 3, taken(90)),
        ("3g.20gb", 4, taken(91)),
    ]);

    assert_eq!(round([gpu], &[mib(9_000)]), ["1: -1g.5gb@0 -1g.5gb@1 +2g.10gb@0 2g.10gb@0 on 0"]);
}

#[test]
fn merging_small_slices_comes_before_splitting_a_large_one_where_that_keeps_more_futures() {
    let gpu = a100(&[
        ("4g.20gb", 0, IDLE),
        ("1g.5gb", 4, IDLE),
        ("1g.5gb", 5, IDLE),
        ("1g.5gb", 6, taken(90)),
    ]);

    assert_eq!(round([gpu], &[mib(9_000)]), ["1: -1g.5gb@4 -1g.5gb@5 +2g.10gb@4 2g.10gb@4 on 0"]);
}

#[test]
fn of_ways_that_keep_equally_many_futures_the_shortest_plan_is_taken() {
    let gpu = a100(&[
        ("1g.5gb", 0, IDLE),
        ("1g.5gb", 1, IDLE),
        ("1g.5gb", 2, IDLE),
        ("1g.5gb", 3, IDLE),
        ("3g.20gb", 4, IDLE),
    ]);

    // A 2g at 0, 2 or 4 keeps six of nineteen layouts in reach; at 4 one instance goes, not two.
    assert_eq!(round([gpu], &[mib(9_000)]), ["1: -3g.20gb@4 +2g.10gb@4 2g.10gb@4 on 0"]);
}

#[test]
fn a_whole_gpu_is_merged_from_idle_slices_only() {
    let idle = a100(&[("3g.20gb", 4, IDLE), ("4g.20gb", 0, IDLE)]);
    let in_use = a100(&[("1g.5gb", 0, taken(90))]);

    assert_eq!(
        round([in_use.clone(), idle], &[Whole]),
        ["1: -4g.20gb@0 -3g.20gb@4 +7g.40gb@0 7g.40gb@0 on 1"]
    );
    assert_eq!(round([in_use], &[Whole]), ["1: resources"]);
}

#[test]
fn gpus_in_use_are_filled_before_an_empty_one_is_opened() {
    let gpus = [a100(&[]), a100(&[("1g.5gb", 6, taken(90))])];

    assert_eq!(round(gpus, &[Unknown]), ["1: +1g.5gb@5 1g.5gb@5 on 1"]);
}

#[test]
fn the_least_memory_that_is_enough_wins_across_models() {
    // 1g.6gb of the A30 has 5.81 GiB, 2g.10gb of the A100 has 9.63 GiB.
    assert_eq!(
        round([a100(&[("2g.10gb", 0, IDLE)]), a30(&[])], &[mib(5_500)]),
        ["1: +1g.6gb@3 1g.6gb@3 on 1"]
    );
}

#[test]
fn a_gpu_with_mig_off_is_taken_after_everything_tighter() {
    let off = unpartitioned(24_576, IDLE);

    assert_eq!(
        round(
            [off, a100(&[("4g.20gb", 0, taken(90)), ("1g.5gb", 4, taken(91))])],
            &[Unknown, Unknown, Unknown, Unknown]
        ),
        [
            "1: +1g.5gb@6 1g.5gb@6 on 1",
            "2: +1g.5gb@5 1g.5gb@5 on 1",
            "3: whole on 0",
            "4: resources"
        ]
    );
}

#[test]
fn an_idle_slice_of_equal_memory_and_more_compute_fits_tightly_too() {
    assert_eq!(round([a100(&[("4g.20gb", 0, IDLE)])], &[gib(19)]), ["1: 4g.20gb@0 on 0"]);
    assert_eq!(
        round([a100(&[("4g.20gb", 0, IDLE), ("3g.20gb", 4, IDLE)])], &[gib(19)]),
        ["1: 3g.20gb@4 on 0"]
    );
}

#[test]
fn a_named_profile_is_made_exactly_even_if_it_is_not_a_plain_one() {
    let starts = round([a100(&[])], &[named("1g.10gb"), named("1g.5gb+me"), named("1g.5gb+me")]);

    assert_eq!(starts.len(), 3);
    assert!(starts[0].contains("+1g.10gb@"), "{starts:?}");
    assert!(starts[1].contains("+1g.5gb+me@"), "{starts:?}");
    assert_eq!(starts[2], "3: mig_fragmentation", "a GPU holds one instance with media engines");
}

#[test]
fn a_waiting_head_holds_up_the_jobs_behind_it() {
    let gpu = a100(&[("3g.20gb", 4, taken(17)), ("3g.20gb", 0, taken(18))]);
    let cluster = cluster([gpu, a100(&[("1g.5gb", 6, taken(19)), ("1g.5gb", 0, taken(20))])]);

    let decisions = decide("scheme-b", &cluster, &queue([gib(19), Unknown, Unknown]));

    assert_eq!(short(&cluster, &decisions), ["1: mig_fragmentation", "2: priority"]);
    assert_eq!(why(&decisions[0]).would_start_if.as_deref(), Some("job 17, 18, 19 or 20 ends"));
}

#[test]
fn a_job_that_no_gpu_could_ever_hold_holds_up_no_other() {
    assert_eq!(
        round(
            [a100(&[]), away(gpu("a100-80gb", &[]))],
            &[gib(500), gib(60), named("9g.99gb"), Unknown]
        ),
        [
            "1: bad_constraints",
            "2: node_unavailable",
            "3: bad_constraints",
            "4: +1g.5gb@6 1g.5gb@6 on 0"
        ]
    );
}

#[test]
fn a_job_that_a_stuck_instance_blocks_holds_up_no_other() {
    assert_eq!(
        round([a100(&[("1g.5gb", 0, STUCK), ("2g.10gb", 2, FOREIGN)])], &[Whole, Unknown]),
        ["1: gpu_blocked", "2: +1g.5gb@1 1g.5gb@1 on 0"]
    );
}

#[test]
fn a_changing_gpu_gives_its_idle_slices_but_takes_no_steps() {
    let gpu = changing(a100(&[("1g.5gb", 6, IDLE)]));
    let cluster = cluster([gpu]);

    let decisions = decide("scheme-b", &cluster, &queue([Unknown, Unknown]));

    assert_eq!(short(&cluster, &decisions), ["1: 1g.5gb@6 on 0", "2: awaiting_repartition"]);
    assert_eq!(
        why(&decisions[1]).would_start_if.as_deref(),
        Some("the layout plan of GPU 0 of node a ends")
    );
}

#[test]
fn free_memory_in_the_wrong_shape_is_called_fragmentation() {
    let gpu = a100(&[("1g.5gb", 1, taken(7)), ("1g.5gb", 3, taken(8)), ("1g.5gb", 5, taken(9))]);
    let cluster = cluster([gpu]);

    let decisions = decide("scheme-b", &cluster, &queue([mib(9_000)]));

    assert_eq!(short(&cluster, &decisions), ["1: mig_fragmentation"]);
    assert_eq!(
        why(&decisions[0]).summary,
        "8.78 GiB requested: 3 memory slices of GPU 0 of node a are free and 2 are needed, but \
         running jobs leave no valid position for 2g.10gb"
    );
    assert_eq!(why(&decisions[0]).would_start_if.as_deref(), Some("job 7, 8 or 9 ends"));
}

#[test]
fn a_wait_names_the_smallest_set_of_jobs_where_one_is_not_enough() {
    let cluster = cluster([a100(&[("3g.20gb", 4, taken(17)), ("4g.20gb", 0, taken(18))])]);

    let decisions = decide("scheme-b", &cluster, &queue([Whole]));

    let expected = "jobs 17 and 18 on GPU 0 of node a end";
    assert_eq!(why(&decisions[0]).would_start_if.as_deref(), Some(expected));
}

#[test]
fn a_start_explains_the_reachable_layouts_and_the_other_candidates() {
    let cluster = cluster([a100(&[]), a100(&[])]);

    let decisions = decide("scheme-b", &cluster, &queue([mib(4_800)]));

    let why = why(&decisions[0]);
    assert_eq!(
        why.summary,
        "4.68 GiB requested: 1g.5gb at slice 6 of GPU 0 of node a (4.75 GiB) is created in free space; \
         it keeps 12 of 19 full layouts reachable; 7 other places were considered"
    );
    let rows: Vec<_> = why
        .candidates
        .iter()
        .map(|c| (c.gpu_index, c.start, c.verdict.as_str(), c.reachability_after))
        .collect();
    assert_eq!(
        rows,
        [
            (0, Some(6), "chosen", Some(12)),
            (0, Some(5), "fewer_futures", Some(6)),
            (0, Some(4), "fewer_futures", Some(6)),
            (1, Some(6), "later_in_order", Some(12)),
        ]
    );
    assert_eq!(why.candidates_left_out, 4);
}

#[test]
fn a_round_starts_no_more_jobs_than_it_may() {
    let cluster = cluster([a100(&[])]);

    let decisions = decide_at_most("scheme-b", &cluster, &queue([Unknown, Unknown, Unknown]), 2);

    assert_eq!(decisions.len(), 2);
}
