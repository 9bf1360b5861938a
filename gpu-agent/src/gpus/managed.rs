//! The body of a GPU's actor: queries the driver, lets the pure core decide, and reports to the node.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use tessera_frames::cluster::{
    FaultAction, FaultCause, GpuHealth, GpuReport, InstanceReport, InstanceTrouble, MigReport,
    Quarantine,
};
use tessera_model::mig::Slot;
use tessera_model::{BootId, GpuId, Millis};
use tokio::sync::mpsc;

use super::file::{self, GpuFile, GpuFileWriter};
use crate::messages::NodeInput;
use crate::messages::gpu::GpuNumbers;
use crate::messages::gpu::{AttemptFault, ErrorSource, GpuEvent, ReportedError};
use crate::nvml::client::{NvmlClient, NvmlFailed};
use crate::nvml::messages::{NvmlReply, NvmlRequest};
use crate::sys::clock;
use crate::sys::holders::{DeviceFiles, Holder, holders};
use tessera_agent_core::attribution::InstanceNumbers;
use tessera_agent_core::health::ObservedFault;
use tessera_agent_core::nvml::error::NvmlCallError;
use tessera_agent_core::nvml::facts::{GpuFacts, InstanceFacts};
use tessera_agent_core::ownership::AdoptionPolicy;
use tessera_agent_core::plan::StepInstance;
use tessera_agent_core::xids;

/// Maximum number of pids of foreign processes in a report.
const FOREIGN_MAX: usize = 16;
/// How long an instance that could not be changed is not tried again.
const PROBE_EVERY: Millis = Millis::from_secs(60);
/// How long a placement that the driver refused is not tried again.
pub(super) const REFUSED_FOR: Millis = Millis::from_secs(600);
/// Errors under way to one GPU; a driver that reports more at once repeats itself.
pub const NOTICES_MAX: usize = 64;

/// What the implementation of a GPU needs.
#[derive(Clone, Debug)]
pub struct GpuTools {
    /// The way to its driver.
    pub nvml: NvmlClient,
    /// The way to the node.
    pub node: mpsc::Sender<NodeInput>,
    /// The data folder.
    pub data: PathBuf,
    /// Tries of a blocked step.
    pub tries_max: u32,
    /// When instances that the node did not create become its own.
    pub adopt: AdoptionPolicy,
    /// The boot that the GPU lives in.
    pub boot: BootId,
    /// Where device files are.
    pub files: DeviceFiles,
}

/// One GPU.
pub struct ManagedGpu {
    /// UUID of the GPU.
    pub id: GpuId,
    pub(super) tools: GpuTools,
    pub(super) file: GpuFile,
    /// What is on disk.
    pub(super) saved: GpuFile,
    pub(super) keeper: GpuFileWriter,
    /// Its last known state, maybe from an earlier agent.
    pub(super) facts: Option<GpuFacts>,
    /// Whether it was read since this agent started.
    pub(super) read: bool,
    pub(super) stuck: BTreeMap<Slot, StuckInstance>,
    /// Legal placements that the driver refused, and until when they are not tried.
    pub(super) refused: BTreeMap<Slot, Millis>,
    /// What keeps the driver from reporting its state.
    trouble: Option<GpuHealth>,
    pub(super) numbers: InstanceNumbers,
    pub(super) notices: mpsc::Receiver<ReportedError>,
    /// Errors that one source reported and the other has yet to report.
    pub(super) halves: VecDeque<(ErrorSource, ReportedError)>,
}

/// An instance that could not be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StuckInstance {
    pub(super) reason: String,
    /// When it is tried again, on the boot clock.
    pub(super) probe_at: Millis,
}

impl ManagedGpu {
    /// Adds a GPU. `facts` is its last known state from an earlier agent, in case its driver is
    /// gone.
    pub fn new(
        id: GpuId,
        tools: GpuTools,
        file: GpuFile,
        facts: Option<GpuFacts>,
        notices: mpsc::Receiver<ReportedError>,
    ) -> Self {
        Self {
            keeper: GpuFileWriter::new(&tools.data, &id),
            id,
            tools,
            saved: file.clone(),
            file,
            facts,
            read: false,
            stuck: BTreeMap::new(),
            refused: BTreeMap::new(),
            trouble: None,
            numbers: InstanceNumbers::default(),
            notices,
            halves: VecDeque::new(),
        }
    }

