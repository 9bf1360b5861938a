//! Laws of `tessera`'s pairs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use proptest::prelude::*;
use tessera_model::mig::Profile;
use tessera_model::share::SmPercent;
use tessera_model::spec::Priority;
use tessera_model::{JobId, Millis};
use tessera_placement::policy::Tessera;
use tessera_placement::{
    ClusterView, Decision, Demand, GpuView, Knowledge, PlacedJob, Policy, QueuedJob, SharedPart,
};
use tessera_simulator::cluster::fleet::GpuFleet;
use tessera_simulator::cluster::job::{JobClass, SimulatedJob};
use tessera_simulator::cluster::metrics::RunOutcome;
use tessera_simulator::cluster::overheads::{ContentionTruth, KernelSharingModel, Overheads};
use tessera_simulator::cluster::{SimulationSetup, run, workload};

/// `tessera`, each of whose pairs is held against the laws.
#[derive(Debug, Default)]
struct Watched {
    policy: Tessera,
    wrong: Mutex<Vec<String>>,
    /// Pairs that were placed, by those who hold the slice, and who of them would be in time.
    pairs: Mutex<BTreeSet<(JobId, JobId)>>,
    /// Those who share multiprocessors.
    parts: Mutex<BTreeSet<(JobId, JobId)>>,
    in_time: Mutex<BTreeSet<JobId>>,
}

impl Watched {
    fn pair(
        &self,
        gpu: &GpuView,
        knowledge: Knowledge<'_>,
        now: Millis,
        placements: [PlacedJob; 2],
    ) {
        let wrong = |what: &str| self.wrong.lock().unwrap().push(format!("{what}: {placements:?}"));
        let profile =
            gpu.mig.as_ref().unwrap().geometry.profile(placements[0].slot.unwrap().profile);
        let profile = profile.unwrap();
        let brought = placements.map(|placed| knowledge.jobs.facts(placed.job).co_runner.unwrap());
        if brought[0].user != brought[1].user {
            wrong("two users");
        }
        if brought[0].memory.get() + brought[1].memory.get() > profile.memory.get() {
            wrong("more memory than there is");
        }
        if placements.iter().any(|placed| placed.sm.is_some()) {
            if placements.iter().any(|placed| placed.kernel_priority.is_some()) {
                wrong("two ways at once");
            }
            for [one, other] in [placements, [placements[1], placements[0]]] {
                let whole = SmPercent::WHOLE;
                let co_runners = [(other.job, other.sm.unwrap_or(whole))];
                let sm = one.sm.unwrap_or(whole);
                let part = SharedPart::Mps { sm, co_runners: &co_runners };
                let together =
                    knowledge.predictor.predict_shared_run(one.job, part, gpu, profile).unwrap();
                let alone = knowledge.predictor.time_alone(one.job, gpu, profile).unwrap();
                let profiles = gpu.mig.as_ref().unwrap().geometry.profiles.iter();
                let size = |p: &Profile| (p.memory, p.compute_slices);
                let times = profiles.filter_map(|p| {
                    Some((size(p), knowledge.predictor.time_alone(one.job, gpu, p)?))
                });
                if knowledge.jobs.facts(one.job).online && together > times.min().unwrap().1 {
                    wrong("an online job is slower than on the slice that it requested");
                }
                self.times(knowledge, now, one.job, [alone, together], &wrong);
            }
            self.parts.lock().unwrap().insert((placements[0].job, placements[1].job));
            return;
        }
        let (holds, fills) = match placements[0].kernel_priority < placements[1].kernel_priority {
            true => (placements[0], placements[1]),
            false => (placements[1], placements[0]),
        };
        if holds.kernel_priority.is_none() || holds.kernel_priority == fills.kernel_priority {
            wrong("nobody goes first");
        }
        if knowledge.jobs.facts(fills.job).online
            || knowledge.jobs.facts(fills.job).deadline.is_some()
        {
            wrong("one fills gaps for whom somebody waits");
        }
        let place =
            |placed: PlacedJob| (placed.job, placed.kernel_priority.unwrap_or(Priority::DEFAULT));
        let (job, priority) = place(holds);
        let time = |others: &[(JobId, Priority)]| {
            knowledge
                .predictor
                .predict_shared_run(job, SharedPart::kernel(priority, others), gpu, profile)
                .unwrap()
                .get()
        };
        let (alone, together) = (time(&[]), time(&[place(fills)]));
        if knowledge.jobs.facts(job).online && together * 100 > alone * 105 {
            wrong("an online job is slowed");
        }
        self.times(knowledge, now, job, [alone, together].map(Millis::new), &wrong);
        self.pairs.lock().unwrap().insert((job, fills.job));
    }

