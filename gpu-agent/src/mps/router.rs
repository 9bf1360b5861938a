//! The way to the slices: finds the task of a slice, or starts one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tessera_model::{AttemptId, BootId, SliceId};
use tokio::sync::mpsc;

use super::MpsSettings;
use super::daemon::MpsDaemon;
use super::slice::{NOTE, SharedSlice, SliceNote};
use crate::messages::NodeInput;
use crate::messages::mps::{MpsEvent, MpsOrder};
use crate::shepherd::protocol::AccountNumbers;

/// Orders that may wait for one slice: each of 48 sharers has a few.
const QUEUE: usize = 256;

struct MpsRouter {
    settings: MpsSettings,
    boot: BootId,
    node: mpsc::Sender<NodeInput>,
    slices: BTreeMap<SliceId, mpsc::Sender<MpsOrder>>,
    attempts: BTreeMap<AttemptId, SliceId>,
}

/// Serves all shared slices of the node until its orders end.
pub async fn run(
    settings: MpsSettings,
    boot: BootId,
    node: mpsc::Sender<NodeInput>,
    mut orders: mpsc::Receiver<MpsOrder>,
) {
    let (slices, attempts) = (BTreeMap::new(), BTreeMap::new());
    let mut router = MpsRouter { settings, boot, node, slices, attempts };
    while let Some(order) = orders.recv().await {
        router.hand_on(order).await;
    }
}

impl MpsRouter {
    async fn hand_on(&mut self, order: MpsOrder) {
        let attempt = match &order {
            MpsOrder::Share(request) => {
                self.attempts.insert(request.attempt, request.slice.clone());
                request.attempt
            }
            MpsOrder::Running { attempt, .. } | MpsOrder::Ended { attempt, .. } => *attempt,
            MpsOrder::Adopt(alive) => return self.adopt(&alive.clone()).await,
        };
        let over = matches!(order, MpsOrder::Ended { .. });
        let Some(slice) = self.attempts.get(&attempt).cloned() else {
            return self.unknown(order).await;
        };
        if over {
            self.attempts.remove(&attempt);
        }
        let refused = match self.slices.get(&slice) {
            Some(port) => port.send(order).await.err().map(|back| back.0),
            None => Some(order),
        };
        // Its task has ended since, or there was none.
        if let Some(order) = refused {
            let (port, task) = self.task(slice.clone());
            tokio::task::spawn_local(task.run());
            let _ = port.send(order).await;
            self.slices.retain(|_, port| !port.is_closed());
            self.slices.insert(slice, port);
        }
    }

    fn task(&self, slice: SliceId) -> (mpsc::Sender<MpsOrder>, SharedSlice) {
        let (port, orders) = mpsc::channel(QUEUE);
        let (settings, node) = (self.settings.clone(), self.node.clone());
        (port, SharedSlice::new(settings, self.boot, slice, node, orders))
    }

    /// An end that no slice knows counts as its shepherd reports it.
    async fn unknown(&self, order: MpsOrder) {
        if let MpsOrder::Ended { attempt, record: Some(record) } = order {
            let _ = self.node.send(NodeInput::Mps(MpsEvent::Judged { attempt, record })).await;
        }
    }

    /// Finds what an earlier agent left: daemons whose sharers still run are taken over, others are
    /// ended.
    async fn adopt(&mut self, alive: &[AttemptId]) {
        let Ok(entries) = fs::read_dir(self.settings.data.join("mps")) else { return };
        for folder in entries.flatten().map(|entry| entry.path()) {
            match read_note(&folder, alive) {
                Some(note) if !note.sharers.is_empty() => self.take_over(note, folder),
                Some(note) => self.end(note.slice, folder, note.account).await,
                None => {
                    if let Ok(slice) = "MIG-unknown".parse() {
                        self.end(slice, folder, None).await;
                    }
                }
            }
        }
    }

    fn take_over(&mut self, note: SliceNote, folder: PathBuf) {
        let slice = note.slice.clone();
        for (attempt, _) in &note.sharers {
            self.attempts.insert(*attempt, slice.clone());
        }
        let (port, mut task) = self.task(slice.clone());
        task.adopt(note, folder);
        tokio::task::spawn_local(task.run());
        self.slices.insert(slice, port);
    }

    async fn end(&self, slice: SliceId, folder: PathBuf, account: Option<AccountNumbers>) {
        let mut daemon = MpsDaemon::adopt(&self.settings, folder, slice, self.boot, account);
        daemon.find_process().await;
        daemon.stop().await;
    }
}

/// Returns the attempts that an earlier agent noted as sharers.
pub fn noted(data: &Path) -> BTreeSet<AttemptId> {
    let Ok(entries) = fs::read_dir(data.join("mps")) else { return BTreeSet::new() };
    let notes = entries.flatten().filter_map(|entry| {
        let text = fs::read_to_string(entry.path().join(NOTE)).ok()?;
        serde_json::from_str::<SliceNote>(&text).ok()
    });
    notes.flat_map(|note| note.sharers).map(|(attempt, _)| attempt).collect()
}

fn read_note(folder: &Path, alive: &[AttemptId]) -> Option<SliceNote> {
    let text = fs::read_to_string(folder.join(NOTE)).ok()?;
    let mut note: SliceNote = serde_json::from_str(&text).ok()?;
    note.sharers.retain(|(attempt, _)| alive.contains(attempt));
    Some(note)
}
