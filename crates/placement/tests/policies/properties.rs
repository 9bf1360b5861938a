//! Properties of all clusters and queues.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tessera_model::mig::{PlanStep, StateSpace};
use tessera_model::spec::GpuRequest;
use tessera_model::{JobId, Millis};
use tessera_placement::decision::CANDIDATES_MAX;
use tessera_placement::policy::NAMES;
use tessera_placement::{ClusterView, Decision, InstanceState, QueuedJob, WaitReason, by_name};

use crate::arbitrary::{cluster, queue};
use crate::build::{could_ever_fit, decide, decide_at_most, why};
use crate::hardware::{Hardware, How, standing, tight_slots};

fn id(decision: &Decision) -> JobId {
    match decision {
        Decision::Start { job, .. } | Decision::Wait { job, .. } => *job,
        Decision::Reshape { .. } | Decision::Preempt { .. } => {
            panic!("{decision:?}: a policy that runs live moves nobody")
        }
    }
}

fn gpu_request(queue: &[QueuedJob], job: JobId) -> &GpuRequest {
    &queue.iter().find(|queued| queued.id == job).unwrap().gpu
}

fn is_wait(decision: &Decision) -> bool {
    matches!(decision, Decision::Wait { .. })
}

/// Returns whether no running job can end the wait: such a job holds up no other.
fn hopeless(decision: &Decision) -> bool {
    match decision {
        Decision::Start { .. } | Decision::Reshape { .. } | Decision::Preempt { .. } => false,
        Decision::Wait { reason, .. } => match reason {
            WaitReason::NodeUnavailable
            | WaitReason::GpuBlocked
            | WaitReason::NodeDrained
            | WaitReason::GpuQuarantined
            | WaitReason::BadConstraints => true,
            WaitReason::Resources
            | WaitReason::Priority
            | WaitReason::MigFragmentation
            | WaitReason::AwaitingRepartition
            | WaitReason::Quota
            | WaitReason::PowerCap
            | WaitReason::BeginTime
            | WaitReason::ArrayTaskLimit
            | WaitReason::Dependency
            | WaitReason::DependencyNeverSatisfied
            | WaitReason::PlacementHeld => false,
        },
    }
}

