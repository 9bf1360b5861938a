//! Nodes with their GPUs and connections, from agents' reports.

use crate::commands::operator::{OperatorRefusal, RefusalKind};
use crate::rows::overrides::{OperatorEvent, OverrideTarget};
use crate::state::attempts::LiveAttempt;
use crate::state::layouts::{LayoutInProgress, whole};
use crate::state::overrides::refused;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use tessera_frames::cluster::{GpuHealth, GpuReport, Hello, InstanceReport, MigReport};
use tessera_model::isolation::IsolationGap;
use tessera_model::mig::compute::{ComputeSlot, Cut};
use tessera_model::mig::{Geometry, Layout, Profile, Slot, TooManyPlacements};
use tessera_model::number::clamped;
use tessera_model::share::SliceShare;
use tessera_model::{
    AttemptId, BootId, Bytes, GangShape, GpuId, Millis, NodeId, NodeIdentity, NodeName, PlanId,
    SliceId,
};
use tessera_placement::{MigView, SliceKind};

/// The nodes, their GPUs, and their connections.
#[derive(Debug, Default)]
pub(crate) struct NodeInventory {
    pub(crate) nodes: BTreeMap<NodeId, NodeState>,
    pub(crate) gpus: BTreeMap<GpuId, GpuState>,
    /// The shared rules of geometries; equal geometries share them.
    pub(crate) mig_views: Vec<Arc<MigView>>,
    /// Agents that wait until their nodes' former connections have been probed (rule A8).
    pub(crate) duplicates: DuplicateAgents,
    /// Memory of the largest slice that any GPU can have; zero before a GPU is known.
    pub(crate) largest_slice: Bytes,
    /// The largest slices of all GPUs at the last measurement ([`Self::sizes_of_gpus`]).
    pub(crate) known_sizes: u64,
}

/// How often a pause is doubled at most. A bad GPU must not use up the attempts of every queued
/// job, and a repaired one must not wait for hours.
const DOUBLINGS_MAX: u32 = 6;

/// A registered node.
#[derive(Clone, Debug)]
pub(crate) struct NodeState {
    pub(crate) name: NodeName,
    pub(crate) generation: u64,
    pub(crate) lost: bool,
    pub(crate) boot: BootId,
    pub(crate) software: String,
    pub(crate) cores: u32,
    pub(crate) memory_bytes: u64,
    /// Whether its slices can be shared.
    pub(crate) mps: bool,
    pub(crate) kernel: bool,
    pub(crate) session: Option<NodeSession>,
    /// When the node may be declared lost (rule F6).
    pub(crate) expiry: Millis,
    /// When it last reported, milliseconds since 1970.
    pub(crate) last_seen_unix: Millis,
}

/// An accepted connection.
#[derive(Clone, Debug)]
pub(crate) struct NodeSession {
    pub(crate) id: u64,
    /// The agent's process, identified by its random number (rule A8).
    pub(crate) process: u64,
    /// The address at which other nodes reach its node.
    pub(crate) address: String,
    /// Which limits and protections jobs don't have there.
    pub(crate) isolation_gaps: BTreeSet<IsolationGap>,
    /// Whether the agent has reported everything that existed at the welcome.
    pub(crate) ready: bool,
    pub(crate) reported: HashSet<AttemptId>,
}

/// A GPU from its agent's report, with the state of its plans.
#[derive(Clone, Debug)]
pub(crate) struct GpuState {
    pub(crate) node: NodeId,
    pub(crate) report: GpuReport,
    pub(crate) layout_gen: u64,
    pub(crate) mig: Option<Arc<MigView>>,
    /// Whether the agent reported it in its current session.
    pub(crate) fresh: bool,
    pub(crate) open_plan: Option<PlanId>,
    /// The layout that an administrator requested, while the open plan makes it.
    pub(crate) layout_in_progress: Option<LayoutInProgress>,
    /// No plan or attempt starts on it before this time.
    pub(crate) paused_until: Millis,
    /// How many plans failed and attempts were refused since a program last started on it.
    pub(crate) failures: u32,
}

