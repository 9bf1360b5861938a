//! Decisions about launches allocate no memory.

#[path = "support/scene.rs"]
mod scene;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use scene::{K0, ms, profile, us};
use tessera_kernel_queue::{Join, KernelQueue, Nanos, QueueEvent, QueueRules, SessionId, TaskKey};
use tessera_model::spec::{Class, Priority};

struct Counting;

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.with(|taken| taken.set(taken.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn launches_waits_grants_and_gaps_allocate_nothing() {
    let mut queue = KernelQueue::new(QueueRules::default());
    for session in 1..=9 {
        let task = TaskKey::new(format!("task {session}")).unwrap();
        let gap = if session == 1 { ms(2) } else { Nanos::ZERO };
        queue.add_profile(&task, profile(&[(us(40 * session), gap)]));
        queue.step(
            QueueEvent::Join(Join {
                session: SessionId::new(session),
                task,
                priority: Priority::try_from(u8::try_from(session).unwrap()).unwrap(),
                class: Class::Offline,
                share_thousandths: 1_000,
                exclusive: None,
            }),
            Nanos::ZERO,
        );
    }
    let holder = SessionId::new(1);
    let before = TAKEN.with(Cell::get);
    let mut grants = 0;
    for round in 1..=2_000 {
        let now = us(700 * round);
        for session in 2..=9 {
            let session = SessionId::new(session);
            queue.step(
                QueueEvent::Request { session, launch: round, kernel: K0, beyond: None },
                now,
            );
        }
        queue
            .step(QueueEvent::Launch { session: holder, launch: round, kernel: K0, count: 0 }, now);
        let given = queue.counters().grants;
        let session = SessionId::new(2);
        queue.step(QueueEvent::Started { session, launch: round, kernel: K0, grant: given }, now);
        queue.step(QueueEvent::Done { session }, now.plus(us(100)));
        queue.step(QueueEvent::Sync { session: holder, returns: None }, now.plus(us(110)));
        grants = given;
    }

    assert_eq!(TAKEN.with(Cell::get) - before, 0);
    assert!(grants > 500, "{grants}");
}