    /// Reads the GPU, repairs what an earlier agent or a new boot left, and reports its state to
    /// the node.
    pub async fn look(&mut self) {
        let first = !self.read;
        if self.refresh().await.is_err() {
            return;
        }
        let intent = self.file.intent;
        if intent.is_some() {
            // The result of a dead agent's step has just been read.
            self.forget_intent();
        }
        self.restore().await;
        if first {
            self.finish(intent).await;
        }
        self.tidy().await;
        self.probe().await;
    }

    /// Reads the GPU, and reports its state to the node.
    ///
    /// # Errors
    ///
    /// The driver refused or didn't answer; the node has been notified.
    pub async fn refresh(&mut self) -> Result<(), NvmlFailed> {
        let result = match self.query_facts().await {
            Err(NvmlFailed::Refused(fault)) if fault.is_loss() => {
                // Too serious to be trusted at once; the time of the first report counts.
                self.query_facts().await.map_err(|_| NvmlFailed::Refused(fault))
            }
            other => other,
        };
        let result = match result {
            Ok(facts) => {
                self.absorb(facts);
                Ok(())
            }
            Err(failed) => {
                self.blame(&failed).await;
                Err(failed)
            }
        };
        self.save();
        self.send_report().await;
        result
    }

    async fn query_facts(&self) -> Result<GpuFacts, NvmlFailed> {
        match self.tools.nvml.request(NvmlRequest::Read(self.id.clone())).await? {
            NvmlReply::Gpu(facts) => Ok(*facts),
            NvmlReply::Gpus(_)
            | NvmlReply::One(_)
            | NvmlReply::Advice(_)
            | NvmlReply::Sample(_)
            | NvmlReply::Done
            | NvmlReply::Failed(_) => Err(NvmlFailed::NoAnswer),
        }
    }

    fn absorb(&mut self, facts: GpuFacts) {
        let (boot, now) = (self.tools.boot, clock::unix_now());
        self.trouble = None;
        self.file.health.read(xids::advised(facts.recovery), boot, now);
        if !std::mem::replace(&mut self.read, true) {
            // Before anything else of this boot is recorded, or what the boot removed would be
            // lost.
            self.file.ownership.look(&facts, boot);
        }
        if self.facts.as_ref().is_none_or(|known| identity(known) != identity(&facts)) {
            let kept = file::keep_seen(&self.tools.data, &facts);
            if let Err(error) = kept {
                tracing::warn!(gpu = %self.id, %error, "the GPU's last known state can't be \
                                                        stored");
            }
        }
        self.take_in(facts);
    }

    /// Records what exists in one slot, as just read.
    pub(super) fn absorb_one(&mut self, slot: Slot, found: Option<InstanceFacts>) {
        let Some(mut facts) = self.facts.clone() else { return };
        facts.instances.retain(|instance| instance.slot != slot);
        facts.instances.extend(found);
        facts.instances.sort_by_key(|instance| instance.slot);
        self.take_in(facts);
    }

    fn take_in(&mut self, facts: GpuFacts) {
        let intent = self.file.intent;
        self.file.ownership.observe(&facts, self.tools.boot, intent, self.tools.adopt);
        let numbers = facts.instances.iter().map(|i| (i.number, i.slot)).collect();
        self.numbers.record_standing(clock::unix_now(), numbers);
        let stands = |slot: &Slot| facts.instances.iter().any(|i| i.slot == *slot);
        self.stuck.retain(|slot, _| stands(slot));
        if self.facts.as_ref().is_none_or(|known| slots(known) != slots(&facts)) {
            // Another layout may have space for what did not fit into this one.
            self.refused.clear();
        }
        self.facts = Some(facts);
    }

