//! The ten queues Q0 to Q9 of waiting launches (FIKIT §3.3), and the best fit among them
//! (Algorithm 2).

use tessera_model::number::clamped;
use tessera_model::spec::Priority;

use crate::ids::{KernelIndex, SessionId};
use crate::limits::{LEVELS, WAITING_MAX};
use crate::time::Nanos;

/// When a wait began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitStart {
    /// On the monotonic clock.
    pub at: Nanos,
    /// The holders' total kernel time at that moment.
    pub served: Nanos,
}

/// A waiting launch: a thread of the session is blocked until it is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchRequest {
    /// The session that launches.
    pub session: SessionId,
    /// The session's number for this launch.
    pub launch: u64,
    /// The kernel that would be launched.
    pub kernel: KernelIndex,
    /// The kernel's expected time, `SK`. A kernel without one never fits a gap.
    pub predicted: Option<Nanos>,
    /// Since when it waits without another launch of its session having been granted what it waits for.
    pub wait: WaitStart,
    /// Its position in the order of arrival, over all queues.
    pub ticket: u64,
}

/// The queue of the launch is full.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{WAITING_MAX} launches are waiting at priority {priority}: request this one again later")]
pub struct QueueFull {
    /// The priority of the full queue.
    pub priority: u8,
}

const EMPTY: LaunchRequest = LaunchRequest {
    session: SessionId::new(0),
    launch: 0,
    kernel: KernelIndex::new(0),
    predicted: None,
    wait: WaitStart { at: Nanos::ZERO, served: Nanos::ZERO },
    ticket: 0,
};

/// One queue, oldest first. The search for a fit reads only `times`. Times over 4 s count as 4 s,
/// unknown times as zero.
#[derive(Clone, Debug)]
struct WaitingLevel {
    times: [u32; WAITING_MAX],
    requests: [LaunchRequest; WAITING_MAX],
    held: usize,
}

/// The waiting launches of all priorities.
#[derive(Clone, Debug)]
pub struct WaitingLaunches {
    levels: Box<[WaitingLevel; LEVELS]>,
    tickets: u64,
}

impl Default for WaitingLaunches {
    fn default() -> Self {
        const NONE: WaitingLevel =
            WaitingLevel { times: [0; WAITING_MAX], requests: [EMPTY; WAITING_MAX], held: 0 };
        Self { levels: Box::new([NONE; LEVELS]), tickets: 0 }
    }
}

impl WaitingLaunches {
    /// Appends a launch to its queue.
    ///
    /// # Errors
    ///
    /// [`QueueFull`]: the program requests it again.
    pub fn push(
        &mut self,
        priority: Priority,
        (session, launch): (SessionId, u64),
        kernel: KernelIndex,
        predicted: Option<Nanos>,
        wait: WaitStart,
    ) -> Result<LaunchRequest, QueueFull> {
        let ticket = self.tickets;
        let request = LaunchRequest { session, launch, kernel, predicted, wait, ticket };
        self.put_back(priority, request)?;
        self.tickets += 1;
        Ok(request)
    }

    /// Returns a launch to its old position, because its grant was not used.
    ///
    /// # Errors
    ///
    /// [`QueueFull`] if other launches have filled the queue since.
    pub fn put_back(
        &mut self,
        priority: Priority,
        request: LaunchRequest,
    ) -> Result<(), QueueFull> {
        let level = &mut self.levels[usize::from(priority.get())];
        if level.held == WAITING_MAX {
            return Err(QueueFull { priority: priority.get() });
        }
        let position = level.requests[..level.held].partition_point(|r| r.ticket < request.ticket);
        level.times.copy_within(position..level.held, position + 1);
        level.requests.copy_within(position..level.held, position + 1);
        level.times[position] = search_time(request.predicted);
        level.requests[position] = request;
        level.held += 1;
        Ok(())
    }

    /// Removes and returns the best fit (Algorithm 2). It takes the first queue, highest priority
    /// first, that has a launch shorter than `idle`. From this queue it takes the longest such
    /// launch, and among equals the oldest.
    pub fn best_fit(&mut self, idle: Nanos) -> Option<LaunchRequest> {
        self.best_fit_among(idle, |_| true)
    }

    /// Like [`Self::best_fit`], among the launches that `accepts` returns true for.
    pub fn best_fit_among(
        &mut self,
        idle: Nanos,
        mut accepts: impl FnMut(&LaunchRequest) -> bool,
    ) -> Option<LaunchRequest> {
        let idle = saturating_nanos(idle);
        for level in 0..LEVELS {
            if let Some(position) = self.levels[level].best_fit(idle, &mut accepts) {
                return Some(self.remove_at(level, position));
            }
        }
        None
    }

    /// Takes the oldest launch of the highest priority that `accepts` accepts.
    pub fn take_first(
        &mut self,
        mut accepts: impl FnMut(&LaunchRequest) -> bool,
    ) -> Option<LaunchRequest> {
        for level in 0..LEVELS {
            let held = self.levels[level].held;
            let position = self.levels[level].requests[..held].iter().position(&mut accepts);
            if let Some(position) = position {
                return Some(self.remove_at(level, position));
            }
        }
        None
    }

