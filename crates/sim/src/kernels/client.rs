//! The model of a program's process with its client of the queue: the host thread that launches,
//! and what decides whether it may.

use tessera_kernel_queue::{Gate, Grant, Nanos, Purse, Role, SessionId, Spend};

use super::program::{Arrivals, Course, Launch, Next};

/// What the host does once everything in flight has ended.
#[derive(Clone, Copy, Debug)]
pub struct Then {
    /// Works so long.
    pub gap: Nanos,
    /// Whether a task ended with it.
    pub is_last: bool,
}

/// What became of a try to launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// Launched, under this grant or freely.
    Launched(Launch, Option<u64>),
    /// May launch when the grant begins, or when a kernel ends.
    Later(Option<Nanos>),
    /// Has to ask; the grant that it gives up, if it holds one.
    Ask(Launch, Option<u64>),
    /// Has asked already, or has nothing to launch.
    Blocked,
}

/// A process.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its number.
    pub session: SessionId,
    /// How it may launch; nothing if there is no queue.
    pub role: Option<Role>,
    /// Predicted kernel times, as its profile has them.
    pub predicted: Vec<Option<Nanos>>,
    /// When its tasks begin.
    pub arrivals: Arrivals,
    /// When the task that runs arrived.
    pub begun: Nanos,
    /// Kernels that were launched and whose end it has not noticed.
    pub in_flight: u16,
    /// What it does when they have ended.
    pub then: Option<Then>,
    purse: Purse,
    course: Course,
    pending: Option<Launch>,
    asked: bool,
}

impl Client {
    /// Begins a process that has not launched anything.
    pub fn new(session: SessionId, course: Course, arrivals: Arrivals) -> Self {
        Self {
            session,
            role: None,
            predicted: Vec::new(),
            arrivals,
            begun: Nanos::ZERO,
            in_flight: 0,
            then: None,
            purse: Purse::default(),
            course,
            pending: None,
            asked: false,
        }
    }

    /// The host comes to its next launch.
    pub fn come(&mut self) {
        let course = &mut self.course;
        self.pending.get_or_insert_with(|| course.launch());
    }

    /// Tries to make the launch that is pending.
    pub fn attempt(&mut self, gate: Gate, now: Nanos) -> Tried {
        let Some(launch) = self.pending else { return Tried::Blocked };
        if self.role.is_none_or(Role::holds) {
            return self.go(launch, None);
        }
        let predicted = self.predicted.get(usize::from(launch.kernel)).copied().flatten();
        let number = self.purse.grant().map(|grant| grant.number);
        match self.purse.spend(predicted, gate, self.in_flight, now) {
            Spend::Go => self.go(launch, number),
            Spend::Wait => {
                let from = self.purse.grant().map(|grant| grant.from);
                Tried::Later(from.filter(|from| *from > now))
            }
            Spend::Ask => {
                let beyond = self.purse.grant().map(|grant| grant.number);
                self.purse.empty();
                if self.asked && beyond.is_none() {
                    return Tried::Blocked;
                }
                self.asked = true;
                Tried::Ask(launch, beyond)
            }
        }
    }

    fn go(&mut self, launch: Launch, grant: Option<u64>) -> Tried {
        self.pending = None;
        self.asked = false;
        self.in_flight += 1;
        if let Next::AfterDevice(gap) = launch.next {
            self.then = Some(Then { gap, is_last: launch.is_last });
        }
        Tried::Launched(launch, grant)
    }

    /// A grant arrives.
    pub fn receive(&mut self, grant: Grant) {
        self.purse.receive(grant);
    }

    /// A grant was ended.
    pub fn revoke(&mut self, number: u64) {
        if self.purse.grant().is_some_and(|grant| grant.number == number) {
            self.purse.empty();
        }
    }

    /// Gives its grant back if others wait for it, because the host has other work.
    pub fn give_back(&mut self) -> Option<u64> {
        let number = self.purse.grant().filter(|grant| grant.yields)?.number;
        self.purse.empty();
        Some(number)
    }
}
