//! The kernel plane's endpoint over real sockets, with clients that speak the frames.

mod colocation;
mod endpoint_failures;
mod priority;
mod rig;

use rig::{HelloOverrides, Rig, Shim, kernel};
use tessera_agent::kernel::KernelEvent;
use tessera_agent::sys::clock::monotonic_now;
use tessera_frames::kernel::{PROTOCOL_VERSION, SessionEnd, ShimRecord, ToShim};
use tessera_kernel_queue::lease::GrantKind;
use tessera_kernel_queue::{KernelIndex, Nanos, Role};

#[tokio::test]
async fn the_highest_is_the_holder_and_others_fill_until_it_leaves() {
    let mut rig = Rig::new();
    let (high, low) = (rig.admit("MIG-1", "high", 0), rig.admit("MIG-1", "low", 7));
    rig.add_profile(&high, &[(1_000, 5_000)]);
    rig.add_profile(&low, &[(500, 100)]);

    let mut filler = Shim::join(&low).await;
    assert_eq!(filler.welcome.role, Role::Fill, "the high one is expected");
    let mut holder = Shim::join(&high).await;
    assert_eq!(holder.welcome.role, Role::Hold);

    holder.send(vec![ShimRecord::Bye]).await;

    filler.await_role(Role::Free).await;
    holder.await_bye().await;
}

#[tokio::test]
async fn a_gap_is_granted_and_ends_when_the_holder_is_back() {
    let mut rig = Rig::new();
    let (high, low) = (rig.admit("MIG-1", "high", 0), rig.admit("MIG-1", "low", 7));
    // A gap of ten seconds: it is not over before the test has seen it, on however slow a machine.
    rig.add_profile(&high, &[(10, 10_000_000)]);
    rig.add_profile(&low, &[(500, 100)]);
    let gate = rig.gate(&high);
    let mut holder = Shim::join(&high).await;
    let mut filler = Shim::join(&low).await;
    assert_eq!((holder.welcome.role, filler.welcome.role), (Role::Free, Role::Fill));
    holder.await_role(Role::Hold).await;
    let (long, sk, measure) = holder.define(0).await;
    assert_eq!((sk, measure), (Some(Nanos::from_micros(10)), false));
    let (short, ..) = filler.define(0).await;

    holder.launch(1, long, Some(&gate)).await;
    holder.send(vec![ShimRecord::Sync { returns: None, at: monotonic_now() }]).await;
    filler.request(1, short).await;
    let grant = filler.await_grant().await;

    assert_eq!(grant.kind, GrantKind::Gap);
    assert!(!gate.page().gate().has_passed(grant.gate));
    assert!(grant.budget >= Nanos::from_micros(500) && grant.until > grant.from, "{grant:?}");

    // The page reports at once, the message a little later; both end the grant.
    holder.launch(2, long, Some(&gate)).await;
    assert!(gate.page().gate().has_passed(grant.gate));
    let ended = filler
        .await_frame(|frame| match frame {
            ToShim::Revoke { grant } => Some(grant),
            _ => None,
        })
        .await;
    assert!(ended >= grant.number);
}

#[tokio::test]
async fn without_a_page_messages_alone_end_grants() {
    let mut rig = Rig::new();
    let (high, low) = (rig.admit("MIG-1", "high", 0), rig.admit("MIG-1", "low", 7));
    rig.add_profile(&high, &[(10, 10_000_000)]);
    rig.add_profile(&low, &[(500, 100)]);
    let mut holder = Shim::join(&high).await;
    let mut filler = Shim::join(&low).await;
    holder.await_role(Role::Hold).await;
    let (long, ..) = holder.define(0).await;
    let (short, ..) = filler.define(0).await;

    holder.launch(1, long, None).await;
    filler.request(1, short).await;
    let grant = filler.await_grant().await;
    holder.launch(2, long, None).await;

    filler
        .await_frame(|frame| (frame == ToShim::Revoke { grant: grant.number }).then_some(()))
        .await;
}

#[tokio::test]
async fn a_task_without_profile_is_measured_and_its_profile_is_reported_once() {
    let mut rig = Rig::new();
    let attempt = rig.admit("MIG-1", "new", 5);
    let mut shim = Shim::join(&attempt).await;
    assert_eq!(shim.welcome.role, Role::Measure);
    let (index, sk, measure) = shim.define(0).await;
    assert_eq!((sk, measure), (None, true));

    // The stage counts launches, and there are as many samples of them.
    for launch in 0..150 {
        shim.launch(launch, index, None).await;
        shim.send(vec![Shim::sample(index, 200, 900)]).await;
    }

    // A certain kernel is not measured any more. The stage itself ends by launches.
    shim.await_frame(|frame| match frame {
        ToShim::Known { kernel, sk: Some(sk), measure: false } => {
            assert_eq!((kernel, sk), (index, Nanos::from_micros(200)));
            Some(())
        }
        _ => None,
    })
    .await;
    shim.await_role(Role::Free).await;
    let KernelEvent::Learned { task, learned } = rig.event().await else { panic!() };
    assert_eq!(task, attempt.task);
    let known = &learned.added.kernels()[0];
    assert_eq!((&known.id, known.took.mean()), (&kernel(0), Some(Nanos::from_micros(200))));
    assert!(learned.added.is_measured() && learned.replaced.kernels().is_empty());

    // The end brings nothing that was reported already.
    shim.send(vec![ShimRecord::Bye]).await;
    shim.await_bye().await;
    rig.endpoint().handle.end_attempt(attempt.id);
    let KernelEvent::Over { attempt: over, tally } = rig.event().await else { panic!() };
    assert_eq!((over, tally.sessions), (attempt.id, 1));
}