    /// Checks whether co-runners break a job's deadline, by its times alone and together.
    fn times(
        &self,
        knowledge: Knowledge<'_>,
        now: Millis,
        job: JobId,
        [alone, together]: [Millis; 2],
        wrong: &dyn Fn(&str),
    ) {
        let left = 1_000_000 - u64::from(knowledge.jobs.facts(job).done.unwrap());
        let ends = |all: Millis| now.get() + all.get() * left / 1_000_000;
        let Some(deadline) = knowledge.jobs.facts(job).deadline else { return };
        if ends(alone) <= deadline.get() && ends(together) > deadline.get() + 1 {
            wrong("co-runners break a deadline");
        }
        // A cut and a start or a restore may be under way.
        let begins = 12_000 + knowledge.jobs.facts(job).migration_price.map_or(0, Millis::get);
        if ends(together) + begins <= deadline.get() {
            self.in_time.lock().unwrap().insert(job);
        }
    }
}

impl Policy for Watched {
    fn name(&self) -> &'static str {
        "watched"
    }

    fn moves(&self) -> bool {
        self.policy.moves()
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let decisions = self.policy.decide_with(cluster, knowledge, queue, now, starts_max);
        for decision in &decisions {
            let Decision::Reshape { reshape, .. } = decision else { continue };
            let gpu = cluster.gpus.iter().find(|gpu| gpu.id == reshape.gpu).unwrap();
            let mut by_slot: BTreeMap<_, Vec<PlacedJob>> = BTreeMap::new();
            for placed in &reshape.placements {
                by_slot.entry(placed.slot.unwrap()).or_default().push(*placed);
            }
            for placements in by_slot.into_values().filter(|placements| placements.len() > 1) {
                match <[PlacedJob; 2]>::try_from(placements) {
                    Ok(pair) => self.pair(gpu, knowledge, now, pair),
                    Err(more) => {
                        self.wrong.lock().unwrap().push(format!("too many on one slice: {more:?}"));
                    }
                }
            }
        }
        decisions
    }
}

/// Services and offline jobs; of some nothing is known, and some can't be moved.
fn jobs(seed: u64, count: u64, gap: u64) -> Vec<SimulatedJob> {
    let mut jobs =
        workload::built_in(&format!("serving:jobs={count},gap={gap}"), seed).unwrap().jobs;
    for (place, job) in jobs.iter_mut().enumerate() {
        let draw = u64::try_from(place).unwrap().wrapping_mul(seed.wrapping_mul(31) + 7) % 60;
        if draw.is_multiple_of(11) {
            job.busy = None;
        }
        if draw.is_multiple_of(5) {
            job.demand = None;
        } else if draw.is_multiple_of(2) {
            let part = u16::try_from(draw).unwrap();
            job.demand = Some(Demand { sm: 100 + 10 * part, memory: 20 + part });
        }
        if draw.is_multiple_of(7) {
            job.restore_ms = None;
        }
        if draw.is_multiple_of(13) && job.class == JobClass::Online {
            job.deadline_ms = None;
        }
    }
    jobs
}

fn simulated(
    jobs: &[SimulatedJob],
    gpus: &str,
    policy: &dyn Policy,
    overheads: Overheads,
) -> RunOutcome {
    let fleet = GpuFleet::parse(gpus).unwrap();
    let setup = SimulationSetup {
        jobs,
        fleet: &fleet,
        policy,
        overheads,
        round_ms: 0,
        seed: 1,
        plot: false,
    };
    run(setup, &mut |_| {}).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn co_location_slows_no_service_breaks_no_deadline_and_always_fits(
        seed in 1_u64..100_000,
        gap in 5_u64..60,
        gpus in 1_usize..3,
        kernel_sharing in prop::sample::select(vec![KernelSharingModel::Modelled, KernelSharingModel::Slices, KernelSharingModel::Queue]),
    ) {
        let jobs = jobs(seed, 50, gap);
        let watched = Watched::default();
        let contention = ContentionTruth::Predicted;
        let overheads = Overheads { kernel_sharing, contention, ..Overheads::default() };
        let fleet = format!("{gpus}xa100-40gb");
        let outcome = simulated(&jobs, &fleet, &watched, overheads);
        let wrong = watched.wrong.into_inner().unwrap();
        prop_assert!(wrong.is_empty(), "{wrong:?}");
        // Predictions are true here, so that a job with co-runners that was not moved is in time.
        for job in watched.in_time.into_inner().unwrap() {
            let done = &outcome.jobs[usize::try_from(job.number() - 1).unwrap()];
            let stayed = (done.moves, done.preemptions) == (0, 0);
            prop_assert!(!stayed || done.in_time == Some(true), "{done:?}");
        }
        let again = simulated(&jobs, &fleet, &Tessera::default(), overheads);
        prop_assert_eq!(&outcome.jobs, &again.jobs);
    }
}

