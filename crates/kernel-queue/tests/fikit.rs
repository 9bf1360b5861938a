//! FIKIT's Algorithms 1 and 2 against an exhaustive oracle.

use proptest::prelude::*;
use tessera_kernel_queue::fikit::EPSILON;
use tessera_kernel_queue::waiting::{LaunchRequest, WaitStart, WaitingLaunches};
use tessera_kernel_queue::{
    Dims, GrantKind, Join, KernelId, KernelIndex, KernelQueue, Nanos, QueueAction, QueueEvent,
    QueueRules, SessionId, TaskKey, TaskProfile,
};
use tessera_model::spec::{Class, Priority};

/// A waiting launch: its priority, and its time in microseconds (zero: unknown).
type RequestedLaunch = (u8, u64);

fn time(micros: u64) -> Option<Nanos> {
    (micros > 0).then(|| Nanos::from_micros(micros))
}

/// Algorithm 1 by the queue's own search: launches the best fit, subtracts its time from the gap, and repeats until
/// nothing fits. `idle` is the gap after the holder's kernel; without it nothing is launched.
fn fill_gap(
    waiting: &mut WaitingLaunches,
    idle: Option<Nanos>,
    mut launch: impl FnMut(LaunchRequest),
) {
    let Some(mut idle) = idle.filter(|idle| *idle > EPSILON) else { return };
    while idle > Nanos::ZERO {
        let Some(request) = waiting.best_fit(idle) else { break };
        idle = idle.minus(request.predicted.unwrap_or(idle));
        launch(request);
    }
}

/// Algorithm 2 literally: returns the launch that is chosen of all.
fn best_fit(waiting: &[Option<RequestedLaunch>], idle: u64) -> Option<usize> {
    for level in 0..10 {
        let fits = waiting.iter().enumerate().filter_map(|(at, requested)| {
            requested
                .filter(|(priority, time)| *priority == level && 0 < *time && *time < idle)
                .map(|(_, time)| (time, at))
        });
        // The longest; among equals the oldest.
        if let Some((_, at)) = fits.max_by_key(|(time, at)| (*time, std::cmp::Reverse(*at))) {
            return Some(at);
        }
    }
    None
}

/// Algorithm 1 literally: returns the launches in their order.
fn oracle(requested: &[RequestedLaunch], idle: u64) -> Vec<usize> {
    let mut waiting: Vec<Option<RequestedLaunch>> = requested.iter().copied().map(Some).collect();
    let (mut idle, mut gone) = (idle, Vec::new());
    if Nanos::from_micros(idle) <= EPSILON {
        return gone;
    }
    while idle > 0 {
        let Some(at) = best_fit(&waiting, idle) else { break };
        idle -= waiting[at].take().map_or(0, |(_, time)| time);
        gone.push(at);
    }
    gone
}

fn requested() -> impl Strategy<Value = Vec<RequestedLaunch>> {
    // There are few different times, so that some launches are equal.
    prop::collection::vec((0_u8..10, prop_oneof![0_u64..12, 0_u64..3_000]), 0..60)
}

fn kernel(number: u16) -> KernelId {
    KernelId::new(format!("k{number}"), Dims([1, 1, 1]), Dims([1, 1, 1])).unwrap()
}

/// A profile whose kernel `i` takes `times[i]` and is followed by a gap of `gap`.
fn profile(times: &[u64], gap: u64) -> TaskProfile {
    let mut profile = TaskProfile::default();
    for (number, micros) in (0..).zip(times) {
        let index = profile.intern(&kernel(number)).unwrap();
        for _ in 0..10 {
            let kernel = profile.kernel_mut(index).unwrap();
            if *micros > 0 {
                kernel.took.add(Nanos::from_micros(*micros));
            }
            kernel.gap.add(Nanos::from_micros(gap));
        }
    }
    profile.close_measuring();
    profile
}

fn join(queue: &mut KernelQueue, session: u64, priority: u8, profile: TaskProfile) {
    let task = TaskKey::new(format!("task {session}")).unwrap();
    queue.add_profile(&task, profile);
    let join = Join {
        session: SessionId::new(session),
        task,
        priority: Priority::try_from(priority).unwrap(),
        class: Class::Offline,
        share_thousandths: 1_000,
        exclusive: None,
    };
    queue.step(QueueEvent::Join(join), Nanos::ZERO);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn filling_chooses_what_the_oracle_chooses(requested in requested(), idle in 0_u64..8_000) {
        let mut waiting = WaitingLaunches::default();
        for (at, (priority, micros)) in requested.iter().enumerate() {
            let at = u64::try_from(at).unwrap();
            let priority = Priority::try_from(*priority).unwrap();
            let launch = (SessionId::new(at), 0);
            waiting.push(priority, launch, KernelIndex::new(0), time(*micros), WaitStart::default()).unwrap();
        }
        let mut gone = Vec::new();
        fill_gap(&mut waiting, Some(Nanos::from_micros(idle)), |request| {
            gone.push(usize::try_from(request.session.get()).unwrap());
        });

        prop_assert_eq!(gone, oracle(&requested, idle));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_queue_by_the_papers_rules_grants_what_the_oracle_chooses(
        requested in requested(),
        idle in 0_u64..8_000,
    ) {
        let mut queue = KernelQueue::new(QueueRules::paper());
        join(&mut queue, 1_000, 0, profile(&[50], idle));
        for (at, (priority, micros)) in requested.iter().enumerate() {
            // Priority 0 holds: fillers are at 1 to 9.
            let at = u64::try_from(at).unwrap();
            join(&mut queue, at, 1 + priority % 9, profile(&[*micros], 0));
            let request = QueueEvent::Request {
                session: SessionId::new(at),
                launch: 0,
                kernel: KernelIndex::new(0),
                beyond: None,
            };
            queue.step(request, Nanos::ZERO);
        }
        let launch = QueueEvent::Launch {
            session: SessionId::new(1_000),
            launch: 0,
            kernel: KernelIndex::new(0),
            count: 1,
        };
        let granted: Vec<usize> = queue
            .step(launch, Nanos::from_micros(7))
            .iter()
            .filter_map(|action| match action {
                QueueAction::Grant { session, grant } if grant.kind == GrantKind::Gap => {
                    Some(usize::try_from(session.get()).unwrap())
                }
                _ => None,
            })
            .collect();

        let requested: Vec<RequestedLaunch> =
            requested.iter().map(|(priority, micros)| (1 + priority % 9, *micros)).collect();
        prop_assert_eq!(granted, oracle(&requested, idle));
    }
}

#[test]
fn a_gap_of_exactly_epsilon_is_not_filled_and_a_longer_one_is() {
    for (idle, expected) in [(100, 0), (101, 1)] {
        let mut waiting = WaitingLaunches::default();
        let launch = (SessionId::new(1), 0);
        waiting
            .push(Priority::DEFAULT, launch, KernelIndex::new(0), time(1), WaitStart::default())
            .unwrap();
        let mut gone = 0;
        fill_gap(&mut waiting, Some(Nanos::from_micros(idle)), |_| gone += 1);
        assert_eq!(gone, expected, "{idle} µs");
    }
}

#[test]
fn a_gap_of_unknown_length_is_not_filled() {
    let mut waiting = WaitingLaunches::default();
    let launch = (SessionId::new(1), 0);
    waiting
        .push(Priority::DEFAULT, launch, KernelIndex::new(0), time(1), WaitStart::default())
        .unwrap();
    fill_gap(&mut waiting, None, |_| panic!("nothing is known about this gap"));
}
