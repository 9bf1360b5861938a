//! One step of the device: which group has the device, what runs, and until when nothing changes.

use super::{
    ClientGroup, DeviceClientState, DeviceEngine, DeviceSchedule, DeviceWork, OPEN_ENDED,
    SPANS_MAX, rates,
};

/// A job that runs now: where it is, and how fast it runs.
struct RunningJob {
    client: usize,
    lane: usize,
    rate: u64,
}

impl DeviceSchedule {
    /// Advances to the next change, or to `to` if that comes first.
    pub(super) fn step(&mut self, to: u64) {
        self.choose_group();
        let running = self.running();
        let until = self.next_change(&running).min(to);
        for RunningJob { client, lane, rate } in running {
            let client = &mut self.clients[client];
            let lane = &mut client.lanes[lane];
            if let Some(job) = lane.jobs.iter_mut().find(|job| job.ended.is_none()) {
                if job.order.engine == DeviceEngine::Compute {
                    client.busy = client.busy.saturating_add(until - self.now);
                }
                job.run(self.now, until, rate);
            }
        }
        self.now = until;
    }

    fn choose_group(&mut self) {
        if self.now < self.changing_until {
            return;
        }
        let waiting = self.groups_with_work();
        let next = match self.turn {
            None => {
                self.turn = waiting.first().map(|group| (*group, self.now));
                return;
            }
            Some((group, since)) => {
                let goes_on = waiting.contains(&group);
                let over = self.now > since && (self.now - since).is_multiple_of(self.rules.slice);
                if goes_on && !over {
                    return;
                }
                // In turn: the next of a fixed order, so that none is left out.
                let after = waiting.iter().find(|other| **other > group);
                after.or_else(|| waiting.first().filter(|other| **other != group)).copied()
            }
        };
        if let Some(next) = next {
            self.changing_until = self.now + self.rules.switch;
            self.turn = Some((next, self.changing_until));
        }
    }

    /// Returns the groups that have a kernel ready, in a fixed order.
    fn groups_with_work(&self) -> Vec<ClientGroup> {
        let ready = |client: &&DeviceClientState| client.kernel(self.now).is_some();
        let mut groups: Vec<_> = self.clients.iter().filter(ready).map(|c| c.group).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    fn running(&self) -> Vec<RunningJob> {
        let mut running = self.copies();
        let Some((group, _)) = self.turn.filter(|_| self.now >= self.changing_until) else {
            return running;
        };
        let members = self.clients.iter().enumerate().filter(|(_, c)| c.group == group);
        let mut kernels: Vec<_> = members
            .filter_map(|(index, client)| {
                let lane = client.kernel(self.now)?;
                Some((index, lane, client, client.lanes[lane].head()?))
            })
            .collect();
        // Those that began together keep the order in which they did: a read in between must not
        // change the shares.
        kernels.sort_by_key(|(_, _, client, job)| {
            (job.began.is_none(), job.began.unwrap_or(0), job.order.ready_at, client.id)
        });
        let pairs: Vec<_> = kernels.iter().map(|(_, _, client, job)| (*client, *job)).collect();
        let rates = rates::of_concurrent(&pairs);
        let placed = kernels.iter().zip(rates).filter(|(_, rate)| *rate > 0);
        running.extend(placed.map(|((client, lane, ..), rate)| RunningJob {
            client: *client,
            lane: *lane,
            rate,
        }));
        running
    }

    fn copies(&self) -> Vec<RunningJob> {
        let mut found = Vec::new();
        for (client, of_client) in self.clients.iter().enumerate() {
            for (lane, of_lane) in of_client.lanes.iter().enumerate() {
                let ready =
                    of_lane.head().is_some_and(|job| job.is_ready(DeviceEngine::Copy, self.now));
                if ready {
                    found.push(RunningJob { client, lane, rate: 0 });
                }
            }
        }
        let count = found.len().max(1) as u64;
        found.iter_mut().for_each(|copy| copy.rate = (1_000 / count).max(1));
        found
    }

    fn next_change(&self, running: &[RunningJob]) -> u64 {
        let ends = running.iter().filter_map(|r| {
            let job = self.clients[r.client].lanes[r.lane].head()?;
            (job.left != OPEN_ENDED).then(|| self.now.saturating_add(job.left.div_ceil(r.rate)))
        });
        let heads = self.clients.iter().flat_map(|c| &c.lanes).filter_map(|lane| lane.head());
        let readies = heads.map(|job| job.order.ready_at).filter(|at| *at > self.now);
        let changed = Some(self.changing_until).filter(|until| *until > self.now);
        ends.chain(readies).chain(changed).chain(self.end_of_slice()).min().unwrap_or(u64::MAX)
    }

    /// Returns when the time slice ends, if another group waits.
    fn end_of_slice(&self) -> Option<u64> {
        let (group, since) = self.turn?;
        if self.now < since || self.groups_with_work().iter().all(|other| *other == group) {
            return None;
        }
        let slices = (self.now - since) / self.rules.slice + 1;
        Some(since.saturating_add(slices.saturating_mul(self.rules.slice)))
    }
}

impl DeviceClientState {
    /// Returns the lane whose kernel runs next, or runs: one that has begun continues.
    fn kernel(&self, now: u64) -> Option<usize> {
        let heads = self.lanes.iter().enumerate().filter_map(|(index, lane)| {
            let job = lane.head().filter(|job| job.is_ready(DeviceEngine::Compute, now))?;
            let turn = (lane.priority, job.order.ready_at, job.order.job);
            Some(((job.began.is_none(), turn), index))
        });
        heads.min().map(|(_, index)| index)
    }
}

impl DeviceWork {
    fn is_ready(&self, engine: DeviceEngine, now: u64) -> bool {
        self.order.engine == engine && self.order.ready_at <= now
    }

    fn run(&mut self, from: u64, until: u64, rate: u64) {
        if until == from {
            return;
        }
        self.began.get_or_insert(from);
        if self.left != OPEN_ENDED {
            self.left = self.left.saturating_sub((until - from).saturating_mul(rate));
        }
        let has_space = self.spans.len() < SPANS_MAX;
        match self.spans.last_mut() {
            Some(last) if last.1 == from || !has_space => last.1 = until,
            Some(_) | None => self.spans.push((from, until)),
        }
        if self.left == 0 {
            self.ended = Some(until);
        }
    }
}
