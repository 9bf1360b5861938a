//! The laws of the timed device, as properties.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use tessera_stand_in::cuda::schedule::rates::slowdown;
use tessera_stand_in::cuda::schedule::{
    ClientEntry, ClientId, DemandRates, DeviceEngine, DeviceRules, DeviceSchedule, EndedWork,
    OPEN_ENDED, WorkOrder,
};
use tessera_stand_in::process::ProcessIdentity;

const RULES: DeviceRules = DeviceRules { slice: 2_000, switch: 100 };
const END: u64 = 1_000_000_000;

/// One job of a made-up load.
#[derive(Clone, Debug)]
struct Load {
    client: usize,
    lane: u64,
    ready_at: u64,
    work: u64,
    copy: bool,
    need: DemandRates,
}

fn loads(clients: usize) -> impl Strategy<Value = Vec<Load>> {
    let one = (
        0..clients,
        0..3_u64,
        0..20_000_u64,
        1..6_000_u64,
        prop::bool::weighted(0.2),
        (1..=1_500_u32, 0..600_u32),
    );
    vec(one, 1..40).prop_map(|all| {
        let mut loads: Vec<_> = all
            .into_iter()
            .map(|(client, lane, ready_at, work, copy, (sms, bandwidth))| {
                let need = DemandRates { sms, bandwidth };
                Load { client, lane, ready_at, work, copy, need }
            })
            .collect();
        loads.sort_by_key(|load| load.ready_at);
        loads
    })
}

fn process(number: usize) -> ProcessIdentity {
    ProcessIdentity { pid: u32::try_from(number).unwrap() + 1, started_ticks: 1 }
}

/// Runs a load, stopping at each launch and at each of `cuts`; returns what each client's
/// jobs came to.
fn run(loads: &[Load], clients: &[(Option<u32>, u32)], cuts: &[u64]) -> Vec<Vec<EndedWork>> {
    let mut device = DeviceSchedule::new(RULES, 0);
    let ids: Vec<_> = clients
        .iter()
        .enumerate()
        .map(|(number, (server, cap))| {
            let entry = ClientEntry { process: process(number), server: *server, cap: *cap };
            device.enter(entry).unwrap()
        })
        .collect();
    let mut stops: Vec<_> = cuts.to_vec();
    stops.sort_unstable();
    let mut stops = stops.into_iter().peekable();
    for (number, load) in loads.iter().enumerate() {
        while let Some(stop) = stops.next_if(|stop| *stop < load.ready_at) {
            device.advance(stop);
        }
        device.advance(load.ready_at);
        let engine = if load.copy { DeviceEngine::Copy } else { DeviceEngine::Compute };
        let job = u64::try_from(number).unwrap();
        let Load { ready_at, work, need, .. } = *load;
        device.submit(
            ids[load.client],
            load.lane,
            0,
            WorkOrder { job, engine, ready_at, work, need },
        );
    }
    for stop in stops {
        device.advance(stop);
    }
    device.advance(END);
    ids.iter().map(|id| device.collect(*id)).collect()
}

const ALONE: (Option<u32>, u32) = (None, 1_000);

/// Stretches in which kernels ran, with whose they were.
fn kernel_spans(loads: &[Load], ended: &[Vec<EndedWork>]) -> Vec<(u64, u64, usize)> {
    let mut spans: Vec<_> = ended
        .iter()
        .enumerate()
        .flat_map(|(client, jobs)| jobs.iter().map(move |job| (client, job)))
        .filter(|(_, job)| !loads[usize::try_from(job.job).unwrap()].copy)
        .flat_map(|(client, job)| {
            job.spans.iter().map(move |(from, until)| (*from, *until, client))
        })
        .collect();
    spans.sort_unstable();
    spans
}