/// Leaves out the placements that the driver refused recently, so that policies don't consider
/// them.
pub(crate) fn without_refused_placements(geometry: &Geometry, refused: &[Slot]) -> Geometry {
    let mut geometry = geometry.clone();
    for profile in &mut geometry.profiles {
        let is_refused = |start: u8| refused.contains(&Slot { start, profile: profile.id });
        profile.starts.retain(|start| !is_refused(*start));
    }
    geometry.profiles.retain(|profile| !profile.starts.is_empty());
    geometry
}

/// Returns the slice in a slot, or that of a compute instance there. With MIG off it is the GPU
/// itself.
pub(crate) fn slice_at(
    report: &GpuReport,
    slot: Option<Slot>,
    part: Option<ComputeSlot>,
) -> Option<SliceId> {
    match slot {
        Some(slot) => {
            let sound = |i: &&InstanceReport| i.slot == slot && i.trouble.is_none();
            let instance = report.instances.iter().find(sound)?;
            match part {
                Some(part) => instance.parts.iter().find(|p| p.slot == part)?.slice.clone(),
                None => instance.slice.clone(),
            }
        }
        None => report.gpu.as_str().parse().ok(),
    }
}

pub(crate) fn layout_name(gpu: &GpuState, layout: &Layout) -> String {
    let cut = |slot: &Slot| gpu.report.instances.iter().find(|i| i.slot == *slot).map(|i| i.cut());
    let name = |slot: &Slot| gpu.cut_name(*slot, cut(slot).unwrap_or_default());
    let names: Vec<_> = layout.iter().map(name).collect();
    if names.is_empty() { "empty".to_owned() } else { names.join(",") }
}

/// Returns the kind of an instance of the profile.
pub(crate) fn kind(model: &str, mig: &MigView, profile: &Profile) -> Option<SliceKind> {
    let whole = u16::from(mig.largest()?.compute_slices.max(1));
    Some(SliceKind {
        model: model.to_owned(),
        profile: profile.name.to_string(),
        part: u16::from(profile.compute_slices) * 1_000 / whole,
    })
}

/// Returns the memory of an instance, or of the whole GPU.
pub(crate) fn capacity(gpu: &GpuState, slot: Option<Slot>) -> Bytes {
    let profile = slot.and_then(|slot| gpu.mig.as_ref()?.geometry.profile(slot.profile));
    profile.map_or(gpu.report.memory, |profile| profile.memory)
}

/// Returns the memory of the largest slice that a GPU can have.
pub(crate) fn largest_of(gpu: &GpuState) -> Option<Bytes> {
    match (&gpu.report.mig, gpu.mig.as_deref()) {
        (MigReport::On { .. }, mig) => Some(mig?.plain().next_back()?.memory),
        (_, _) => Some(gpu.report.memory),
    }
}

/// Returns the largest size that at least so many of the sizes reach.
fn nth_largest(mut sizes: Vec<Bytes>, count: u32) -> Option<Bytes> {
    sizes.sort_unstable();
    let before = sizes.len().checked_sub(usize::try_from(count.max(1)).ok()?)?;
    sizes.get(before).copied()
}

/// An agent that has connected and has no session yet.
#[derive(Clone, Debug)]
pub(crate) struct ConnectedAgent {
    /// Its node, by its certificate.
    pub(crate) peer: NodeIdentity,
    /// The number of the connection.
    pub(crate) session: u64,
    pub(crate) hello: Hello,
}

/// A second agent, which waits until its node's old connection has been probed.
#[derive(Clone, Debug)]
pub(crate) struct DuplicateAgent {
    pub(crate) agent: ConnectedAgent,
    pub(crate) since: Millis,
}

/// The waiting second agents: at most one for each node.
pub(crate) type DuplicateAgents = BTreeMap<NodeId, DuplicateAgent>;

