//! Administrative overrides: drained, quarantined and pinned GPUs.

use proptest::prelude::*;
use tessera_model::spec::GpuRequest::{Unknown, Whole};
use tessera_placement::policy::NAMES;
use tessera_placement::{AdminOverride, ClosureKind, Decision, GpuClosure, GpuView, InstanceState};

use crate::arbitrary;
use crate::build::{IDLE, a100, away, cluster, decide, gib, named, queue, short, taken, why};

fn closed(gpu: GpuView, how: ClosureKind, words: &str, until: &str) -> GpuView {
    let closed = GpuClosure { how, words: words.to_owned(), until: until.to_owned() };
    GpuView {
        available: false,
        operator: AdminOverride { closed: Some(closed), pinned: None },
        ..gpu
    }
}

fn drained(gpu: GpuView) -> GpuView {
    closed(
        gpu,
        ClosureKind::Drained,
        "node a is drained (maintenance, by ada)",
        "node a is undrained",
    )
}

fn pinned(gpu: GpuView) -> GpuView {
    let words = "the layout of GPU 0 of node a is pinned (by ada)".to_owned();
    GpuView { operator: AdminOverride { closed: None, pinned: Some(words) }, ..gpu }
}

#[test]
fn a_job_that_only_drained_gpus_could_hold_gets_the_operator_named() {
    let cluster = cluster([drained(a100(&[])), drained(a100(&[]))]);
    for policy in NAMES {
        let decisions = decide(policy, &cluster, &queue([Whole]));

        assert_eq!(short(&cluster, &decisions), ["1: node_drained"], "{policy}");
        let why = why(&decisions[0]);
        assert_eq!(why.summary, "a whole GPU requested: node a is drained (maintenance, by ada)");
        assert_eq!(why.would_start_if.as_deref(), Some("node a is undrained"));
        assert!(why.candidates.iter().all(|c| c.verdict == "drained"), "{why:?}");
    }
}

#[test]
fn a_quarantine_and_a_lost_node_have_different_reasons() {
    let words = "GPU 0 of node a is quarantined (XID 79, by bob)";
    let gpu = closed(a100(&[]), ClosureKind::Quarantined, words, "GPU 0 of node a is cleared");
    let alone = cluster([gpu.clone()]);
    let both = cluster([gpu, away(a100(&[]))]);

    let first = decide("scheme-b", &alone, &queue([gib(4)]));
    let second = decide("scheme-b", &both, &queue([gib(4)]));

    assert_eq!(short(&alone, &first), ["1: gpu_quarantined"]);
    assert_eq!(short(&both, &second), ["1: node_unavailable"]);
    assert_eq!(
        why(&second[0]).summary,
        format!("4 GiB requested: {words}, and GPU 1 of node a is unavailable")
    );
}

#[test]
fn a_job_that_waits_for_a_busy_gpu_sees_the_drained_one_among_the_candidates() {
    let busy = a100(&[("7g.40gb", 0, taken(900))]);
    let cluster = cluster([busy, drained(a100(&[]))]);

    let decisions = decide("scheme-b", &cluster, &queue([Unknown]));

    assert_eq!(short(&cluster, &decisions), ["1: resources"]);
    let verdicts: Vec<_> =
        why(&decisions[0]).candidates.iter().map(|c| c.verdict.as_str()).collect();
    assert_eq!(verdicts, ["busy", "drained"]);
}

#[test]
fn candidates_name_what_keeps_a_gpu_from_an_offer() {
    let full = || a100(&[("7g.40gb", 0, taken(900))]);
    let leaving = a100(&[("3g.20gb", 4, InstanceState::Leaving), ("4g.20gb", 0, taken(901))]);
    let pinned = pinned(a100(&[("3g.20gb", 4, taken(902)), ("1g.5gb", 0, IDLE)]));
    let cluster = cluster([full(), leaving, pinned]);

    let decisions = decide("scheme-b", &cluster, &queue([named("3g.20gb")]));

    let verdicts: Vec<_> = why(&decisions[0])
        .candidates
        .iter()
        .map(|candidate| (candidate.gpu_index, candidate.verdict.as_str()))
        .collect();
    assert_eq!(verdicts, [(1, "leaving"), (0, "busy"), (2, "pinned")]);
}

#[test]
fn every_policy_uses_a_pinned_layout_without_changing_it() {
    let gpu = pinned(a100(&[("3g.20gb", 4, IDLE), ("1g.5gb", 0, IDLE)]));
    let cluster = cluster([gpu]);
    for policy in NAMES {
        // The second finds only a larger slice than it needs: it can't be split.
        let decisions = decide(policy, &cluster, &queue([Unknown, Unknown]));

        assert_eq!(
            short(&cluster, &decisions),
            ["1: 1g.5gb@0 on 0", "2: 3g.20gb@4 on 0"],
            "{policy}"
        );
    }
}

#[test]
fn a_job_that_a_pinned_layout_can_never_hold_learns_who_pinned_it() {
    let cluster = cluster([pinned(a100(&[("1g.5gb", 0, IDLE)]))]);

    let decisions = decide("scheme-b", &cluster, &queue([named("2g.10gb")]));

    assert_eq!(short(&cluster, &decisions), ["1: mig_fragmentation"]);
    assert_eq!(
        why(&decisions[0]).summary,
        "2g.10gb requested: no existing instance fits, and the layout of GPU 0 of node a is \
         pinned (by ada)"
    );
}

proptest! {
    /// For any layout and any request, no instance of a pinned GPU is created or destroyed, and no
    /// job starts on a quarantined instance.
    #[test]
    fn pinned_layouts_are_never_changed_and_quarantined_slices_never_used(
        mut cluster in arbitrary::cluster(),
        queue in arbitrary::queue(),
        pins in prop::collection::vec(any::<bool>(), 16),
    ) {
        for (gpu, pin) in cluster.gpus.iter_mut().zip(&pins) {
            if *pin {
                gpu.operator.pinned = Some("pinned".to_owned());
            }
        }
        for policy in NAMES {
            for decision in decide(policy, &cluster, &queue) {
                let Decision::Start { place, .. } = decision else { continue };
                let gpu = cluster.gpus.iter().find(|gpu| gpu.id == place.gpu).unwrap();
                prop_assert!(gpu.operator.pinned.is_none() || place.steps.is_empty());
                let used = gpu.instances.iter().find(|i| i.slot == place.slot);
                let bad = used.is_some_and(|i| i.state == InstanceState::Quarantined);
                prop_assert!(!bad, "{policy} uses a quarantined slice");
            }
        }
    }
}