proptest! {
    #[test]
    fn every_job_ends_and_its_lane_keeps_its_order(loads in loads(3)) {
        let ended = run(&loads, &[ALONE; 3], &[]);
        prop_assert_eq!(ended.iter().map(Vec::len).sum::<usize>(), loads.len());
        for (client, jobs) in ended.iter().enumerate() {
            let mut last: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
            let mut by_number = jobs.clone();
            by_number.sort_by_key(|job| job.job);
            for job in by_number {
                let load = &loads[usize::try_from(job.job).unwrap()];
                prop_assert_eq!(load.client, client);
                prop_assert!(job.began >= load.ready_at);
                if let Some((_, end)) = last.insert(job.lane, (job.began, job.ended)) {
                    prop_assert!(job.began >= end, "{job:?} before its lane's last ended");
                }
            }
        }
    }

    #[test]
    fn cutting_the_time_into_pieces_changes_nothing(
        loads in loads(3),
        cuts in vec(0..200_000_u64, 0..50),
        server in prop::option::of(Just(7_u32)),
    ) {
        let clients = [(server, 600), (server, 500), ALONE];
        prop_assert_eq!(run(&loads, &clients, &cuts), run(&loads, &clients, &[]));
    }

    #[test]
    fn contexts_never_run_at_the_same_time_and_changing_costs(loads in loads(3)) {
        let spans = kernel_spans(&loads, &run(&loads, &[ALONE; 3], &[]));
        for pair in spans.windows(2) {
            let [(_, end, one), (start, _, other)] = pair else { unreachable!() };
            prop_assert!(start >= end, "{pair:?}");
            if one != other {
                prop_assert!(start - end >= RULES.switch, "{pair:?}");
            }
        }
    }

    #[test]
    fn what_runs_alone_takes_exactly_its_work(loads in loads(2)) {
        let loads: Vec<_> = loads
            .into_iter()
            .map(|load| Load { copy: false, need: DemandRates { sms: load.need.sms.min(1_000), bandwidth: 0 }, ..load })
            .collect();
        for job in run(&loads, &[ALONE; 2], &[]).concat() {
            let ran: u64 = job.spans.iter().map(|(from, until)| until - from).sum();
            prop_assert_eq!(ran, loads[usize::try_from(job.job).unwrap()].work);
        }
    }

    #[test]
    fn nobody_waits_for_longer_than_the_others_slices(work in 50_000..200_000_u64) {
        // Three contexts that always have work: each gets a third, slice by slice.
        let loads: Vec<_> = (0..3)
            .map(|client| Load { client, lane: 0, ready_at: 0, work, copy: false, need: DemandRates::SMS })
            .collect();
        let spans = kernel_spans(&loads, &run(&loads, &[ALONE; 3], &[]));
        for client in 0..3 {
            let own: Vec<_> = spans.iter().filter(|(.., whose)| *whose == client).collect();
            for pair in own.windows(2) {
                let waited = pair[1].0 - pair[0].1;
                prop_assert!(waited <= 2 * RULES.slice + 3 * RULES.switch, "{waited}");
            }
        }
    }

    #[test]
    fn a_device_survives_its_words(loads in loads(3), garbage in vec(any::<u64>(), 0..60)) {
        let mut device = DeviceSchedule::new(RULES, 5);
        let id = device.enter(ClientEntry { process: process(0), server: Some(3), cap: 700 }).unwrap();
        for (number, load) in loads.iter().enumerate() {
            let job = u64::try_from(number).unwrap();
            let Load { ready_at, work, need, .. } = *load;
            let engine = DeviceEngine::Compute;
            device.submit(id, load.lane, -1, WorkOrder { job, engine, ready_at, work, need });
        }
        device.advance(10_000);
        prop_assert_eq!(DeviceSchedule::from_words(&device.to_words()), Ok(device.clone()));
        let mut words = device.to_words();
        for (word, other) in words.iter_mut().zip(&garbage).skip(6) {
            *word = *other;
        }
        let _ = DeviceSchedule::from_words(&words);
        let _ = DeviceSchedule::from_words(&garbage);
    }
}