/// Without the migration cooldown of controllers. With it, jobs that rest make up fewer pairs: the sum of
/// `offline_jobs_fill_the_gaps_of_services_and_all_is_done_sooner` is then 1 % less than without pairs, and not 3 %.
fn restless() -> Overheads {
    Overheads { migration_cooldown_ms: 0, ..Overheads::default() }
}

#[test]
fn services_share_multiprocessors_where_they_are_served_well_enough() {
    let mut pairs = 0;
    for seed in 1..4 {
        let jobs = workload::built_in("mmk-60", seed).unwrap().jobs;
        let watched = Watched::default();
        simulated(&jobs, "4xa100-80gb", &watched, restless());
        let wrong = watched.wrong.into_inner().unwrap();
        assert!(wrong.is_empty(), "{wrong:?}");
        let online = |job: &JobId| {
            jobs[usize::try_from(job.number() - 1).unwrap()].class == JobClass::Online
        };
        let parts = watched.parts.into_inner().unwrap();
        pairs += parts.iter().filter(|(a, b)| online(a) || online(b)).count();
    }
    // Most of these jobs have large batches, which fill a slice alone: few pairs are left.
    assert!(pairs > 5, "{pairs} pairs");
}

#[test]
fn offline_jobs_fill_no_gaps_of_services_while_these_count_as_short_as_those_of_networks() {
    let apart = Tessera { filled: f64::INFINITY, ..Tessera::default() };
    let (mut sum, mut sum_apart, mut pairs) = (0, 0, 0);
    for seed in 1..4 {
        let jobs = workload::built_in("serving:jobs=200,gap=150", seed).unwrap().jobs;
        let watched = Watched::default();
        let total = |policy: &dyn Policy| -> u64 {
            let outcome = simulated(&jobs, "4xa100-40gb", policy, restless());
            outcome.jobs.iter().map(|job| job.jct_ms()).sum()
        };
        sum += total(&watched);
        sum_apart += total(&apart);
        pairs += watched.pairs.into_inner().unwrap().len();
    }
    // Fillers would use 17 % of the idle time, which raises the throughput of no slice by the required 30 %.
    assert_eq!((pairs, sum), (0, sum_apart));
}

#[test]
fn the_queue_keeps_a_service_from_what_default_sharing_costs_it() {
    // A service, and a second later one job that fits nowhere else.
    let line = |submit: u64, class: &str, memory: u64, busy: u64| {
        format!(
            r#"{{"submit_s": {submit}, "class": "{class}", "memory_mib": {memory}, "busy_percent": {busy},
                "restore_s": 30, "times_s": {{"*": {{"1": 1000, "7": 1000}}}}}}"#
        )
        .replace('\n', "")
    };
    let text = [line(0, "online", 24_000, 30), line(1, "offline", 12_000, 100)].join("\n");
    let jobs = workload::file::read("w.jsonl", &text).unwrap().jobs;
    let ends = |kernel_sharing: KernelSharingModel| {
        let overheads = Overheads { kernel_sharing, ..Overheads::default() };
        // What it takes from a service is to count for no more than what it gives.
        let policy = Tessera { courtesy: 2.0, filled: 1.0, drive: 0.0, ..Tessera::default() };
        let outcome = simulated(&jobs, "a100-40gb", &policy, overheads);
        outcome.jobs.iter().map(|job| job.end_ms).collect::<Vec<_>>()
    };
    let (modelled, queue, slices) = (
        ends(KernelSharingModel::Modelled),
        ends(KernelSharingModel::Queue),
        ends(KernelSharingModel::Slices),
    );
    for queued in [&modelled, &queue] {
        // As if alone, and a tenth of the other's work done meanwhile: gaps count as short as those of networks.
        assert!((1_000_000..1_050_000).contains(&queued[0]), "{queued:?}");
        assert!(queued[1] < 1_950_000, "{queued:?}");
    }
    assert!(slices[0] > 1_300_000, "{slices:?}");
}
