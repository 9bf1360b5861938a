//! The power cap of a cluster.

use proptest::prelude::*;
use tessera_model::{JobId, Millis};
use tessera_placement::power::{PowerCap, power_use};
use tessera_placement::{
    ClusterView, Decision, InstanceState, Knowledge, QueuedJob, WaitReason, by_name, decide_round,
};

use crate::arbitrary;
use crate::build::{self, a100, gib, queue, short, taken};

fn decide(cluster: &ClusterView, queue: &[QueuedJob]) -> Vec<Decision> {
    let policy = by_name("tessera").unwrap();
    decide_round(&*policy, cluster, Knowledge::NONE, &mut queue.iter(), Millis::ZERO, 256)
}

fn capped(cluster: ClusterView, watts: u64) -> ClusterView {
    ClusterView::new(cluster.gpus, Some(PowerCap { watts }))
}

fn started(decisions: &[Decision]) -> Vec<u64> {
    let start = |decision: &Decision| match decision {
        Decision::Start { job, .. } => Some(job.number()),
        _ => None,
    };
    decisions.iter().filter_map(start).collect()
}

/// The cluster with the jobs that start.
fn carried_out(cluster: &ClusterView, decisions: &[Decision]) -> ClusterView {
    let mut after = cluster.clone();
    for decision in decisions {
        let Decision::Start { job, place, .. } = decision else { continue };
        let gpu = after.gpus.iter_mut().find(|gpu| gpu.id == place.gpu).unwrap();
        let destroyed = |slot| {
            let gone = tessera_model::mig::PlanStep::Destroy(slot);
            place.steps.contains(&gone)
        };
        gpu.instances.retain(|one| one.slot != place.slot && !one.slot.is_some_and(destroyed));
        gpu.instances.push(tessera_placement::InstanceView {
            slot: place.slot,
            memory: tessera_model::Bytes::ZERO,
            state: InstanceState::Taken { job: *job },
        });
    }
    after
}

#[test]
fn a_job_waits_that_would_exceed_the_cap_and_its_explanation_has_the_figures() {
    // An A100 with SXM draws up to 60 W idle, and 49 W more for each of its seven slices.
    let cluster = build::cluster([a100(&[("1g.5gb", 0, taken(100))])]);
    assert_eq!((power_use(&cluster).idle, power_use(&cluster).expected), (60, 109));
    let jobs = queue([gib(4), gib(4)]);

    let decisions = decide(&capped(cluster, 158), &jobs);

    assert_eq!(started(&decisions), [1]);
    let Some(Decision::Wait { job, reason, why }) = decisions.last() else {
        panic!("{decisions:?}")
    };
    assert_eq!((job.number(), *reason), (2, WaitReason::PowerCap));
    assert!(why.summary.contains("power cap: the GPUs draw up to 158 of 158 W"), "{}", why.summary);
    assert!(why.summary.contains("0 W are left"), "{}", why.summary);
    let remedy = why.would_start_if.as_deref().unwrap();
    assert!(remedy.contains("jobs whose slices draw 48 W end"), "{remedy}");
}

#[test]
fn a_large_job_that_waits_for_power_is_not_passed_by_small_ones_forever() {
    let cluster = build::cluster([a100(&[("1g.5gb", 0, taken(100))]), a100(&[])]);
    // A whole GPU adds 340 W, and a small slice 49 W.
    let mut jobs = queue([gib(39), gib(4)]);
    // Of jobs that come together, the small one would be first.
    jobs[1].submitted = Millis::from_secs(100);

    let decisions = decide(&capped(cluster, 120 + 49 + 300), &jobs);

    assert_eq!(started(&decisions), [0_u64; 0], "{decisions:?}");
    let texts: Vec<_> = decisions
        .iter()
        .filter_map(|decision| match decision {
            Decision::Wait { reason: WaitReason::PowerCap, why, .. } => Some(why.summary.clone()),
            _ => None,
        })
        .collect();
    assert!(
        texts.iter().any(|text| text.contains("which job 1 ahead of it waits for")),
        "{texts:?}"
    );
}

#[test]
fn a_job_of_unknown_length_takes_a_smaller_slice_rather_than_wait_for_power() {
    let cluster = build::cluster([a100(&[("4g.20gb", 0, taken(100))]), a100(&[])]);
    let jobs = queue([gib(4), gib(4), gib(4)]);
    let free = decide(&cluster, &jobs);
    assert!(short(&cluster, &free)[0].contains("g.20gb"), "{free:?}");

    // What runs draws 194 W more than idle boards, a half 146 W, and the smallest slice 49 W.
    let decisions = decide(&capped(cluster, 120 + 195 + 60), &jobs);

    assert_eq!(started(&decisions), [1], "{decisions:?}");
    let why = decisions.iter().find_map(|decision| match decision {
        Decision::Start { why, .. } => Some(why.summary.clone()),
        _ => None,
    });
    assert!(why.unwrap().contains("the power cap leaves 60 W, too little for larger slices"));
}

#[test]
fn a_job_that_the_cap_can_never_hold_keeps_nobody_waiting() {
    let cluster = build::cluster([a100(&[])]);
    let mut jobs = queue([gib(39), gib(4)]);
    // Of jobs that come together, the small one would be first.
    jobs[1].submitted = Millis::from_secs(100);

    let decisions = decide(&capped(cluster, 60 + 100), &jobs);

    let refused = decisions.iter().find_map(|decision| match decision {
        Decision::Wait { job, reason: WaitReason::PowerCap, why } => Some((*job, why.clone())),
        _ => None,
    });
    let (job, why) = refused.unwrap();
    assert_eq!(job, JobId::from_number(1));
    assert!(why.would_start_if.unwrap().contains("with less it can never start"));
}

#[test]
fn the_text_of_a_cap_has_a_unit() {
    for (text, watts) in
        [("800W", 800), ("12kW", 12_000), ("12.5kW", 12_500), ("1.25 MW", 1_250_000)]
    {
        assert_eq!(text.parse::<PowerCap>(), Ok(PowerCap { watts }), "{text}");
    }
    for text in
        ["800", "0W", "-1W", "1.5W", "1.2345kW", "kW", "1,5kW", "99999999999999999999W", "800 VA"]
    {
        let error = text.parse::<PowerCap>().unwrap_err().to_string();
        assert!(error.contains("write watts with their unit, such as 800W"), "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn starts_never_exceed_the_cap_and_a_cap_that_nothing_reaches_changes_nothing(
        cluster in arbitrary::cluster(),
        jobs in arbitrary::queue(),
        part in 0_u64..=1_000,
    ) {
        let all = power_use(&cluster);
        let watts = (all.idle + (all.full - all.idle) * part / 1_000).max(1);

        let decisions = decide(&capped(cluster.clone(), watts), &jobs);

        let after = power_use(&carried_out(&cluster, &decisions)).expected;
        prop_assert!(after <= watts.max(all.expected), "{after} W above {watts} W");
        let free = decide(&capped(cluster.clone(), all.full.max(1)), &jobs);
        prop_assert_eq!(free, decide(&cluster, &jobs));
    }
}
