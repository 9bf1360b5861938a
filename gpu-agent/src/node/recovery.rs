//! Setting a node up: from nothing, or from what an earlier agent left.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::SystemTime;

use tessera_frames::cluster::ExitRecord;
use tessera_model::life::Outcome;
use tessera_model::{AttemptId, Millis};
use tokio::sync::{mpsc, oneshot};

use super::{AgentNode, FatalRefusal, NodeFacts};
use crate::accounts::AccountCache;
use crate::disk::NodeState;
use crate::journal::Journal;
use crate::kernel::EndpointHandle;
use crate::lease_page::LeasePage;
use crate::messages::NodeInput;
use crate::messages::gpu::GpuOrder;
use crate::messages::mps::MpsOrder;
use crate::messages::telemetry::TelemetryEvent;
use crate::outputs::OutputKeeper;
use crate::pool::ShepherdPool;
use crate::shepherd::job::never_ran;
use crate::shepherd::{files, now, record};
use crate::sys::{clock, identity};
use tessera_agent_core::attempts::{AttemptTrace, Attempts, HeldAttempt};
use tessera_agent_core::ledger::AttemptLedger;

/// What the node actor is built from.
pub struct NodeParts {
    /// What it knows about itself.
    pub facts: NodeFacts,
    /// What it must never forget.
    pub state: NodeState,
    /// Its lease page.
    pub page: LeasePage,
    /// Its shepherds; those of an earlier agent adopted.
    pub pool: ShepherdPool,
    /// Where the node records what it must not forget.
    pub journal: Journal,
    /// The state that results from the journal's records.
    pub ledger: AttemptLedger,
    /// The attempts of the adopted shepherds.
    pub held: Vec<HeldAttempt>,
    /// The keeper of attempts' outputs.
    pub outputs: OutputKeeper,
    /// The way to its GPUs.
    pub gpus: mpsc::Sender<GpuOrder>,
    /// The way to the sampling of its GPUs.
    pub telemetry: mpsc::Sender<TelemetryEvent>,
    /// The way to its shared slices.
    pub mps: mpsc::Sender<MpsOrder>,
    /// The way to the kernel queues, if there are any.
    pub kernel_endpoint: Option<EndpointHandle>,
    /// The way to the doctor.
    pub doctor: mpsc::Sender<u64>,
    /// Where this node's inputs come from.
    pub inputs: mpsc::Sender<NodeInput>,
    /// Completes when the agent must not continue.
    pub fatal: oneshot::Sender<FatalRefusal>,
}

impl AgentNode {
    /// Creates a node.
    pub fn start(parts: NodeParts) -> Self {
        let data = parts.facts.data.clone();
        let begun = begun(&data, &parts.ledger);
        let on_disk = |attempt| trace(&data, &begun, attempt);
        let now = clock::unix_now();
        let (attempts, effects) = Attempts::recover(parts.ledger, parts.held, on_disk, now);
        parts.outputs.found(finished(&data, &attempts));
        // A lease of an earlier agent of this boot is still valid: its shepherds rely on it.
        let lease_deadline = parts
            .page
            .read()
            .filter(|lease| {
                lease.boot == parts.facts.boot && lease.generation == parts.state.generation
            })
            .map_or(Millis::ZERO, |lease| lease.deadline);
        let described = parts.facts.containers.described(&parts.facts.data);
        let mut node = Self {
            described,
            facts: parts.facts,
            state: parts.state,
            lease_deadline,
            page: parts.page,
            attempts,
            pool: parts.pool,
            journal: parts.journal,
            gpus: BTreeMap::new(),
            gpu_numbers: BTreeMap::new(),
            plans: BTreeMap::new(),
            gpu_port: parts.gpus,
            telemetry: parts.telemetry,
            doctor_port: parts.doctor,
            session: None,
            fatal: Some(parts.fatal),
            outputs: parts.outputs,
            launches: super::traces::LaunchSpans::default(),
            mps: parts.mps,
            shared: crate::mps::noted(&data),
            unshared: BTreeMap::new(),
            kernel_endpoint: parts.kernel_endpoint,
            queued: BTreeSet::new(),
            kernel_reports: super::kernel_queue::KernelReports::default(),
            needs: std::collections::BTreeMap::new(),
            accounts: AccountCache::default(),
            job_accounts: BTreeMap::new(),
            inputs: parts.inputs,
        };
        let alive = node.attempts.alive_ids();
        node.shared.retain(|attempt| alive.contains(attempt));
        node.readmit_attempts(&alive);
        node.send_to_mps(MpsOrder::Adopt(alive));
        let adopted = node.attempts.alive_count();
        if adopted > 0 {
            tracing::info!(adopted, "running attempts of an earlier agent found again");
        }
        node.send_telemetry(TelemetryEvent::Inventory(node.attempts.tenancies()));
        node.act(effects);
        node
    }
}

/// Finds what is on disk about an attempt without a shepherd, and makes sure that nothing of it
/// runs.
fn trace(data: &Path, begun: &BTreeSet<AttemptId>, attempt: AttemptId) -> AttemptTrace {
    if let Some(kept) = record::read(data, attempt) {
        return AttemptTrace::Ended(kept.record);
    }
    if !begun.contains(&attempt) {
        return AttemptTrace::None;
    }
    identity::kill_by_environment(&attempt.to_string());
    AttemptTrace::Begun
}

/// Returns the record of an attempt whose shepherd is gone.
pub(super) fn lost(begun: bool, detail: &str) -> ExitRecord {
    let outcome = if begun { Outcome::Lost } else { Outcome::NotStarted };
    never_ran(outcome, detail.to_owned())
}

/// Lists the attempts that shepherds have begun, and removes the notes of dead ones that name
/// nothing which the journal doesn't.
fn begun(data: &Path, ledger: &AttemptLedger) -> BTreeSet<AttemptId> {
    let mut begun = BTreeSet::new();
    for (attempt, note) in now::read_all(data) {
        let unknown_end = matches!(ledger.live.get(&attempt), Some((_, None)));
        // The shepherd of this note is alive.
        if !unknown_end && !note.with_extension("id").exists() {
            let _ = std::fs::remove_file(note);
        }
        begun.insert(attempt);
    }
    begun
}

/// Lists attempts that have ended and left files, oldest first.
fn finished(data: &Path, attempts: &Attempts) -> Vec<(SystemTime, AttemptId)> {
    let entries = [data.join("attempts"), files::outputs(data)].map(std::fs::read_dir);
    let mut found: BTreeMap<AttemptId, SystemTime> = BTreeMap::new();
    for entry in entries.into_iter().flatten().flatten().flatten() {
        let name = entry.file_name();
        let stem = Path::new(&name).file_stem().and_then(|stem| stem.to_str());
        let Some(uuid) = stem.and_then(|stem| uuid::Uuid::try_parse(stem).ok()) else { continue };
        let id = AttemptId::from_uuid(uuid);
        // Of the link, if it is one: the user's own file may be older or newer.
        let Ok(modified) = entry.metadata().and_then(|found| found.modified()) else { continue };
        if !attempts.holds(id) {
            let newest = found.entry(id).or_insert(modified);
            *newest = modified.max(*newest);
        }
    }
    let mut found: Vec<_> = found.into_iter().map(|(id, modified)| (modified, id)).collect();
    found.sort_unstable();
    found
}