/// Two endless streams of kernels under one server; returns how long `count` of each took.
fn run_concurrently(
    needs: [DemandRates; 2],
    caps: [u32; 2],
    works: [u64; 2],
    count: u64,
) -> [u64; 2] {
    let mut device = DeviceSchedule::new(RULES, 0);
    let mut ids = [ClientId(0); 2];
    for (number, id) in ids.iter_mut().enumerate() {
        let entry = ClientEntry { process: process(number), server: Some(1), cap: caps[number] };
        *id = device.enter(entry).unwrap();
        for job in 0..count {
            let (work, need) = (works[number], needs[number]);
            let order = WorkOrder { job, engine: DeviceEngine::Compute, ready_at: 0, work, need };
            device.submit(*id, 0, 0, order);
        }
    }
    device.advance(END);
    ids.map(|id| device.collect(id).iter().map(|job| job.ended).max().unwrap())
}

const fn need(sms: u32, bandwidth: u32) -> DemandRates {
    DemandRates { sms, bandwidth }
}

#[test]
fn small_kernels_of_two_mps_clients_run_beside_each_other() {
    assert_eq!(
        run_concurrently([need(400, 0), need(500, 0)], [1_000; 2], [1_000; 2], 10),
        [10_000; 2]
    );
}

#[test]
fn a_kernel_that_fills_the_device_starves_its_partner_until_both_are_capped() {
    // Co-execution study, rule 3: GeMM with a partner of medium size.
    let plain = run_concurrently([need(1_000, 0), need(350, 0)], [1_000; 2], [5_000, 500], 20)[1];
    let capped = run_concurrently([need(1_000, 0), need(350, 0)], [650, 350], [5_000, 500], 20);

    assert!(plain > 2 * 10_000, "{plain}");
    assert_eq!(capped[1], 10_000, "as if alone");
    assert!(capped[0] < 2 * 100_000, "{capped:?}");
}

#[test]
fn memory_bound_pairs_are_worse_under_mps_than_in_turns() {
    // Rule 1: two jobs that each draw a quarter of the bandwidth.
    let both = run_concurrently([need(380, 246), need(380, 239)], [500; 2], [1_000; 2], 10);
    assert!(both.iter().all(|time| *time > 2 * 10_000 && *time <= 25_000), "{both:?}");
    // Rule 2: with a job that computes, they are faster than in time slices.
    let mixed = run_concurrently([need(380, 246), need(340, 6)], [1_000; 2], [1_000; 2], 10);
    assert!(mixed.iter().all(|time| *time < 12_000), "{mixed:?}");
    assert_eq!(slowdown(0, 1_000), 1_000);
    assert_eq!(slowdown(1_000, 1_000), 2_500, "the most that the study saw");
}

#[test]
fn a_dead_clients_work_is_forgotten_and_the_others_go_on() {
    let mut device = DeviceSchedule::new(RULES, 0);
    let ids: Vec<_> = (0..2)
        .map(|number| {
            let entry = ClientEntry { process: process(number), server: None, cap: 1_000 };
            device.enter(entry).unwrap()
        })
        .collect();
    let order = |work| WorkOrder {
        job: 1,
        engine: DeviceEngine::Compute,
        ready_at: 0,
        work,
        need: DemandRates::SMS,
    };
    device.submit(ids[0], 0, 0, order(OPEN_ENDED));
    device.submit(ids[1], 0, 0, order(10_000));
    device.advance(1_000);
    assert_eq!(device.bury(|process| process.pid != 1), 1);
    device.advance(20_000);

    let ended = device.collect(ids[1]);
    assert_eq!(ended[0].ended, 1_000 + RULES.switch + 10_000);
    assert_eq!(device.collect(ids[0]), []);
}

#[test]
fn a_client_foresees_its_end_exactly_if_nobody_else_comes() {
    let mut device = DeviceSchedule::new(RULES, 0);
    for number in 0..2 {
        let entry = ClientEntry { process: process(number), server: None, cap: 1_000 };
        let id = device.enter(entry).unwrap();
        let engine = DeviceEngine::Compute;
        let order = WorkOrder { job: 9, engine, ready_at: 0, work: 7_000, need: DemandRates::SMS };
        device.submit(id, 0, 0, order);
    }
    let foreseen = device.foresee(ClientId(2), &[9], 1_000).unwrap();
    device.advance(END);
    assert_eq!(device.collect(ClientId(2))[0].ended, foreseen);
    assert_eq!(device.foresee(ClientId(2), &[9], 1_000), None);
}
