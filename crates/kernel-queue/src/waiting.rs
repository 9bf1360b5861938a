//! The ten queues Q0 to Q9 of launches that wait (FIKIT §3.3), and the best fit among them
//! (Algorithm 2).

use tessera_model::spec::Priority;

use crate::ids::{KernelIndex, SessionId};
use crate::limits::{LEVELS, WAITING_MAX};
use crate::time::Nanos;

/// A launch that waits: a thread of the session is blocked until it is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Whose.
    pub session: SessionId,
    /// The session's own number of it.
    pub launch: u64,
    /// Of which kernel.
    pub kernel: KernelIndex,
    /// The kernel's expected time, `SK`; a kernel without one never fits a gap.
    pub predicted: Option<Nanos>,
    /// Its place in the order of arrival, over all queues.
    pub ticket: u64,
}

/// A launch that finds its queue full.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{WAITING_MAX} launches wait at priority {priority} already: launch this one unasked")]
pub struct QueueFull {
    /// The queue.
    pub priority: u8,
}

const EMPTY: Request = Request {
    session: SessionId::new(0),
    launch: 0,
    kernel: KernelIndex::new(0),
    predicted: None,
    ticket: 0,
};

/// One queue, oldest first. The times stand apart, so that the search for a fit reads nothing
/// else; times over 4 s count as 4 s, unknown ones as zero.
#[derive(Clone, Debug)]
struct Level {
    times: [u32; WAITING_MAX],
    requests: [Request; WAITING_MAX],
    held: usize,
}

/// All queues.
#[derive(Clone, Debug)]
pub struct Waiting {
    levels: Box<[Level; LEVELS]>,
    tickets: u64,
}

impl Default for Waiting {
    fn default() -> Self {
        const NONE: Level =
            Level { times: [0; WAITING_MAX], requests: [EMPTY; WAITING_MAX], held: 0 };
        Self { levels: Box::new([NONE; LEVELS]), tickets: 0 }
    }
}

impl Waiting {
    /// Puts a launch at the end of its queue.
    ///
    /// # Errors
    ///
    /// [`QueueFull`]: let the program launch, a queue must not stop it.
    pub fn push(
        &mut self,
        priority: Priority,
        (session, launch): (SessionId, u64),
        kernel: KernelIndex,
        predicted: Option<Nanos>,
    ) -> Result<Request, QueueFull> {
        let request = Request { session, launch, kernel, predicted, ticket: self.tickets };
        self.put_back(priority, request)?;
        self.tickets += 1;
        Ok(request)
    }

    /// Puts a launch back to where it stood, because its grant came to nothing.
    ///
    /// # Errors
    ///
    /// [`QueueFull`] if others took all places meanwhile.
    pub fn put_back(&mut self, priority: Priority, request: Request) -> Result<(), QueueFull> {
        let level = &mut self.levels[usize::from(priority.get())];
        if level.held == WAITING_MAX {
            return Err(QueueFull { priority: priority.get() });
        }
        let place = level.requests[..level.held].partition_point(|r| r.ticket < request.ticket);
        level.times.copy_within(place..level.held, place + 1);
        level.requests.copy_within(place..level.held, place + 1);
        level.times[place] = time(request.predicted);
        level.requests[place] = request;
        level.held += 1;
        Ok(())
    }

    /// Algorithm 2: from the first queue, highest priority first, that has a launch shorter than
    /// `idle`, takes the longest such launch; of equally long ones the oldest.
    pub fn best_fit(&mut self, idle: Nanos) -> Option<Request> {
        self.best_fit_of(idle, |_| true)
    }

    /// As [`Self::best_fit`], among the launches that `wanted` accepts.
    pub fn best_fit_of(
        &mut self,
        idle: Nanos,
        mut wanted: impl FnMut(&Request) -> bool,
    ) -> Option<Request> {
        let idle = u32::try_from(idle.get()).unwrap_or(u32::MAX);
        for level in 0..LEVELS {
            if let Some(place) = self.levels[level].best_fit(idle, &mut wanted) {
                return Some(self.take(level, place));
            }
        }
        None
    }

    /// Takes the oldest launch of the highest priority that `wanted` accepts.
    pub fn first(&mut self, mut wanted: impl FnMut(&Request) -> bool) -> Option<Request> {
        for level in 0..LEVELS {
            let held = self.levels[level].held;
            let place = self.levels[level].requests[..held].iter().position(&mut wanted);
            if let Some(place) = place {
                return Some(self.take(level, place));
            }
        }
        None
    }

    /// Removes all launches of a session.
    pub fn forget(&mut self, session: SessionId) {
        while self.first(|request| request.session == session).is_some() {}
    }

    /// Removes one launch of a session, if it waits.
    pub fn remove(&mut self, priority: Priority, session: SessionId, launch: u64) {
        let level = usize::from(priority.get());
        let place = self.of(priority).position(|r| r.session == session && r.launch == launch);
        if let Some(place) = place {
            self.take(level, place);
        }
    }

    /// Says anew which kernel a launch that waits is of: its session may have learned it only now.
    /// Returns whether it waits.
    pub fn rename(
        &mut self,
        priority: Priority,
        (session, launch): (SessionId, u64),
        kernel: KernelIndex,
        predicted: Option<Nanos>,
    ) -> bool {
        let level = &mut self.levels[usize::from(priority.get())];
        let mut held = level.requests[..level.held].iter_mut();
        let place = held.position(|r| r.session == session && r.launch == launch);
        let Some(place) = place else { return false };
        level.times[place] = time(predicted);
        level.requests[place] = Request { kernel, predicted, ..level.requests[place] };
        true
    }

    /// Returns the launches of one queue, oldest first.
    pub fn of(&self, priority: Priority) -> impl Iterator<Item = &Request> {
        let level = &self.levels[usize::from(priority.get())];
        level.requests[..level.held].iter()
    }

    /// Returns all launches, highest priority first, oldest first within one.
    pub fn iter(&self) -> impl Iterator<Item = (Priority, &Request)> {
        let priorities = (0_u8..).map_while(|number| Priority::try_from(number).ok());
        priorities.flat_map(|priority| self.of(priority).map(move |request| (priority, request)))
    }

    /// Tells whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.levels.iter().all(|level| level.held == 0)
    }

    fn take(&mut self, level: usize, place: usize) -> Request {
        let level = &mut self.levels[level];
        let request = level.requests[place];
        level.times.copy_within(place + 1..level.held, place);
        level.requests.copy_within(place + 1..level.held, place);
        level.held -= 1;
        request
    }
}

impl Level {
    /// Returns the place of the longest launch below `idle` that is wanted.
    fn best_fit(&self, mut idle: u32, wanted: &mut impl FnMut(&Request) -> bool) -> Option<usize> {
        let times = &self.times[..self.held];
        loop {
            let best = longest_below(times, idle);
            if best == 0 {
                return None;
            }
            let equals = times.iter().enumerate().filter(|(_, time)| **time == best);
            let place = equals.map(|(place, _)| place).find(|place| wanted(&self.requests[*place]));
            if place.is_some() {
                return place;
            }
            // Nobody of that length may go: the next shorter ones may.
            idle = best;
        }
    }
}

/// Returns the largest time below `bound`, or zero.
fn longest_below(times: &[u32], bound: u32) -> u32 {
    times.iter().fold(0, |best, time| if *time < bound { best.max(*time) } else { best })
}

fn time(predicted: Option<Nanos>) -> u32 {
    predicted.map_or(0, |nanos| u32::try_from(nanos.get()).unwrap_or(u32::MAX).max(1))
}