    /// Records that the driver refused a request, or didn't answer.
    async fn blame(&mut self, failed: &NvmlFailed) {
        let at_unix = clock::unix_now();
        let was_faulty = matches!(self.trouble, Some(GpuHealth::Faulty { .. }));
        let (cause, action, message) = match failed {
            NvmlFailed::NoAnswer => {
                self.trouble = Some(GpuHealth::Unresponsive);
                (FaultCause::Silence, FaultAction::Record, failed.to_string())
            }
            NvmlFailed::Refused(fault) => {
                let reason = fault.to_string();
                self.trouble = Some(GpuHealth::Faulty { reason: reason.clone() });
                let lost = fault.is_loss();
                let action = if lost { FaultAction::ResetGpu } else { FaultAction::Record };
                let NvmlCallError { call, code } = fault.clone();
                (FaultCause::Nvml { call, code }, action, reason)
            }
        };
        let seen = ObservedFault {
            at_unix,
            cause: cause.clone(),
            slot: None,
            action,
            // A GPU that answers again is healthy again.
            advised: true,
            message,
        };
        let fresh = self.file.health.note(seen, self.tools.boot);
        if fresh {
            tracing::warn!(gpu = %self.id, %failed, "the GPU can't be read");
        }
        if !was_faulty && action >= FaultAction::ResetGpu {
            let gpu = self.id.clone();
            let strike = AttemptFault { gpu, at_unix, cause, action, slot: None, pid: None };
            self.send(GpuEvent::Struck(strike)).await;
        }
    }

    /// Tries again what could not be changed.
    async fn probe(&mut self) {
        let now = clock::boot_now();
        let due: Vec<_> =
            self.stuck.iter().filter(|(_, stuck)| stuck.probe_at <= now).map(|(s, _)| *s).collect();
        for slot in due {
            let users = self.instance(slot).map_or(0, |instance| instance.users.len());
            let held = self.holders(slot).await;
            let Some(stuck) = self.stuck.get_mut(&slot) else { continue };
            if users == 0 && held.is_empty() {
                self.stuck.remove(&slot);
            } else {
                stuck.probe_at = now.plus(PROBE_EVERY);
            }
        }
        self.send_report().await;
    }

    /// Marks what could not be changed, with the processes that hold it.
    pub(super) async fn mark_stuck(&mut self, slot: Slot, reason: String) {
        let held = self.holders(slot).await;
        let reason = match &held[..] {
            [] => reason,
            held => {
                let names: Vec<_> = held.iter().map(ToString::to_string).collect();
                format!("{reason}; held by {}", names.join(", "))
            }
        };
        tracing::warn!(gpu = %self.id, start = slot.start, reason, "an instance is stuck");
        let probe_at = clock::boot_now().plus(PROBE_EVERY);
        self.stuck.insert(slot, StuckInstance { reason, probe_at });
    }

    /// Finds the processes that keep an instance open.
    pub(super) async fn holders(&self, slot: Slot) -> Vec<Holder> {
        let Some(facts) = &self.facts else { return Vec::new() };
        let Some(instance) = self.instance(slot) else { return Vec::new() };
        let (minor, number) = (facts.minor.unwrap_or(facts.index), instance.number);
        let files = self.tools.files.clone();
        let scan = tokio::task::spawn_blocking(move || holders(&files, minor, number));
        scan.await.unwrap_or_default()
    }

    /// Clears the record of faults of the GPU or of one instance, and reads it again.
    pub async fn clear(&mut self, slot: Option<Slot>) {
        tracing::info!(gpu = %self.id, ?slot, "cleared at an operator's request");
        match slot {
            Some(slot) => {
                self.stuck.remove(&slot);
                self.refused.remove(&slot);
                if let Some(instance) = self.instance(slot).cloned() {
                    self.file.ownership.take(&instance);
                }
            }
            None => {
                self.stuck.clear();
                self.refused.clear();
                self.file.health.clear();
            }
        }
        self.look().await;
        if slot.is_none() && matches!(self.trouble, Some(GpuHealth::Faulty { .. })) {
            // A GPU that was taken out is not reported after the next start.
            file::forget_seen(&self.tools.data, &self.id);
        }
    }

    /// Writes the file to disk, if it has changed.
    pub(super) fn save(&mut self) {
        if self.file == self.saved {
            return;
        }
        match self.keeper.save(&self.file) {
            Ok(()) => self.saved = self.file.clone(),
            Err(error) => {
                tracing::error!(gpu = %self.id, %error, "a GPU's file can't be written");
            }
        }
    }

    pub(super) fn instance(&self, slot: Slot) -> Option<&InstanceFacts> {
        self.facts.as_ref()?.instances.iter().find(|instance| instance.slot == slot)
    }

