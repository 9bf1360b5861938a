//! Setting a node up: from nothing, or from what an earlier agent left.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use tessera_model::life::Outcome;
use tessera_model::{AttemptId, Millis};
use tessera_wire::frames::ExitRecord;
use tokio::sync::{mpsc, oneshot};

use super::{Fatal, Node, NodeFacts};
use crate::core::attempts::{Attempts, Held, Trace};
use crate::core::ledger::Ledger;
use crate::disk::NodeState;
use crate::gpus::GpuOrder;
use crate::journal::Journal;
use crate::lease_page::LeasePage;
use crate::pool::Pool;
use crate::shepherd::job::never_ran;
use crate::shepherd::record;
use crate::sys::{clock, identity};

/// What a node is made of.
pub struct NodeParts {
    /// What it knows of itself.
    pub facts: NodeFacts,
    /// What it must never forget.
    pub state: NodeState,
    /// Its lease page.
    pub page: LeasePage,
    /// Its shepherds; those of an earlier agent adopted.
    pub pool: Pool,
    /// Its journal.
    pub journal: Journal,
    /// What the journal said.
    pub ledger: Ledger,
    /// What the adopted shepherds have.
    pub held: Vec<Held>,
    /// The way to its GPUs.
    pub gpus: mpsc::Sender<GpuOrder>,
    /// Told when the agent must not go on.
    pub fatal: oneshot::Sender<Fatal>,
}

impl Node {
    /// Puts a node together.
    pub fn start(parts: NodeParts) -> Self {
        let data = parts.facts.data.clone();
        let on_disk = |attempt| trace(&data, attempt);
        let now = clock::unix_now();
        let (attempts, effects) = Attempts::recover(parts.ledger, parts.held, on_disk, now);
        let over = finished(&data, &attempts);
        // What an earlier agent of this boot was granted still holds: its shepherds go by it.
        let lease_deadline = parts
            .page
            .read()
            .filter(|lease| {
                lease.boot == parts.facts.boot && lease.generation == parts.state.generation
            })
            .map_or(Millis::ZERO, |lease| lease.deadline);
        let mut node = Self {
            facts: parts.facts,
            state: parts.state,
            lease_deadline,
            page: parts.page,
            attempts,
            pool: parts.pool,
            journal: parts.journal,
            gpus: BTreeMap::new(),
            plans: BTreeMap::new(),
            gpu_port: parts.gpus,
            session: None,
            fatal: Some(parts.fatal),
            over,
            launches: super::traces::Launches::default(),
        };
        let adopted = node.attempts.alive_count();
        if adopted > 0 {
            tracing::info!(adopted, "running attempts of an earlier agent found again");
        }
        node.act(effects);
        node
    }
}

/// Looks for what the disk knows of an attempt that no shepherd has, and makes sure that
/// nothing of it runs.
fn trace(data: &Path, attempt: AttemptId) -> Trace {
    if let Some(kept) = record::read(data, attempt) {
        return Trace::Ended(kept.record);
    }
    if !record::folder(data, attempt).exists() {
        return Trace::None;
    }
    identity::kill_by_environment(&attempt.to_string());
    Trace::Begun
}

/// Returns the record of an attempt whose shepherd is gone.
pub(super) fn lost(data: &Path, attempt: AttemptId, detail: &str) -> ExitRecord {
    let begun = record::folder(data, attempt).exists();
    let outcome = if begun { Outcome::Lost } else { Outcome::NotStarted };
    never_ran(outcome, detail.to_owned())
}

/// Lists folders of attempts that are over, oldest first.
fn finished(data: &Path, attempts: &Attempts) -> VecDeque<AttemptId> {
    let Ok(entries) = std::fs::read_dir(data.join("attempts")) else { return VecDeque::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let id = AttemptId::from_uuid(uuid::Uuid::try_parse(&name).ok()?);
            let modified = entry.metadata().and_then(|found| found.modified()).ok()?;
            (!attempts.holds(id)).then_some((modified, id))
        })
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(_, id)| id).collect()
}