/// All multiprocessors, in percent.
const ALL_PERCENT: f64 = 100.0;

/// How many compute slices a GPU without MIG counts as, the same as for quotas.
const WHOLE: f64 = 7.0;

/// Returns the part of the memory as a number from 0 to 1.
pub(crate) fn fraction_of(part: Bytes, whole: Bytes) -> f64 {
    let mebibytes = |bytes: Bytes| f64::from(clamped::<u32>(bytes.get() >> 20));
    (mebibytes(part) / mebibytes(whole).max(1.0)).min(1.0)
}

impl NodeState {
    /// Returns whether its agent is connected and has completed its report.
    pub(crate) fn is_ready(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.ready)
    }
}

impl GpuState {
    /// Pauses the GPU, twice as long each time.
    pub(crate) fn pause_attempts(&mut self, pause: Millis, now: Millis) {
        let doubled = pause.get() << self.failures.min(DOUBLINGS_MAX);
        self.paused_until = now.plus(Millis::new(doubled));
        self.failures = self.failures.saturating_add(1);
    }

    /// Returns why nothing can be planned on a GPU whose driver lists more placements than the
    /// state machine can hold. No known GPU has a quarter of them.
    pub(crate) fn explain_unplannable(&self) -> Option<String> {
        let MigReport::On { geometry } = &self.report.mig else { return None };
        if self.mig.is_some() {
            return None;
        }
        let too_many =
            MigView::new(without_refused_placements(geometry, &self.report.refused)).err()?;
        let TooManyPlacements { placements, most } = too_many;
        Some(format!(
            "its driver lists {placements} placements of instances, and Tessera can plan with at \
             most {most}: its layout is not changed"
        ))
    }

    /// Such as `2g.10gb@4`.
    pub(crate) fn slot_name(&self, slot: Slot) -> String {
        let profile = match &self.report.mig {
            MigReport::On { geometry } => geometry.profile(slot.profile),
            MigReport::Off | MigReport::Unsupported => None,
        };
        match profile {
            Some(profile) => format!("{}@{}", profile.name, slot.start),
            None => format!("instance@{}", slot.start),
        }
    }

    /// Such as `1c+2c.3g.20gb@4` for a divided instance.
    pub(crate) fn cut_name(&self, slot: Slot, cut: Cut) -> String {
        let name = self.slot_name(slot);
        match &self.report.mig {
            MigReport::On { geometry } if !cut.is_empty() && cut != whole(geometry, slot) => {
                format!("{cut}.{name}")
            }
            MigReport::On { .. } | MigReport::Off | MigReport::Unsupported => name,
        }
    }

    /// Returns the current layout as text.
    pub(crate) fn layout_text(&self) -> String {
        layout_name(self, &self.report.instances.iter().map(|i| i.slot).collect())
    }

    /// Returns `R` of a layout, over the plain profiles.
    pub(crate) fn count_full_layouts(&self, layout: &Layout) -> usize {
        let reach = |mig: &MigView| mig.full_layouts(mig.all().state(layout)?);
        self.mig.as_deref().and_then(reach).unwrap_or(0)
    }
}

impl NodeInventory {
    /// Returns the largest size that every member of a gang could have at once, on the GPUs that
    /// count. For a job outside of gangs it is the largest slice.
    pub(crate) fn largest_size(
        &self,
        shape: Option<GangShape>,
        counts: impl Fn(&GpuState) -> bool,
    ) -> Bytes {
        let (nodes, each) = shape.map_or((1, 1), |shape| (shape.nodes(), shape.per_node()));
        let mut by_node: BTreeMap<NodeId, Vec<Bytes>> = BTreeMap::new();
        for gpu in self.gpus.values().filter(|gpu| counts(gpu)) {
            by_node.entry(gpu.node).or_default().extend(largest_of(gpu));
        }
        let of_nodes = by_node.into_values().filter_map(|sizes| nth_largest(sizes, each));
        nth_largest(of_nodes.collect(), nodes).unwrap_or(Bytes::ZERO)
    }

