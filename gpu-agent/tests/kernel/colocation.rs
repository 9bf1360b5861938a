//! Kernels that run at the same time, by the endpoint's own counts.

use tessera_frames::kernel::{PROTOCOL_WITH_NEEDS, ShimRecord};
use tessera_kernel_queue::{GrantKind, KernelIndex, QueueRules, ResourceNeed, Role};

use crate::rig::{Attempt, HelloOverrides, Rig, Shim};

/// The holder's kernels take longer than this test, so that it never has a gap.
const HOLDERS: (u64, u64) = (600_000, 0);
const FILLERS: (u64, u64) = (100, 0);

fn need(sm_thousandths: u32) -> ResourceNeed {
    ResourceNeed { sm_thousandths, ..ResourceNeed::NONE }
}

/// Admits two attempts whose tasks are measured, with these shares.
fn admit(rig: &mut Rig, shares: [u32; 2]) -> [Attempt; 2] {
    let holder = rig.admit_with_share("GPU-1", "holder", (0, shares[0]));
    let filler = rig.admit_with_share("GPU-1", "filler", (5, shares[1]));
    rig.add_profile(&holder, &[HOLDERS]);
    rig.add_profile(&filler, &[FILLERS]);
    [holder, filler]
}

/// Connects both, and reports a kernel of each with its need.
async fn join(attempts: &[Attempt; 2], needs: [u32; 2]) -> [(Shim, KernelIndex); 2] {
    let mut holder = Shim::join(&attempts[0]).await;
    let mut filler = Shim::join(&attempts[1]).await;
    let (first, ..) = holder.define(0).await;
    let (second, ..) = filler.define(0).await;
    holder.send(vec![ShimRecord::Need { kernel: first, need: need(needs[0]) }]).await;
    filler.send(vec![ShimRecord::Need { kernel: second, need: need(needs[1]) }]).await;
    // The definition's answer follows both: the queue knows the need by then.
    holder.define(1).await;
    filler.define(1).await;
    [(holder, first), (filler, second)]
}

#[tokio::test]
async fn small_kernels_of_two_sharers_are_admitted_next_to_each_other_under_mps() {
    let mut rig = Rig::with(QueueRules::default().over_mps());
    let attempts = admit(&mut rig, [1_000; 2]);
    let [(mut holder, held), (mut filler, kernel)] = join(&attempts, [600, 400]).await;
    assert_eq!(filler.welcome.role, Role::Fill);

    holder.launch(1, held, None).await;
    // Its answer follows the launch: the queue knows that the holder's kernel runs.
    holder.define(2).await;
    for launch in 1..=3 {
        filler.request(launch, kernel).await;
        let grant = filler.await_grant().await;
        assert_eq!((grant.kind, grant.launches), (GrantKind::Colocated, 1));
        let at = tessera_agent::sys::clock::monotonic_now();
        let started = ShimRecord::Started { launch, kernel, grant: grant.number, at };
        filler.send(vec![started, ShimRecord::Done { at }]).await;
    }

    assert_eq!(rig.tally(&attempts[1]).await.counters.colocated, 3);
    assert_eq!(rig.tally(&attempts[0]).await.counters.colocated, 0, "a holder needs no grant");
}

#[tokio::test]
async fn kernels_that_are_too_large_together_and_those_without_mps_wait() {
    for (rules, needs) in
        [(QueueRules::default().over_mps(), [600, 401]), (QueueRules::default(), [100, 100])]
    {
        let mut rig = Rig::with(rules);
        let attempts = admit(&mut rig, [1_000; 2]);
        let [(mut holder, held), (mut filler, kernel)] = join(&attempts, needs).await;

        holder.launch(1, held, None).await;
        // Its answer follows the launch: the queue knows that the holder's kernel runs.
        holder.define(2).await;
        // The holder's kernel runs for longer than the longest wait, after which it goes by its age.
        filler.request(1, kernel).await;
        let grant = filler.await_grant().await;

        assert_eq!(grant.kind, GrantKind::Aged, "{needs:?}");
        assert_eq!(rig.tally(&attempts[1]).await.counters.colocated, 0, "{needs:?}");
    }
}

#[tokio::test]
async fn kernels_that_fill_their_parts_are_admitted_if_the_parts_fit() {
    let mut rig = Rig::with(QueueRules::default().over_mps());
    let attempts = admit(&mut rig, [500; 2]);
    let [(mut holder, held), (mut filler, kernel)] = join(&attempts, [1_000; 2]).await;

    holder.launch(1, held, None).await;
    // Its answer follows the launch: the queue knows that the holder's kernel runs.
    holder.define(2).await;
    filler.request(1, kernel).await;

    assert_eq!(filler.await_grant().await.kind, GrantKind::Colocated);
}

#[tokio::test]
async fn a_smaller_share_waits_longer_until_it_is_due() {
    let mut rig = Rig::with(QueueRules::default().over_mps());
    let attempts = admit(&mut rig, [1_000, 250]);

    let holder = Shim::join(&attempts[0]).await;
    let filler = Shim::join(&attempts[1]).await;

    let (whole, quarter) = (holder.welcome.ages_after, filler.welcome.ages_after);
    assert_eq!(quarter.get(), 4 * whole.get());
}

#[tokio::test]
async fn a_shim_of_the_version_before_needs_is_served_without_them() {
    let mut rig = Rig::with(QueueRules::default().over_mps());
    let attempts = admit(&mut rig, [1_000; 2]);
    let older =
        HelloOverrides { protocol: Some(PROTOCOL_WITH_NEEDS - 1), ..HelloOverrides::default() };

    let mut shim = Shim::try_join(&attempts[0], older).await.unwrap();

    assert_eq!(shim.welcome.protocol, PROTOCOL_WITH_NEEDS - 1);
    shim.define(0).await;
}
