//! Invariants that are checked after each event (V1 to V8).

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::life::JobState;
use tessera_model::{JobId, NodeId};

use super::world::World;
use crate::input::Input;

/// The state at the previous check.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// By how often a user requeued the job after its end.
    finals: BTreeMap<(JobId, u32), JobState>,
    generations: BTreeMap<NodeId, (u64, u64)>,
    epoch: u64,
}

impl Past {
    /// Checks all invariants, and panics at a violation.
    pub(super) fn check(&mut self, world: &World) {
        processes_are_committed_and_alone(world);
        memory_is_shared_by_nobody(world);
        for (job, row) in &world.store.jobs {
            assert_eq!(row.attempt.is_some(), row.state.has_live_attempt(), "{job:?} (V1)");
            if row.state.is_final() {
                let before = *self.finals.entry((*job, row.again)).or_insert(row.state);
                assert_eq!(before, row.state, "{job:?} left its final state (V7)");
            } else {
                let ended = self.finals.contains_key(&(*job, row.again));
                assert!(!ended, "{job:?} left its final state without a user (V7)");
            }
        }
        assert!(world.store.epoch >= self.epoch, "the epoch decreased (V8)");
        self.epoch = world.store.epoch;
        for machine in &world.machines {
            let stored = world.store.nodes.get(&machine.identity.id).map_or(0, |n| n.generation);
            let own = machine.disk.generation;
            let before = self.generations.entry(machine.identity.id).or_default();
            assert!(stored >= before.0 && own >= before.1, "a generation decreased (V8)");
            assert!(own <= stored, "a node has a generation that was never assigned");
            *before = (stored, own);
        }
    }
}

/// The store knows every live process as live (V2, V6), and no job has two.
fn processes_are_committed_and_alone(world: &World) {
    let mut jobs = BTreeSet::new();
    for machine in &world.machines {
        for (attempt, process) in &machine.processes {
            let job = process.facts.job;
            assert!(jobs.insert(job), "two processes of {job:?} live (V2)");
            let row = world.store.attempts.get(attempt);
            let row = row.unwrap_or_else(|| panic!("{attempt} was never committed (V6)"));
            let state = world.store.jobs[&job].state;
            assert!(row.live, "{attempt} of {job:?}, which is {state}, lives on");
        }
    }
}

/// An explanation from a part of the cluster state equals the one from all of it.
pub(super) fn a_question_apart_has_the_same_answer(world: &mut World) {
    let cluster = &world.controller.cluster;
    let Some((_, job)) = cluster.queue.waiting.keys().next_back() else { return };
    let line = cluster.queue_position(*job).unwrap();

    let apart = cluster.explain_waiting(*job, world.now);

    assert!(apart.is_some(), "{job:?} waits");
    let whole = cluster.explain_position(&line, world.now);
    assert_eq!(apart, whole);
    let ahead = line.jobs_ahead;
    world.note("an explain query was answered", ahead);
}

/// No two processes use one memory slice, except for sharing jobs of one user within its capacity.
/// Each process uses an existing instance (V3, P7).
fn memory_is_shared_by_nobody(world: &World) {
    for machine in &world.machines {
        let mut used = BTreeMap::new();
        for (attempt, process) in &machine.processes {
            let facts = &process.facts;
            let gpu_report =
                machine.gpus.iter().find(|gpu_report| gpu_report.gpu == facts.gpu).unwrap();
            let slices = match (facts.slot, &gpu_report.mig) {
                (Some(slot), tessera_frames::cluster::MigReport::On { geometry }) => {
                    let stands = gpu_report.instances.iter().any(|i| i.slot == slot);
                    assert!(stands, "the instance of {attempt} was destroyed under it (P7)");
                    let size = geometry.profile(slot.profile).unwrap().memory_slices;
                    slot.start..slot.start + size
                }
                (None, _) => 0..64,
                (Some(slot), _) => panic!("{attempt} runs on {slot:?} of a whole GPU"),
            };
            let capacity = gpu_report.instances.iter().find(|i| Some(i.slot) == facts.slot);
            let capacity = capacity.map_or(gpu_report.memory, |instance| instance.memory);
            for slice in slices {
                let sharers: &mut Vec<_> = used.entry((facts.gpu.clone(), slice)).or_default();
                let (mut sm, mut bytes) = (0, 0);
                for other in sharers.iter().chain([&&facts.share]) {
                    let alone = sharers.is_empty();
                    let Some((user, share)) = other else {
                        assert!(alone, "memory slice {slice} of {} is used twice (V3)", facts.gpu);
                        continue;
                    };
                    let mine = facts.share.as_ref().is_some_and(|(own, _)| own == user);
                    let alike = facts
                        .share
                        .as_ref()
                        .is_some_and(|(_, own)| own.is_kernel() == share.is_kernel());
                    assert!(
                        alone || alike,
                        "two ways of sharing are on {slice} of {} (V4)",
                        facts.gpu
                    );
                    assert!(alone || mine, "two users are on {slice} of {} (V4)", facts.gpu);
                    sm += share.sm_percent();
                    bytes += share.memory().get();
                }
                assert!(sm <= 100, "{sm} % of {slice} of {} are given away (V4)", facts.gpu);
                assert!(bytes <= capacity.get(), "{bytes} of {capacity} (V4)");
                sharers.push(&facts.share);
            }
        }
        for gpu_report in &machine.gpus {
            if let tessera_frames::cluster::MigReport::On { geometry } = &gpu_report.mig {
                let slots: Vec<_> = gpu_report.instances.iter().map(|i| i.slot).collect();
                geometry.check(&slots).expect("the device holds a legal layout (V3)");
            }
        }
    }
}

/// After a commit the state equals the store, except for jobs that are not announced yet.
pub(super) fn check_state_equals_store(world: &World) {
    let cluster = &world.controller.cluster;
    cluster.queue.check_runs();
    let unheard: BTreeSet<JobId> = world
        .controller
        .inbox
        .iter()
        .filter_map(|input| match input {
            Input::Submitted(jobs) | Input::Requeued(jobs) => Some(jobs),
            _ => None,
        })
        .chain(world.controller.submitted.iter())
        .flatten()
        .map(|submitted| submitted.job)
        .collect();
    for (job, row) in &world.store.jobs {
        match row.attempt {
            Some(attempt) => {
                let live = cluster.attempts.live.get(&attempt);
                let live = live.unwrap_or_else(|| panic!("the cluster state lacks {attempt}"));
                assert_eq!((live.job, live.state), (*job, row.state), "{attempt} differs");
                assert!(live.launch_spec.is_some(), "{attempt} lacks what to run");
                assert_eq!(
                    world.store.place(attempt),
                    Some((&live.gpu, live.slot)),
                    "{attempt} stands elsewhere"
                );
            }
            None => {
                assert!(
                    !cluster.attempts.by_job.contains_key(job),
                    "{job:?} has no attempt: {row:?}"
                );
                let queued = cluster.queue.ranks.contains_key(job) || unheard.contains(job);
                let waits = row.state == JobState::Queued;
                assert!(queued || !waits, "{job:?} is missing from the queue (V5)");
                let stale = cluster.queue.ranks.contains_key(job) && !waits;
                assert!(!stale, "{job:?} waits in the cluster state, but is {}", row.state);
            }
        }
    }
}
