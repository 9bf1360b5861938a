//! Properties of all clusters and queues with gangs.

use proptest::prelude::*;
use tessera_lab_policies::{all_names, find_policy};

use super::*;
use crate::arbitrary;

fn shape() -> impl Strategy<Value = (u32, u32)> {
    prop::sample::select(vec![(1, 2), (2, 1), (2, 2), (1, 3), (3, 1), (1, 4)])
}

/// Jobs and gangs, mixed.
pub(crate) fn mixed() -> impl Strategy<Value = Vec<QueuedJob>> {
    let request = prop_oneof![
        Just(GpuRequest::Unknown),
        (1_u64..40_000).prop_map(build::mib),
        Just(build::named("1g.5gb")),
        Just(GpuRequest::Whole),
    ];
    let one = (prop::option::of(shape()), request);
    prop::collection::vec(one, 0..14).prop_map(|requests| {
        let (mut queue, mut number) = (Vec::new(), 1);
        for (shape, request) in requests {
            let jobs = match shape {
                Some(shape) => gang(number, shape, &request),
                None => {
                    let mut jobs = build::queue([request]);
                    jobs[0].id = JobId::from_number(number);
                    jobs[0].submitted = Millis::new(number);
                    jobs
                }
            };
            number += u64::try_from(jobs.len()).unwrap();
            queue.extend(jobs);
        }
        queue
    })
}

fn secs_by_job() -> impl Strategy<Value = BTreeMap<JobId, Millis>> {
    prop::collection::btree_map(1_u64..2_000, 1_u64..4_000, 0..200).prop_map(|secs| {
        let known = |(job, secs)| (JobId::from_number(job), Millis::from_secs(secs));
        secs.into_iter().map(known).collect()
    })
}

/// Applies decisions in their order, and panics if one can't be carried out.
fn follow(cluster: &ClusterView, queue: &[QueuedJob], decisions: &[Decision]) {
    let mut taken: BTreeMap<String, Vec<(JobId, Option<tessera_model::mig::Slot>)>> =
        BTreeMap::new();
    let mut reshaped = BTreeSet::new();
    for decision in decisions {
        match decision {
            Decision::Start { job, place, .. } => {
                let gpu = cluster.gpus.iter().find(|gpu| gpu.id == place.gpu).unwrap();
                assert!(gpu.available, "{job} is placed on {} which is away", gpu.id);
                let held = taken.entry(gpu.id.to_string()).or_default();
                for (other, slot) in held.iter() {
                    let apart = match (slot, place.slot, &gpu.mig) {
                        (Some(one), Some(two), Some(mig)) => !mig.geometry.overlap(*one, two),
                        _ => false,
                    };
                    assert!(apart, "{job} and {other} overlap on {}", gpu.id);
                }
                for instance in gpu.instances.iter().filter(|i| i.state.busy()) {
                    let apart = match (instance.slot, place.slot, &gpu.mig) {
                        (Some(one), Some(two), Some(mig)) => !mig.geometry.overlap(one, two),
                        _ => false,
                    };
                    assert!(apart, "{job} is placed over what is busy on {}", gpu.id);
                }
                held.push((*job, place.slot));
            }
            Decision::Reshape { reshape, .. } => {
                reshaped.insert(reshape.gpu.to_string());
            }
            Decision::Wait { .. } | Decision::Preempt { .. } => {}
        }
    }
    assert!(reshaped.iter().all(|gpu| !taken.contains_key(gpu)), "a reshaped GPU is given away");
    let places = places(decisions);
    for first in queue.iter().filter(|job| job.gang.is_some_and(|member| member.rank == 0)) {
        let member = first.gang.unwrap();
        let placements: Vec<&JobPlacement> =
            member.all().filter_map(|job| places.get(&job)).collect();
        if placements.is_empty() {
            continue;
        }
        let per_node = usize::try_from(member.shape.per_node()).unwrap();
        assert_eq!(placements.len(), member.all().count(), "a partial gang: {placements:?}");
        let gpus: BTreeSet<_> = placements.iter().map(|place| place.gpu.clone()).collect();
        assert_eq!(gpus.len(), placements.len(), "two members on one GPU");
        let node = |place: &&JobPlacement| {
            cluster.gpus.iter().find(|gpu| gpu.id == place.gpu).unwrap().node.to_string()
        };
        let nodes: BTreeSet<_> = placements
            .chunks(per_node)
            .map(|group| {
                let nodes: BTreeSet<_> = group.iter().map(node).collect();
                assert_eq!(nodes.len(), 1, "a node group on several nodes");
                nodes.into_iter().next().unwrap()
            })
            .collect();
        assert_eq!(nodes.len(), placements.len() / per_node, "two groups on one node");
    }
}

