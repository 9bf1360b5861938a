//! Several records in one frame: what they allow together.

#[path = "support/kernel_tasks.rs"]
mod kernel_tasks;

use kernel_tasks::{admission, measured};
use tessera_agent_core::kernel::slice::{SliceEffect, SliceQueue};
use tessera_frames::kernel::{PROTOCOL_VERSION, ShimRecord, ToShim};
use tessera_kernel_queue::{
    Dims, GateState, Grant, KernelId, KernelIndex, Nanos, QueueRules, SessionId,
};

const HOLDER: SessionId = SessionId::new(1);
const FILLER: SessionId = SessionId::new(2);
const BEGIN: Nanos = Nanos::from_millis(1_000);

fn after(micros: u64) -> Nanos {
    BEGIN.plus(Nanos::from_micros(micros))
}

fn kernel() -> KernelId {
    KernelId::new("kernel", Dims([64, 1, 1]), Dims([256, 1, 1])).unwrap()
}

fn grants_and_revokes(queue: &mut SliceQueue) -> (Vec<Grant>, usize) {
    let mut effects = Vec::new();
    queue.take_effects(&mut effects);
    let mut grants = Vec::new();
    let mut revokes = 0;
    for effect in effects {
        match effect {
            SliceEffect::Send(FILLER, ToShim::Grant(grant)) => grants.push(grant),
            SliceEffect::Send(FILLER, ToShim::Revoke { .. }) => revokes += 1,
            _ => {}
        }
    }
    (grants, revokes)
}

#[test]
fn a_gap_that_is_over_by_a_later_record_of_its_frame_is_not_granted() {
    let mut queue = SliceQueue::new(QueueRules::default(), GateState::default(), BEGIN);
    let (high, low) = (admission(1, 0), admission(2, 9));
    queue.add_profile(
        &high.task,
        measured(&kernel(), Nanos::from_millis(1), Nanos::from_millis(4)),
        BEGIN,
    );
    queue.add_profile(&low.task, measured(&kernel(), Nanos::from_micros(300), Nanos::ZERO), BEGIN);
    for (session, admission) in [(HOLDER, &high), (FILLER, &low)] {
        queue.admit(admission, BEGIN);
        queue.add_session(session, admission, PROTOCOL_VERSION, BEGIN).unwrap();
        let define = ShimRecord::Define { number: 0, kernel: kernel() };
        assert!(queue.add_records(session, vec![define], BEGIN));
    }
    let index = KernelIndex::new(0);
    let request = ShimRecord::Request { launch: 1, kernel: index, beyond: None, at: BEGIN };
    assert!(queue.add_records(FILLER, vec![request], BEGIN));
    grants_and_revokes(&mut queue);

    // Two kernels and the gap between them, in one late frame.
    let launch = |launch: u64, at| ShimRecord::Launch { launch, kernel: index, count: launch, at };
    let records = vec![
        launch(1, after(10)),
        ShimRecord::Sync { returns: None, at: after(1_010) },
        launch(2, after(3_010)),
    ];
    assert!(queue.add_records(HOLDER, records, after(3_110)));

    let (grants, revokes) = grants_and_revokes(&mut queue);
    let [grant] = grants[..] else {
        panic!("one grant, for the gap after the second kernel: {grants:?}")
    };
    assert_eq!((grant.from, grant.gate.launches, revokes), (after(4_010), 2, 0));
}