    /// Removes all launches of a session.
    pub fn remove_session(&mut self, session: SessionId) {
        while self.take_first(|request| request.session == session).is_some() {}
    }

    /// Removes one launch of a session, if it is waiting.
    pub fn remove_launch(&mut self, priority: Priority, session: SessionId, launch: u64) {
        let level = usize::from(priority.get());
        let position =
            self.launches_of(priority).position(|r| r.session == session && r.launch == launch);
        if let Some(position) = position {
            self.remove_at(level, position);
        }
    }

    /// Changes the kernel of a waiting launch, since its session may learn the index late. Returns
    /// whether the launch is waiting.
    pub fn set_kernel(
        &mut self,
        priority: Priority,
        (session, launch): (SessionId, u64),
        kernel: KernelIndex,
        predicted: Option<Nanos>,
    ) -> bool {
        let level = &mut self.levels[usize::from(priority.get())];
        let mut held = level.requests[..level.held].iter_mut();
        let position = held.position(|r| r.session == session && r.launch == launch);
        let Some(position) = position else { return false };
        level.times[position] = search_time(predicted);
        level.requests[position] = LaunchRequest { kernel, predicted, ..level.requests[position] };
        true
    }

    /// Begins the waits of a session's launches again, of those that `ends` returns true for.
    pub fn restart_waits(
        &mut self,
        (priority, session): (Priority, SessionId),
        wait: WaitStart,
        ends: impl Fn(&LaunchRequest) -> bool,
    ) {
        let level = &mut self.levels[usize::from(priority.get())];
        let own = level.requests[..level.held].iter_mut().filter(|own| own.session == session);
        own.filter(|request| ends(request)).for_each(|request| request.wait = wait);
    }

    /// Predicts launches again. `predict` returns a launch's new time, or `None` to leave it as it is.
    pub fn predict_again(&mut self, mut predict: impl FnMut(&LaunchRequest) -> Option<Nanos>) {
        for level in self.levels.iter_mut() {
            let WaitingLevel { times, requests, held } = level;
            for (time, request) in times.iter_mut().zip(requests).take(*held) {
                if let Some(predicted) = predict(request) {
                    request.predicted = Some(predicted);
                    *time = search_time(request.predicted);
                }
            }
        }
    }

    /// Returns the launches of one queue, oldest first.
    pub fn launches_of(&self, priority: Priority) -> impl Iterator<Item = &LaunchRequest> {
        let level = &self.levels[usize::from(priority.get())];
        level.requests[..level.held].iter()
    }

    /// Returns all launches, those of one queue oldest first.
    pub fn all(&self) -> impl Iterator<Item = &LaunchRequest> {
        self.levels.iter().flat_map(|level| &level.requests[..level.held])
    }

    /// Returns all launches with their priorities, highest priority first, oldest first within one.
    pub fn iter(&self) -> impl Iterator<Item = (Priority, &LaunchRequest)> {
        let priorities = (0_u8..).map_while(|number| Priority::try_from(number).ok());
        priorities
            .flat_map(|priority| self.launches_of(priority).map(move |request| (priority, request)))
    }

    /// Returns whether no launch is waiting.
    pub fn is_empty(&self) -> bool {
        self.levels.iter().all(|level| level.held == 0)
    }

    fn remove_at(&mut self, level: usize, position: usize) -> LaunchRequest {
        let level = &mut self.levels[level];
        let request = level.requests[position];
        level.times.copy_within(position + 1..level.held, position);
        level.requests.copy_within(position + 1..level.held, position);
        level.held -= 1;
        request
    }
}

impl WaitingLevel {
    /// Returns the position of the longest launch below `idle` that is accepted.
    fn best_fit(
        &self,
        mut idle: u32,
        accepts: &mut impl FnMut(&LaunchRequest) -> bool,
    ) -> Option<usize> {
        let times = &self.times[..self.held];
        loop {
            let best = longest_below(times, idle);
            if best == 0 {
                return None;
            }
            let equals = times.iter().enumerate().filter(|(_, time)| **time == best);
            let position = equals
                .map(|(position, _)| position)
                .find(|position| accepts(&self.requests[*position]));
            if position.is_some() {
                return position;
            }
            // No launch of that length is accepted: try the next shorter ones.
            idle = best;
        }
    }
}

/// Returns the largest time below `bound`, or zero.
fn longest_below(times: &[u32], bound: u32) -> u32 {
    times.iter().fold(0, |best, time| if *time < bound { best.max(*time) } else { best })
}

fn search_time(predicted: Option<Nanos>) -> u32 {
    predicted.map_or(0, |time| saturating_nanos(time).max(1))
}

/// Returns a time in nanoseconds; times over 4.29 s saturate.
fn saturating_nanos(time: Nanos) -> u32 {
    clamped(time.get())
}