    /// Returns whether it was read by this agent, answered last time, and can be partitioned.
    pub(super) fn is_known(&self) -> bool {
        let on = |facts: &GpuFacts| matches!(facts.mig, MigReport::On { .. });
        self.read && self.trouble.is_none() && self.facts.as_ref().is_some_and(on)
    }

    /// Returns what exists in one slot, by its last reading.
    pub(super) fn standing(&self, slot: Slot) -> Option<StepInstance> {
        let facts = self.facts.as_ref()?;
        let MigReport::On { geometry } = &facts.mig else { return None };
        let compute_slices = geometry.profile(slot.profile).map_or(0, |p| p.compute_slices);
        self.instance(slot).map(|found| StepInstance {
            whole: found.slice.is_some(),
            cut: found.cut(compute_slices),
            used: !found.users.is_empty(),
            ours: self.file.ownership.is_ours(found),
        })
    }

    pub(super) async fn send_report(&mut self) {
        if let Some(facts) = &self.facts {
            let instances = facts.instances.iter().map(|i| (i.slot, i.number)).collect();
            let numbers = GpuNumbers { minor: facts.minor.unwrap_or(facts.index), instances };
            self.send(GpuEvent::Numbered(self.id.clone(), numbers)).await;
        }
        if let Some(report) = self.report() {
            self.send(GpuEvent::Changed(Box::new(report))).await;
        }
    }

    fn report(&mut self) -> Option<GpuReport> {
        let now = clock::boot_now();
        self.refused.retain(|_, until| now < *until);
        let facts = self.facts.as_ref()?;
        let instance = |facts: &InstanceFacts| InstanceReport {
            slot: facts.slot,
            slice: facts.slice.clone(),
            memory: facts.memory,
            sms: facts.sms,
            trouble: self.trouble_of(facts),
            parts: facts.parts.clone(),
        };
        let broken = self.file.health.broken().map(|reason| GpuHealth::Faulty { reason });
        Some(GpuReport {
            gpu: self.id.clone(),
            index: facts.index,
            model: facts.model.clone(),
            memory: facts.memory,
            sms: facts.multiprocessors(),
            mig: facts.mig.clone(),
            instances: facts.instances.iter().map(instance).collect(),
            layout_gen: self.file.layout_gen,
            health: self.trouble.clone().or(broken).unwrap_or(GpuHealth::Healthy),
            faults: self.file.health.faults().to_vec(),
            quarantine: self.quarantine(facts),
            refused: self.refused.keys().copied().collect(),
        })
    }

    fn quarantine(&self, facts: &GpuFacts) -> Option<Quarantine> {
        let now = clock::unix_now();
        let held_against_it = self.file.health.quarantine(now);
        held_against_it.or_else(|| {
            facts.remap_pending.then(|| Quarantine {
                since_unix: Millis::ZERO,
                until_unix: None,
                reason: "a row of its memory waits to be remapped: reset the GPU once it is idle"
                    .to_owned(),
            })
        })
    }

    fn trouble_of(&self, facts: &InstanceFacts) -> Option<InstanceTrouble> {
        if let Some(stuck) = self.stuck.get(&facts.slot) {
            return Some(InstanceTrouble::Stuck { reason: stuck.reason.clone() });
        }
        let foreign = facts.users.iter().filter(|user| !user.ours).map(|user| user.pid);
        let pids: Vec<u32> = foreign.take(FOREIGN_MAX).collect();
        let trouble = !pids.is_empty() || !self.file.ownership.is_ours(facts);
        trouble.then_some(InstanceTrouble::Foreign { pids })
    }

    pub(super) async fn send(&self, event: GpuEvent) {
        // Fails only when the agent is going down.
        let _ = self.tools.node.send(NodeInput::Gpu(event)).await;
    }
}

fn slots(facts: &GpuFacts) -> Vec<Slot> {
    facts.instances.iter().map(|instance| instance.slot).collect()
}

/// The known facts about a GPU while its driver is gone.
fn identity(facts: &GpuFacts) -> (u32, &str, &MigReport, Option<&str>) {
    (facts.index, &facts.model, &facts.mig, facts.bus.as_deref())
}

/// How often a GPU is read for changes that others made (G9).
pub const READ_EVERY: Duration = Duration::from_secs(10);