proptest! {
    #[test]
    fn no_policy_ever_starts_a_part_of_a_gang(
        cluster in arbitrary::cluster(),
        queue in mixed(),
        each in 1_u32..5,
        starts_max in 1_usize..20,
        late in any::<bool>(),
        left in secs_by_job(),
        limits in secs_by_job(),
    ) {
        let cluster = dealt(cluster, each);
        let now = if late { PATIENCE.plus(PATIENCE) } else { Millis::new(50) };
        let known_times = Left { times: left, limits, began: Some(Millis::ZERO) };
        for name in all_names() {
            let policy = find_policy(name).unwrap();

            let decided = decide_round(&*policy, &cluster, Knowledge::of(&known_times), &mut queue.iter(), now, starts_max);

            let mut reported = BTreeSet::new();
            for decision in &decided {
                let job = match decision {
                    Decision::Start { job, .. } | Decision::Wait { job, .. } => *job,
                    Decision::Reshape { .. } | Decision::Preempt { .. } => continue,
                };
                prop_assert!(reported.insert(job), "{}: two decisions about {}", name, job);
            }
            if by_name(name).is_some() {
                follow(&cluster, &queue, &decided);
            }
            prop_assert!(places(&decided).len() <= starts_max, "{}", name);
        }
    }

    #[test]
    fn a_gang_that_is_first_starts_after_each_job_in_its_way_has_run_once(
        ends in prop::collection::vec(1_u64..50, 6),
        shape in prop::sample::select(vec![(1, 2), (2, 1), (2, 2), (1, 3), (2, 3)]),
        seed in any::<u64>(),
    ) {
        // Six GPUs on two nodes, all in use; small jobs arrive all the time, and no run times are
        // known. A running job takes at most 50 steps.
        let longest = 50;
        let mut running: Vec<Option<u64>> = ends.iter().map(|end| Some(*end)).collect();
        let mut queue = gang(1, shape, &GpuRequest::Whole);
        let mut next = 1_000;
        let mut dice = seed;
        for step in 0..=6 * longest + 1 {
            for end in &mut running {
                *end = end.filter(|end| *end > step);
            }
            let gpus = running.iter().enumerate().map(|(gpu, end)| match end {
                Some(_) => full(500 + u64::try_from(gpu).unwrap()),
                None => build::gpu("a100-40gb", &[]),
            });
            let cluster = dealt(build::cluster(gpus), 3);
            for _ in 0..3 {
                let mut job = build::queue([GpuRequest::Whole]).remove(0);
                job.id = JobId::from_number(next);
                job.submitted = Millis::new(next);
                next += 1;
                queue.push(job);
            }

            let places = places(&decided("scheme-b", &cluster, &queue, Millis::from_secs(step)));

            if places.contains_key(&JobId::from_number(1)) {
                return Ok(());
            }
            for place in places.values() {
                let gpu = cluster.gpus.iter().position(|gpu| gpu.id == place.gpu).unwrap();
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                running[gpu] = Some(step + 1 + (dice >> 33) % longest);
            }
            queue.retain(|job| !places.contains_key(&job.id));
        }
        prop_assert!(false, "the gang starves: {:?}", running);
    }

    #[test]
    fn a_job_that_starts_by_its_limit_never_makes_a_gang_wait_longer_than_running_jobs_do(
        limits in prop::collection::vec(1_u64..60, 4),
        parts in prop::collection::vec(1_u64..=100, 1..200),
        small in prop::collection::vec(1_u64..60, 1..60),
    ) {
        // Four GPUs, all in use; every job has a limit and may end before it. The gang requests all
        // four.
        let last = limits.iter().copied().max().unwrap();
        let mut parts = parts.into_iter().cycle();
        let mut lasts = |limit: u64| (limit * parts.next().unwrap()).div_ceil(100);
        // By GPU: its job, when the job ends, and when it is stopped.
        let mut running: Vec<Option<(u64, u64, u64)>> = (90..)
            .zip(&limits)
            .map(|(job, limit)| Some((job, lasts(*limit), *limit)))
            .collect();
        let mut queue = gang(1, (1, 4), &GpuRequest::Whole);
        let mut known: BTreeMap<JobId, Millis> = BTreeMap::new();
        for (step, next) in (0..=last).zip(1_000..) {
            for held in &mut running {
                *held = held.filter(|(_, ends, _)| *ends > step);
            }
            let gpus = running.iter().map(|held| match held {
                Some((job, ..)) => full(*job),
                None => build::gpu("a100-40gb", &[]),
            });
            let cluster = dealt(build::cluster(gpus), 4);
            let mut job = build::queue([GpuRequest::Whole]).remove(0);
            job.id = JobId::from_number(next);
            job.submitted = Millis::new(next);
            queue.push(job);
            let now = Millis::from_secs(step);
            for (job, _, stopped) in running.iter().flatten() {
                known.insert(JobId::from_number(*job), Millis::from_secs(*stopped));
            }
            let limit = |job: &QueuedJob| small[usize::try_from(job.id.number()).unwrap() % small.len()];
            let waiting = queue.iter().filter(|job| job.gang.is_none());
            known.extend(waiting.map(|job| (job.id, Millis::from_secs(limit(job)))));
            // Running jobs began at time zero, and their limits count from there.
            let known_times = Left { limits: known.clone(), began: Some(Millis::ZERO), ..Left::default() };

            let policy = by_name("scheme-b").unwrap();
            let decided = decide_round(&*policy, &cluster, Knowledge::of(&known_times), &mut queue.iter(), now, 256);

            let places = places(&decided);
            if places.contains_key(&JobId::from_number(1)) {
                return Ok(());
            }
            for (job, place) in &places {
                let gpu = cluster.gpus.iter().position(|gpu| gpu.id == place.gpu).unwrap();
                let limit = limit(queue.iter().find(|waits| waits.id == *job).unwrap());
                running[gpu] = Some((job.number(), step + lasts(limit), step + limit));
            }
            queue.retain(|job| !places.contains_key(&job.id));
        }
        prop_assert!(false, "the gang is kept waiting: {:?}", running);
    }
}
