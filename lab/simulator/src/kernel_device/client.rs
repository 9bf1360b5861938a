//! The model of a program's process with its client of the queue: the host thread that launches,
//! and what decides whether it may.

use tessera_kernel_queue::{
    GapOpening, GateState, Grant, GrantBudget, LastLaunch, LaunchDecision, Nanos, Role, SessionId,
};

use super::program::{AfterLaunch, KernelLaunch, ProgramCourse, TaskArrivals};

/// What the host does once everything in flight has ended.
#[derive(Clone, Copy, Debug)]
pub struct ArrivalPlan {
    /// Works for this long.
    pub gap: Nanos,
    /// Whether a task ended with it.
    pub is_last: bool,
}

/// The result of an attempt to launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchAttempt {
    /// Launched, under this grant or freely.
    Launched(KernelLaunch, Option<u64>),
    /// May launch when the grant begins, or when a kernel ends.
    Later(Option<Nanos>),
    /// Has to request a grant; the grant that it gives up, if it holds one.
    Request(KernelLaunch, Option<u64>),
    /// Has requested one already, or has nothing to launch.
    Blocked,
}

/// A process.
#[derive(Clone, Debug)]
pub struct SimulatedClient {
    /// Its number.
    pub session: SessionId,
    /// How it may launch; nothing if there is no queue.
    pub role: Option<Role>,
    /// Predicted kernel times, as its profile has them.
    pub predicted: Vec<Option<Nanos>>,
    /// When its tasks begin.
    pub arrivals: TaskArrivals,
    /// When the task that runs arrived.
    pub begun: Nanos,
    /// Kernels that were launched and whose end it has not noticed.
    pub in_flight: u16,
    /// What it does when they have ended.
    pub then: Option<ArrivalPlan>,
    /// When it was last ordered to bring the device back to its context.
    pub recall_at: Nanos,
    purse: GrantBudget,
    course: ProgramCourse,
    pending: Option<KernelLaunch>,
    has_requested: bool,
}

impl SimulatedClient {
    /// Begins a process that has not launched anything.
    pub fn new(session: SessionId, course: ProgramCourse, arrivals: TaskArrivals) -> Self {
        Self {
            session,
            role: None,
            predicted: Vec::new(),
            arrivals,
            begun: Nanos::ZERO,
            in_flight: 0,
            then: None,
            recall_at: Nanos::ZERO,
            purse: GrantBudget::default(),
            course,
            pending: None,
            has_requested: false,
        }
    }

    /// The host reaches its next launch.
    pub fn come(&mut self) {
        let course = &mut self.course;
        self.pending.get_or_insert_with(|| course.launch());
    }

    /// Tries to make the launch that is pending.
    pub fn attempt(&mut self, (gate, last): (GateState, LastLaunch), now: Nanos) -> LaunchAttempt {
        let Some(launch) = self.pending else { return LaunchAttempt::Blocked };
        if self.role.is_none_or(Role::is_holder) {
            return self.go(launch, None);
        }
        let predicted = self.predicted.get(usize::from(launch.kernel)).copied().flatten();
        let held = self.purse.grant().map(|grant| grant.number);
        self.purse.look(last);
        let number = self.purse.grant().map(|grant| grant.number);
        // Another launch came than the one that it waited for.
        let voided = held.filter(|_| number.is_none());
        match self.purse.spend(predicted, gate, self.in_flight, now) {
            LaunchDecision::Launch => self.go(launch, number),
            LaunchDecision::Wait if self.purse.opening().is_some() => LaunchAttempt::Later(None),
            LaunchDecision::Wait => {
                let from = self.purse.grant().map(|grant| grant.from);
                LaunchAttempt::Later(from.filter(|from| *from > now))
            }
            LaunchDecision::Request => {
                let beyond = self.purse.grant().map(|grant| grant.number).or(voided);
                self.purse.clear();
                if self.has_requested && beyond.is_none() {
                    return LaunchAttempt::Blocked;
                }
                self.has_requested = true;
                LaunchAttempt::Request(launch, beyond)
            }
        }
    }

    fn go(&mut self, launch: KernelLaunch, grant: Option<u64>) -> LaunchAttempt {
        self.pending = None;
        self.has_requested = false;
        self.in_flight += 1;
        if let AfterLaunch::AfterDevice(gap) = launch.next {
            self.then = Some(ArrivalPlan { gap, is_last: launch.is_last });
        }
        LaunchAttempt::Launched(launch, grant)
    }

    /// A grant arrives.
    pub fn receive(&mut self, grant: Grant) {
        self.purse.receive(grant);
    }

    /// A grant of a gap that has not begun arrives.
    pub fn receive_ahead(&mut self, grant: Grant, opening: GapOpening) {
        self.purse.receive_ahead(grant, opening);
    }

    /// Returns whether its grant waits for the launch of this count.
    pub fn awaits(&self, count: u64) -> bool {
        self.purse.opening().is_some_and(|opening| opening.launches == count)
    }

    /// A grant was ended.
    pub fn revoke(&mut self, number: u64) {
        if self.purse.grant().is_some_and(|grant| grant.number == number) {
            self.purse.clear();
        }
    }

    /// Gives its grant back if others wait for it, because the host has other work.
    pub fn give_back(&mut self) -> Option<u64> {
        let number = self.purse.grant().filter(|grant| grant.yields)?.number;
        self.purse.clear();
        Some(number)
    }
}
