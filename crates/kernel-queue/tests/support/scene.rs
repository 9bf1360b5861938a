//! A slice with sessions, for short tests of the rules.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;

use tessera_kernel_queue::{
    Dims, Grant, GrantKind, Join, KernelId, KernelIndex, KernelQueue, Nanos, QueueAction,
    QueueEvent, QueueRules, Role, SessionId, TaskKey, TaskProfile,
};
use tessera_model::AttemptId;
use tessera_model::spec::{Class, Priority};

pub const fn us(micros: u64) -> Nanos {
    Nanos::from_micros(micros)
}

pub const fn ms(millis: u64) -> Nanos {
    Nanos::from_millis(millis)
}

pub const K0: KernelIndex = KernelIndex::new(0);
pub const K1: KernelIndex = KernelIndex::new(1);

pub fn kernel_id(number: usize) -> KernelId {
    KernelId::new(format!("k{number}"), Dims([1; 3]), Dims([32, 1, 1])).unwrap()
}

/// A measured profile of kernels: how long each takes, and how long the gap after it.
pub fn profile(kernels: &[(Nanos, Nanos)]) -> TaskProfile {
    let mut profile = TaskProfile::default();
    for (number, (took, gap)) in kernels.iter().enumerate() {
        let index = profile.intern(&kernel_id(number)).unwrap();
        for _ in 0..20 {
            let kernel = profile.kernel_mut(index).unwrap();
            kernel.took.add(*took);
            kernel.gap.add(*gap);
            profile.pairs.add(None, index, *gap);
        }
    }
    profile.close_measuring();
    profile
}

pub struct Scene {
    pub queue: KernelQueue,
    pub now: Nanos,
    launches: u64,
    /// The launch that each session requested last.
    requested: BTreeMap<u64, u64>,
}

impl Scene {
    pub fn new(rules: QueueRules) -> Self {
        Self {
            queue: KernelQueue::new(rules),
            now: Nanos::ZERO,
            launches: 0,
            requested: BTreeMap::new(),
        }
    }

    pub fn step(&mut self, event: QueueEvent) -> Vec<QueueAction> {
        self.queue.step(event, self.now).to_vec()
    }

    pub fn join(&mut self, session: u64, priority: u8, profile: TaskProfile) -> Vec<QueueAction> {
        self.join_of(session, priority, profile, None)
    }

    /// Joins as a process of an attempt in exclusive mode, if one is given.
    pub fn join_of(
        &mut self,
        session: u64,
        priority: u8,
        profile: TaskProfile,
        exclusive: Option<AttemptId>,
    ) -> Vec<QueueAction> {
        let task = TaskKey::new(format!("task {session}")).unwrap();
        self.queue.add_profile(&task, profile);
        let join = Join {
            session: SessionId::new(session),
            task,
            priority: Priority::try_from(priority).unwrap(),
            class: Class::Offline,
            share_thousandths: 1_000,
            exclusive,
        };
        self.step(QueueEvent::Join(join))
    }

    pub fn leave(&mut self, session: u64) -> Vec<QueueAction> {
        self.step(QueueEvent::Leave { session: SessionId::new(session) })
    }

    pub fn launch(&mut self, session: u64, kernel: KernelIndex) -> Vec<QueueAction> {
        self.launches += 1;
        let (session, launch) = (SessionId::new(session), self.launches);
        self.step(QueueEvent::Launch { session, launch, kernel, count: 0 })
    }

    pub fn request(&mut self, session: u64, kernel: KernelIndex) -> Vec<QueueAction> {
        self.launches += 1;
        self.requested.insert(session, self.launches);
        let (session, launch) = (SessionId::new(session), self.launches);
        self.step(QueueEvent::Request { session, launch, kernel, beyond: None })
    }

    /// The launch that the session requested last has another kernel than the request stated.
    pub fn request_again(&mut self, session: u64, kernel: KernelIndex) -> Vec<QueueAction> {
        let launch = self.requested[&session];
        let session = SessionId::new(session);
        self.step(QueueEvent::Request { session, launch, kernel, beyond: None })
    }

    /// Launches under a grant: the launch that the session requested last, or one without a
    /// request.
    pub fn started(&mut self, session: u64, kernel: KernelIndex, grant: Grant) -> Vec<QueueAction> {
        self.launches += 1;
        let launch = self.requested.remove(&session).unwrap_or(self.launches);
        let session = SessionId::new(session);
        self.step(QueueEvent::Started { session, launch, kernel, grant: grant.number })
    }

    pub fn done(&mut self, session: u64) -> Vec<QueueAction> {
        self.step(QueueEvent::Done { session: SessionId::new(session) })
    }

    pub fn sync(&mut self, session: u64) -> Vec<QueueAction> {
        self.step(QueueEvent::Sync { session: SessionId::new(session), returns: None })
    }

    pub fn role(&self, session: u64) -> Option<Role> {
        self.queue.role(SessionId::new(session))
    }

    /// Lets time pass until `until`, with every tick that falls due; returns the actions with their
    /// times.
    pub fn wait(&mut self, until: Nanos) -> Vec<(Nanos, QueueAction)> {
        let mut seen = Vec::new();
        while self.queue.deadline() <= until {
            self.now = self.now.max(self.queue.deadline());
            let actions = self.step(QueueEvent::Tick);
            seen.extend(actions.into_iter().map(|action| (self.now, action)));
        }
        self.now = until;
        seen
    }

    /// Reports that sessions are alive.
    pub fn alive(&mut self, sessions: &[u64]) {
        for session in sessions {
            self.step(QueueEvent::Alive { session: SessionId::new(*session) });
        }
    }
}

/// Returns the grant for a session among actions.
pub fn granted(actions: &[QueueAction], session: u64) -> Option<Grant> {
    actions.iter().find_map(|action| match action {
        QueueAction::Grant { session: whom, grant } if whom.get() == session => Some(*grant),
        _ => None,
    })
}

/// Returns the first grant of a kind for a session, and when it was given.
pub fn first(
    seen: &[(Nanos, QueueAction)],
    session: u64,
    kind: GrantKind,
) -> Option<(Nanos, Grant)> {
    seen.iter().find_map(|(at, action)| match action {
        QueueAction::Grant { session: whom, grant }
            if whom.get() == session && grant.kind == kind =>
        {
            Some((*at, *grant))
        }
        _ => None,
    })
}

pub fn role_sent(actions: &[QueueAction], session: u64) -> Option<Role> {
    actions.iter().rev().find_map(|action| match action {
        QueueAction::Role { session: whom, role } if whom.get() == session => Some(*role),
        _ => None,
    })
}