    /// Returns a number that changes with the largest slice of any GPU, and with the nodes that have them.
    pub(crate) fn sizes_of_gpus(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for gpu in self.gpus.values() {
            (gpu.node, largest_of(gpu)).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Returns whether a node's agent is connected and has completed its report.
    pub(crate) fn is_ready(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(NodeState::is_ready)
    }

    /// Returns the nodes that are not lost, and how many of them have not renewed their leases.
    pub(crate) fn count_overdue(&self, now: Millis) -> (usize, usize) {
        let members = self.nodes.values().filter(|node| !node.lost);
        members.fold((0, 0), |(all, overdue), node| {
            (all + 1, overdue + usize::from(now >= node.expiry))
        })
    }

    /// Returns whether new attempts may start on a GPU.
    pub(crate) fn is_available(&self, gpu: &GpuState, now: Millis) -> bool {
        let node = self.nodes.get(&gpu.node);
        let connected = node.is_some_and(|node| !node.lost && node.is_ready());
        connected && gpu.fresh && gpu.report.health == GpuHealth::Healthy && now >= gpu.paused_until
    }

    /// Returns the slice on which an attempt would run, if it exists and was reported in the node's
    /// current session.
    pub(crate) fn standing_slice(&self, live: &LiveAttempt) -> Option<SliceId> {
        let gpu = self.gpus.get(&live.gpu).filter(|gpu| gpu.fresh)?;
        slice_at(&gpu.report, live.slot, live.part())
    }

    /// Returns the shared rules of a GPU's geometry; equal geometries share them.
    pub(crate) fn mig_view(&mut self, report: &GpuReport) -> Option<Arc<MigView>> {
        let MigReport::On { geometry } = &report.mig else { return None };
        let geometry = &without_refused_placements(geometry, &report.refused);
        if let Some(known) = self.mig_views.iter().find(|view| view.geometry == *geometry) {
            return Some(Arc::clone(known));
        }
        // More placements than any known GPU has: see `GpuState::unplannable`.
        let view = Arc::new(MigView::new(geometry.clone()).ok()?);
        self.mig_views.push(Arc::clone(&view));
        Some(view)
    }

    /// Returns whether a connection is the node's session.
    pub(crate) fn is_session(&mut self, node: NodeId, session: u64) -> bool {
        self.session_mut(node).is_some_and(|current| current.id == session)
    }

    pub(crate) fn session_mut(&mut self, node: NodeId) -> Option<&mut NodeSession> {
        self.nodes.get_mut(&node)?.session.as_mut()
    }

    pub(crate) fn close_session(&mut self, node: NodeId, session: u64) {
        if let Some(known) = self.nodes.get_mut(&node)
            && known.session.as_ref().is_some_and(|s| s.id == session)
        {
            known.session = None;
        }
    }

    /// Records that a session which is not ready yet has reported an attempt.
    pub(crate) fn note_reported(&mut self, node: NodeId, attempt: AttemptId) {
        if let Some(session) = self.session_mut(node).filter(|session| !session.ready) {
            session.reported.insert(attempt);
        }
    }

    /// Returns whether a plan is the open one of the node's GPU.
    pub(crate) fn is_open_plan(&self, node: NodeId, gpu: &GpuId, plan: PlanId) -> bool {
        self.gpus.get(gpu).is_some_and(|gpu| gpu.node == node && gpu.open_plan == Some(plan))
    }

    /// Returns the kind of slice in a slot.
    pub(crate) fn slice_kind(&self, gpu: &GpuId, slot: Option<Slot>) -> Option<SliceKind> {
        let gpu = self.gpus.get(gpu)?;
        match (slot, gpu.mig.as_deref()) {
            (None, _) => Some(SliceKind::whole(&gpu.report.model)),
            (Some(slot), Some(mig)) => {
                kind(&gpu.report.model, mig, mig.geometry.profile(slot.profile)?)
            }
            (Some(_), None) => None,
        }
    }

    pub(crate) fn placement_name(&self, id: &GpuId, slot: Option<Slot>) -> String {
        let Some(gpu) = self.gpus.get(id) else { return id.to_string() };
        let name = self.gpu_name(gpu);
        slot.map_or_else(|| name.clone(), |slot| format!("{} of {name}", gpu.slot_name(slot)))
    }

    pub(crate) fn geometry(&self, gpu: &GpuId) -> Option<&Geometry> {
        match &self.gpus.get(gpu)?.report.mig {
            MigReport::On { geometry } => Some(geometry),
            MigReport::Off | MigReport::Unsupported => None,
        }
    }

    pub(crate) fn find_gpu(&self, gpu: &GpuId) -> Result<&GpuState, OperatorRefusal> {
        let missing = || refused(RefusalKind::NotFound, format!("there is no {gpu}"));
        self.gpus.get(gpu).ok_or_else(missing)
    }

    /// Such as `GPU 0 of node a`.
    pub(crate) fn gpu_name(&self, gpu: &GpuState) -> String {
        let node = self.nodes.get(&gpu.node).map_or("?", |node| node.name.as_str());
        format!("GPU {} of node {node}", gpu.report.index)
    }

    pub(crate) fn name_of(&self, target: &OverrideTarget) -> String {
        let gpu_name = |gpu: &GpuId| {
            self.gpus.get(gpu).map_or_else(|| gpu.to_string(), |gpu| self.gpu_name(gpu))
        };
        match target {
            OverrideTarget::Node(node) => {
                let name = self.nodes.get(node).map(|node| node.name.to_string());
                format!("node {}", name.unwrap_or_else(|| node.to_string()))
            }
            OverrideTarget::Gpu(gpu) => gpu_name(gpu),
            OverrideTarget::Slice(gpu, slot) => {
                let slot = self.gpus.get(gpu).map(|gpu| gpu.slot_name(*slot));
                format!("{} of {}", slot.unwrap_or_default(), gpu_name(gpu))
            }
        }
    }

    pub(crate) fn operator_event(
        &self,
        kind: &'static str,
        target: &OverrideTarget,
        by: &str,
        text: String,
    ) -> OperatorEvent {
        let (node, gpu) = match target {
            OverrideTarget::Node(node) => (Some(*node), None),
            OverrideTarget::Gpu(gpu) | OverrideTarget::Slice(gpu, _) => {
                (self.gpus.get(gpu).map(|known| known.node), Some(gpu.clone()))
            }
        };
        let node = node.and_then(|id| self.nodes.get(&id)).map(|node| node.name.to_string());
        OperatorEvent { kind, node, gpu, by: Some(by.to_owned()), text }
    }

    /// Returns the weight of an attempt in usage, in compute slices. A sharing job counts by its
    /// percentage of the slices; with kernel-level sharing, by its part of the memory.
    pub(crate) fn usage_weight(
        &self,
        gpu: &GpuId,
        slot: Option<Slot>,
        part: Option<SliceShare>,
    ) -> f64 {
        let known = self.gpus.get(gpu);
        let profile = slot.and_then(|slot| {
            known.and_then(|gpu| gpu.mig.as_ref()?.geometry.profile(slot.profile))
        });
        let slices = profile.map_or(WHOLE, |profile| f64::from(profile.compute_slices));
        let memory = profile.map(|profile| profile.memory);
        let memory = memory.or(known.map(|gpu| gpu.report.memory)).unwrap_or(Bytes::ZERO);
        match part {
            None => slices,
            Some(SliceShare::Compute(share)) => f64::from(share.slot.slices),
            Some(SliceShare::Mps(share)) => slices * f64::from(share.sm.get()) / ALL_PERCENT,
            Some(SliceShare::Kernel(share)) => slices * fraction_of(share.memory, memory),
        }
    }
}
