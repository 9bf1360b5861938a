//! The device as numbers, for the file that processes share.

use std::collections::VecDeque;

use super::{
    ClientGroup, ClientId, DemandRates, DeviceClientState, DeviceEngine, DeviceLane, DeviceRules,
    DeviceSchedule, DeviceWork, WorkOrder,
};
use crate::process::ProcessIdentity;

/// Version of the layout: a file with another version is started over.
const LAYOUT: u64 = 1;

/// Stands for "not yet" in a time.
const NOT_YET: u64 = u64::MAX;

/// What was read is not a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the numbers of a device")]
pub struct SnapshotError;

impl DeviceSchedule {
    /// Encodes the device.
    pub fn to_words(&self) -> Vec<u64> {
        let mut words = vec![
            LAYOUT,
            self.rules.slice,
            self.rules.switch,
            self.now,
            self.changing_until,
            self.next_client,
        ];
        match self.turn {
            None => words.extend([0, 0, 0]),
            Some((group, since)) => words.extend([group_kind(group), group_number(group), since]),
        }
        push_count(&mut words, self.clients.len());
        for client in &self.clients {
            let ProcessIdentity { pid, started_ticks } = client.process;
            words.extend([client.id.0, u64::from(pid), started_ticks, u64::from(client.cap)]);
            words.extend([group_kind(client.group), group_number(client.group), client.busy]);
            push_count(&mut words, client.lanes.len());
            for lane in &client.lanes {
                words.extend([lane.id, u64::from(lane.priority.cast_unsigned())]);
                push_count(&mut words, lane.jobs.len());
                lane.jobs.iter().for_each(|job| push_job(&mut words, job));
            }
        }
        words
    }

    /// Reads what [`Self::to_words`] wrote.
    ///
    /// # Errors
    ///
    /// [`SnapshotError`] if it is anything else.
    pub fn from_words(words: &[u64]) -> Result<Self, SnapshotError> {
        let mut words = WordReader(words);
        if words.next()? != LAYOUT {
            return Err(SnapshotError);
        }
        let rules = DeviceRules { slice: words.next()?.max(1), switch: words.next()? };
        let (now, changing_until, next_client) = (words.next()?, words.next()?, words.next()?);
        let (kind, number, since) = (words.next()?, words.next()?, words.next()?);
        let turn = match kind {
            0 => None,
            kind => Some((group(kind, number)?, since)),
        };
        let clients = words.list(WordReader::client)?;
        Ok(Self { rules, now, turn, changing_until, clients, next_client })
    }
}

fn group_kind(group: ClientGroup) -> u64 {
    match group {
        ClientGroup::Alone(_) => 1,
        ClientGroup::Server(_) => 2,
    }
}

fn group_number(group: ClientGroup) -> u64 {
    match group {
        ClientGroup::Alone(client) => client.0,
        ClientGroup::Server(pid) => u64::from(pid),
    }
}

fn group(kind: u64, number: u64) -> Result<ClientGroup, SnapshotError> {
    match kind {
        1 => Ok(ClientGroup::Alone(ClientId(number))),
        2 => Ok(ClientGroup::Server(number.try_into().map_err(|_| SnapshotError)?)),
        _ => Err(SnapshotError),
    }
}

fn push_count(words: &mut Vec<u64>, count: usize) {
    words.push(count as u64);
}

fn push_job(words: &mut Vec<u64>, job: &DeviceWork) {
    let engine = match job.order.engine {
        DeviceEngine::Compute => 0,
        DeviceEngine::Copy => 1,
    };
    let WorkOrder { job: number, ready_at, work, need, .. } = job.order;
    words.extend([number, engine, ready_at, work]);
    words.extend([u64::from(need.sms), u64::from(need.bandwidth), job.left]);
    words.extend([job.began.unwrap_or(NOT_YET), job.ended.unwrap_or(NOT_YET)]);
    push_count(words, job.spans.len());
    job.spans.iter().for_each(|(from, until)| words.extend([*from, *until]));
}

/// What is still to be read.
struct WordReader<'w>(&'w [u64]);

impl WordReader<'_> {
    fn next(&mut self) -> Result<u64, SnapshotError> {
        let (first, rest) = self.0.split_first().ok_or(SnapshotError)?;
        self.0 = rest;
        Ok(*first)
    }

    fn small(&mut self) -> Result<u32, SnapshotError> {
        self.next()?.try_into().map_err(|_| SnapshotError)
    }

    fn time(&mut self) -> Result<Option<u64>, SnapshotError> {
        Ok(Some(self.next()?).filter(|time| *time != NOT_YET))
    }

    fn list<T>(
        &mut self,
        item: impl Fn(&mut Self) -> Result<T, SnapshotError>,
    ) -> Result<Vec<T>, SnapshotError> {
        let count = usize::try_from(self.next()?).map_err(|_| SnapshotError)?;
        // Each item is at least one word, so a count beyond what is left is invalid.
        if count > self.0.len() {
            return Err(SnapshotError);
        }
        (0..count).map(|_| item(self)).collect()
    }

    fn client(&mut self) -> Result<DeviceClientState, SnapshotError> {
        let id = ClientId(self.next()?);
        let process = ProcessIdentity { pid: self.small()?, started_ticks: self.next()? };
        let cap = self.small()?;
        let (kind, number) = (self.next()?, self.next()?);
        let group = group(kind, number)?;
        let busy = self.next()?;
        Ok(DeviceClientState { id, process, cap, group, busy, lanes: self.list(Self::lane)? })
    }

    fn lane(&mut self) -> Result<DeviceLane, SnapshotError> {
        let (id, priority) = (self.next()?, self.small()?.cast_signed());
        Ok(DeviceLane { id, priority, jobs: VecDeque::from(self.list(Self::job)?) })
    }

    fn job(&mut self) -> Result<DeviceWork, SnapshotError> {
        let job = self.next()?;
        let engine = match self.next()? {
            0 => DeviceEngine::Compute,
            1 => DeviceEngine::Copy,
            _ => return Err(SnapshotError),
        };
        let (ready_at, work) = (self.next()?, self.next()?);
        let need = DemandRates { sms: self.small()?, bandwidth: self.small()? };
        let order = WorkOrder { job, engine, ready_at, work, need };
        let (left, began, ended) = (self.next()?, self.time()?, self.time()?);
        let spans = self.list(|words| Ok((words.next()?, words.next()?)))?;
        Ok(DeviceWork { order, left, began, ended, spans })
    }
}