#[tokio::test]
async fn slices_know_nothing_of_each_other() {
    let mut rig = Rig::new();
    let (one, other) = (rig.admit("MIG-1", "a", 0), rig.admit("MIG-2", "b", 9));
    rig.add_profile(&one, &[(1, 1)]);
    rig.add_profile(&other, &[(1, 1)]);

    let first = Shim::join(&one).await;
    let second = Shim::join(&other).await;

    assert_eq!((first.welcome.role, second.welcome.role), (Role::Free, Role::Free));
}

#[tokio::test]
async fn processes_of_one_job_each_have_a_session_of_its_priority() {
    let mut rig = Rig::new();
    let job = rig.admit("MIG-1", "job", 3);
    rig.add_profile(&job, &[(1, 1)]);

    let mut one = Shim::join(&job).await;
    let two = Shim::join(&job).await;

    one.await_role(Role::Hold).await;
    assert_eq!(two.welcome.role, Role::Hold);
    assert_ne!(one.welcome.session, two.welcome.session);
}

#[tokio::test]
async fn a_process_that_connects_again_replaces_itself() {
    let mut rig = Rig::new();
    let job = rig.admit("MIG-1", "job", 3);
    rig.add_profile(&job, &[(1, 1)]);
    let same = HelloOverrides { process: Some(7), ..HelloOverrides::default() };
    let mut before = Shim::try_join(&job, same).await.ok().unwrap();

    let after = Shim::try_join(&job, same).await.ok().unwrap();

    assert_eq!(before.await_bye().await.why, SessionEnd::Replaced);
    assert_eq!(after.welcome.role, Role::Free);
}

#[tokio::test]
async fn an_older_and_a_younger_shim_are_answered_in_what_both_speak() {
    let mut rig = Rig::new();
    let job = rig.admit("MIG-1", "job", 3);

    let younger =
        HelloOverrides { protocol: Some(PROTOCOL_VERSION + 5), ..HelloOverrides::default() };
    let shim = Shim::try_join(&job, younger).await.ok().unwrap();
    assert_eq!(shim.welcome.protocol, PROTOCOL_VERSION);

    let ancient = HelloOverrides { protocol: Some(0), ..HelloOverrides::default() };
    let farewell = Shim::try_join(&job, ancient).await.err().unwrap();
    assert!(matches!(farewell.why, SessionEnd::Protocol { .. }) && !farewell.again);
}

#[tokio::test]
async fn every_record_of_a_fast_program_arrives() {
    const LAUNCHES: u64 = 200_000;
    let mut rig = Rig::new();
    let (job, competitor) = (rig.admit("MIG-1", "job", 3), rig.admit("MIG-1", "competitor", 9));
    rig.add_profile(&job, &[(2, 1)]);
    rig.add_profile(&competitor, &[(2, 1)]);
    let _competitor = Shim::join(&competitor).await;
    let mut shim = Shim::join(&job).await;
    let (kernel, ..) = shim.define(0).await;

    for batch in 0..LAUNCHES / 1_000 {
        let at = monotonic_now();
        let launch = |n| ShimRecord::Launch { launch: batch * 1_000 + n, kernel, count: 0, at };
        shim.send((0..1_000).map(launch).collect()).await;
    }
    shim.send(vec![ShimRecord::Bye]).await;
    shim.await_bye().await;
    rig.endpoint().handle.end_attempt(job.id);

    let KernelEvent::Over { tally, .. } =
        rig.event_where(|event| matches!(event, KernelEvent::Over { .. })).await
    else {
        panic!()
    };
    assert_eq!((tally.counters.launches, tally.lost), (LAUNCHES, 0));
}

#[tokio::test]
async fn a_kernel_beyond_all_space_stays_unknown_and_runs() {
    let mut rig = Rig::new();
    let job = rig.admit("MIG-1", "job", 3);
    let mut shim = Shim::join(&job).await;
    let capacity = usize::from(tessera_kernel_queue::limits::KERNELS_MAX);
    for first in (0..capacity).step_by(512) {
        let define = |number: usize| ShimRecord::Define {
            number: u32::try_from(number).unwrap(),
            kernel: kernel(number),
        };
        shim.send((first..first + 512).map(define).collect()).await;
    }

    let (index, sk, measure) = shim.define(capacity).await;

    assert_eq!((index, sk, measure), (KernelIndex::UNKNOWN, None, false));
}

#[tokio::test]
async fn a_launch_made_before_the_role_of_a_filler_arrived_is_no_launch_without_a_grant() {
    let mut rig = Rig::new();
    let (high, low) = (rig.admit("MIG-1", "high", 0), rig.admit("MIG-1", "low", 7));
    rig.add_profile(&high, &[(1_000, 5_000)]);
    rig.add_profile(&low, &[(500, 100)]);
    let gate = rig.gate(&low);
    let mut filler = Shim::join(&low).await;
    let (kernel, ..) = filler.define(0).await;
    let _holder = Shim::join(&high).await;

    // The first is of a holder that does not know yet, the second of a filler.
    filler.launch(1, kernel, Some(&gate)).await;
    filler.launch(2, kernel, None).await;
    filler.send(vec![ShimRecord::Bye]).await;
    filler.await_bye().await;
    rig.endpoint().handle.end_attempt(low.id);

    let KernelEvent::Over { tally, .. } =
        rig.event_where(|event| matches!(event, KernelEvent::Over { .. })).await
    else {
        panic!()
    };
    assert_eq!((tally.counters.launches, tally.ungranted), (2, 1));
}