/// Returns whether the instance holds what was requested, tight or not.
fn satisfies(
    hardware: &Hardware,
    decision: &Decision,
    gpu_request: &GpuRequest,
    policy: &str,
) -> bool {
    let Decision::Start { place, .. } = decision else { return true };
    let gpu = hardware.gpu(place);
    let instance = gpu.instances.iter().find(|i| i.slot == place.slot).unwrap();
    let profile =
        place.slot.map(|s| gpu.mig.as_ref().unwrap().geometry.profile(s.profile).unwrap());
    match gpu_request {
        GpuRequest::Unknown => true,
        GpuRequest::Memory(bytes) => instance.memory >= *bytes,
        // A whole GPU of a model that offers the profile, for `exclusive`.
        GpuRequest::Profile(name) if policy == "exclusive" => {
            gpu.mig.as_ref().is_some_and(|mig| mig.geometry.by_name(name).is_some())
        }
        GpuRequest::Profile(name) => profile.is_some_and(|p| p.name == *name),
        GpuRequest::Whole => gpu.instances.len() == 1,
        GpuRequest::Unpartitioned => gpu.mig.is_none(),
        GpuRequest::Compute(_) => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_decision_can_be_carried_out_in_order(cluster in cluster(), queue in queue()) {
        for policy in NAMES {
            let mut hardware = Hardware::new(&cluster);
            for decision in decide(policy, &cluster, &queue) {
                let Decision::Start { job, place, .. } = &decision else { continue };
                hardware.start(*job, place);
                prop_assert!(satisfies(&hardware, &decision, gpu_request(&queue, *job), policy));
            }
        }
    }

    #[test]
    fn each_job_gets_one_decision_in_the_order_of_the_queue(
        cluster in cluster(), queue in queue(),
    ) {
        for policy in NAMES {
            let mut decided: Vec<_> = decide(policy, &cluster, &queue).iter().map(id).collect();
            if *policy == "tessera" {
                // It has its own order of service.
                decided.sort_unstable();
            }

            prop_assert!(decided.is_sorted_by(|a, b| a < b), "{policy}: {decided:?}");
        }
    }

    #[test]
    fn a_limited_round_starts_as_many_jobs_as_allowed_and_the_same_ones(
        cluster in cluster(), queue in queue(), starts_max in 0_usize..10,
    ) {
        for policy in NAMES {
            let free = decide(policy, &cluster, &queue);
            let bound = decide_at_most(policy, &cluster, &queue, starts_max);

            let starts = |d: &[Decision]| d.iter().filter(|d| !is_wait(d)).count();
            prop_assert_eq!(starts(&bound), starts(&free).min(starts_max));
            prop_assert_eq!(&bound[..], &free[..bound.len()]);
        }
    }

    #[test]
    fn equal_input_gives_equal_decisions(cluster in cluster(), queue in queue()) {
        for policy in NAMES {
            prop_assert_eq!(decide(policy, &cluster, &queue), decide(policy, &cluster, &queue));
        }
    }

    #[test]
    fn no_job_starts_behind_a_waiting_one_if_the_policy_keeps_the_order(
        cluster in cluster(), queue in queue(),
    ) {
        for policy in ["exclusive", "scheme-b"] {
            let decisions = decide(policy, &cluster, &queue);

            let head = decisions.iter().position(|d| is_wait(d) && !hopeless(d));
            if let Some(head) = head {
                let all_wait = decisions[head..].iter().all(is_wait);
                prop_assert!(all_wait, "{policy}");
                let is_reported = |d: &&Decision| !hopeless(d);
                prop_assert!(decisions[head + 1..].iter().filter(is_reported).count() <= 1, "{policy}");
            }
            let looked_at: Vec<_> = decisions.iter().map(id).collect();
            let first: Vec<_> = queue.iter().take(decisions.len()).map(|job| job.id).collect();
            prop_assert_eq!(looked_at, first, "{} skips nobody", policy);
        }
    }

    #[test]
    fn a_job_waits_only_if_no_placement_is_possible(cluster in cluster(), queue in queue()) {
        let mut hardware = Hardware::new(&cluster);
        for decision in decide("scheme-b", &cluster, &queue) {
            match &decision {
                Decision::Start { job, place, .. } => hardware.start(*job, place),
                Decision::Reshape { .. } | Decision::Preempt { .. } => prop_assert!(false, "{:?}", decision),
                Decision::Wait { reason: WaitReason::Priority, .. } => {}
                Decision::Wait { job, .. } => {
                    prop_assert_eq!(hardware.places(gpu_request(&queue, *job)), []);
                }
            }
        }
    }

    #[test]
    fn a_job_gets_the_tightest_placement_with_the_fewest_steps(
        cluster in cluster(), queue in queue(),
    ) {
        let mut hardware = Hardware::new(&cluster);
        for decision in decide("scheme-b", &cluster, &queue) {
            let Decision::Start { job, place, .. } = &decision else { continue };
            let best = hardware.places(gpu_request(&queue, *job)).into_iter().min();

            hardware.start(*job, place);

            let there = hardware.gpu(place).instances.iter().find(|i| i.slot == place.slot);
            let how = match place.steps[..] {
                [] => How::Idle,
                [_] => How::Create,
                [..] => How::Rearrange,
            };
            prop_assert_eq!(Some((there.unwrap().memory, how)), best);
        }
    }

    #[test]
    fn an_instance_is_created_where_the_most_futures_stay_open(
        cluster in cluster(), queue in queue(),
    ) {
        let mut hardware = Hardware::new(&cluster);
        for decision in decide("scheme-b", &cluster, &queue) {
            let Decision::Start { job, place, .. } = &decision else { continue };
            if let [PlanStep::Create(slot)] = place.steps[..] {
                let gpu = hardware.gpu(place);
                let mig = gpu.mig.as_ref().unwrap();
                // `R` as the model crate counts it; it is defined for plain instances only.
                let space = StateSpace::new(&mig.geometry, Some(&mig.geometry.plain())).unwrap();
                if let Some(state) = space.state(&standing(gpu, |_| true)) {
                    let reach = |slot| Some(space.reachability(space.allocate(state, slot)?));
                    let tight = tight_slots(&mig.geometry, gpu_request(&queue, *job));
                    let best = tight.into_iter().filter_map(|(slot, _)| reach(slot)).max();
                    if space.allocate(state, slot).is_some() {
                        prop_assert_eq!(reach(slot), best);
                    }
                }
            }
            hardware.start(*job, place);
        }
    }

    #[test]
    fn a_plan_destroys_nothing_that_could_have_stayed(cluster in cluster(), queue in queue()) {
        let mut hardware = Hardware::new(&cluster);
        for decision in decide("scheme-b", &cluster, &queue) {
            let Decision::Start { job, place, .. } = &decision else { continue };
            hardware.start(*job, place);
            let gpu = hardware.gpu(place);
            for step in &place.steps {
                let PlanStep::Destroy(gone) = step else { continue };
                let mut layout = standing(gpu, |_| true);
                let fresh = layout.insert(*gone);
                let legal = gpu.mig.as_ref().unwrap().geometry.check(&layout).is_ok();
                prop_assert!(!fresh || !legal, "{gone:?} was in no job's way");
            }
        }
    }

    #[test]
    fn a_fixed_layout_leaves_no_instance_idle_that_a_waiting_job_could_use(
        cluster in cluster(), queue in queue(),
    ) {
        let mut hardware = Hardware::new(&cluster);
        let mut started = BTreeSet::new();
        for decision in decide("static", &cluster, &queue) {
            let Decision::Start { job, place, .. } = &decision else { continue };
            prop_assert_eq!(&place.steps, &[]);
            hardware.start(*job, place);
            started.insert(*job);
        }

        for job in queue.iter().filter(|job| !started.contains(&job.id)) {
            for gpu in hardware.cluster.gpus.iter().filter(|gpu| gpu.available) {
                let idle = gpu.instances.iter().filter(|i| i.state == InstanceState::Idle);
                for instance in idle {
                    let profile = instance.slot.and_then(|s| gpu.mig.as_ref()?.geometry.profile(s.profile));
                    let suits = match &job.gpu {
                        GpuRequest::Unknown => true,
                        GpuRequest::Memory(bytes) => instance.memory >= *bytes,
                        GpuRequest::Profile(name) => profile.is_some_and(|p| p.name == *name),
                        GpuRequest::Whole | GpuRequest::Unpartitioned => gpu.mig.is_none(),
                        GpuRequest::Compute(_) => false,
                    };
                    prop_assert!(!suits, "{} could use {instance:?}", job.id);
                }
            }
        }
    }

    #[test]
    fn every_decision_is_explained_within_bounds(cluster in cluster(), queue in queue()) {
        for policy in NAMES {
            for decision in decide(policy, &cluster, &queue) {
                let why = why(&decision);
                prop_assert_eq!(&why.policy, policy);
                prop_assert!(!why.summary.is_empty());
                prop_assert!(why.candidates.len() <= CANDIDATES_MAX);
                let chosen = why.candidates.iter().filter(|c| c.chosen).count();
                let is_start = matches!(decision, Decision::Start { .. });
                prop_assert_eq!(chosen, usize::from(is_start));
                prop_assert_eq!(why.would_start_if.is_none(), is_start, "{:?}", decision);
            }
        }
    }

    #[test]
    fn a_request_that_passes_the_check_is_never_refused_as_impossible(
        cluster in cluster(), queue in queue(),
    ) {
        for policy in NAMES {
            for decision in decide(policy, &cluster, &queue) {
                let possible = could_ever_fit(&cluster, gpu_request(&queue, id(&decision)));
                let never = matches!(possible, tessera_placement::Feasibility::Never { .. });
                let refused =
                    matches!(decision, Decision::Wait { reason: WaitReason::BadConstraints, .. });
                // Before a GPU was seen, no request is impossible.
                prop_assert_eq!(never && !cluster.gpus.is_empty(), refused);
            }
        }
    }
}

#[test]
fn an_empty_cluster_and_an_empty_queue_are_handled() {
    for policy in NAMES {
        let policy = by_name(policy).unwrap();

        let decisions =
            policy.decide(&ClusterView::default(), &mut std::iter::empty(), Millis::ZERO, 10);

        assert_eq!(decisions, []);
    }
}

#[test]
fn a_job_that_arrives_before_the_first_gpu_waits_for_a_node() {
    let (cluster, queue) = (ClusterView::default(), crate::build::queue([GpuRequest::Unknown]));
    for policy in NAMES {
        let decisions = decide(policy, &cluster, &queue);

        let [Decision::Wait { reason, .. }] = &decisions[..] else { panic!("{decisions:?}") };
        assert_eq!(*reason, WaitReason::NodeUnavailable, "{policy}");
    }
}
