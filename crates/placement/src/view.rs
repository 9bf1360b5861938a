//! The cluster as a policy sees it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tessera_model::mig::compute::{self, ComputeName, ComputeSlot, Cut};
use tessera_model::mig::{
    Geometry, Layout, MigState, Profile, ProfileId, ReachabilityMeasure, Slot, StateSpace,
    TooManyPlacements,
};
use tessera_model::place::PlaceFilter;
use tessera_model::share::SliceShare;
use tessera_model::spec::{GpuRequest, QueueRank};
use tessera_model::{Bytes, GangMember, GpuId, JobId, Millis, NodeName};

use crate::kernel_sharing::KernelSharer;
use crate::placement_search::LayoutIndex;

mod tenancy;

pub use tenancy::{MpsClient, SharingRequest, Tenancy};

/// The cluster at one moment: every GPU that agents reported, in a fixed order (node name, then
/// index on the node). The order is part of the input: policies break ties by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// The GPUs.
    pub gpus: Vec<GpuView>,
}

/// Which GPUs of a cluster are alike.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuKinds {
    /// The first GPU of each kind, by its place in the view.
    pub(crate) first: Vec<usize>,
    /// The kind of each GPU, in the order of the view.
    pub(crate) kind_of: Vec<usize>,
}

impl ClusterView {
    /// Returns the part of the cluster that a filter allows.
    #[must_use]
    pub fn within(&self, filter: &PlaceFilter) -> Self {
        let allowed = |gpu: &&GpuView| filter.allows(&gpu.node, &gpu.model);
        Self { gpus: self.gpus.iter().filter(allowed).cloned().collect() }
    }

    /// Returns the kinds of GPUs in the order in which they appear. Thousands of jobs are predicted for a handful
    /// of kinds.
    pub(crate) fn gpu_kinds(&self) -> GpuKinds {
        let mut kinds = GpuKinds::default();
        for (at, gpu) in self.gpus.iter().enumerate() {
            let alike = |first: &usize| self.gpus[*first].is_same_kind(gpu);
            let kind = kinds.first.iter().position(alike).unwrap_or_else(|| {
                kinds.first.push(at);
                kinds.first.len() - 1
            });
            kinds.kind_of.push(kind);
        }
        kinds
    }

    /// Returns one GPU of each kind.
    pub(crate) fn one_of_each_kind(&self) -> Vec<&GpuView> {
        self.gpu_kinds().first.into_iter().map(|at| &self.gpus[at]).collect()
    }
}

/// One GPU as its agent last reported it, with what has been decided since laid over it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuView {
    /// Its UUID.
    pub id: GpuId,
    /// The node it is in.
    pub node: NodeName,
    /// Its index on the node.
    pub index: u32,
    /// The driver's name for the board.
    pub model: String,
    /// Memory of the whole GPU.
    pub memory: Bytes,
    /// Streaming multiprocessors of the whole GPU, if the driver reports them.
    pub sms: Option<u16>,
    /// Reported profiles and placements; `None` where MIG is off or not supported. Left out where
    /// a view is written down: [`crate::record`] writes it once for all GPUs of a kind.
    #[serde(skip)]
    pub mig: Option<Arc<MigView>>,
    /// Whether its node can share slices under MPS: it has NVIDIA's MPS control program.
    pub mps: bool,
    /// Whether its node can share slices kernel by kernel: its agent has the shim.
    pub kernel: bool,
    /// Whether new attempts may start here: its node is available and the GPU is healthy.
    pub available: bool,
    /// Whether a layout plan is under way: its layout can't be changed again until it ends.
    pub changing: bool,
    /// Its instances. With MIG off: the whole GPU as one instance.
    pub instances: Vec<InstanceView>,
    /// Administrative overrides.
    pub operator: AdminOverride,
}

/// Administrative overrides of a GPU, with the sentences that explanations repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminOverride {
    /// Why no new attempts may start; such a GPU is never available.
    pub closed: Option<GpuClosure>,
    /// Why its layout stays as it is, such as `the layout of GPU 0 of node a is pinned (by ada)`. Its
    /// slices may be used, and nothing may be created or destroyed for a job.
    pub pinned: Option<String>,
}

impl GpuView {
    /// Whether both are of one model, with one geometry.
    pub(crate) fn is_same_kind(&self, other: &Self) -> bool {
        let has_same_rules = match (&self.mig, &other.mig) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other) || own.geometry == other.geometry,
            (own, other) => own.is_none() && other.is_none(),
        };
        has_same_rules && self.model == other.model && self.memory == other.memory
    }

    /// Returns whether its node can share slices in this way.
    pub const fn shares(&self, part: SliceShare) -> bool {
        match part {
            SliceShare::Mps(_) => self.mps,
            SliceShare::Kernel(_) => self.kernel,
            SliceShare::Compute(_) => self.mig.is_some(),
        }
    }

    /// Returns the profile whose GPU instances can be cut into such compute instances, if the GPU
    /// has one.
    pub fn cuttable(&self, name: &ComputeName) -> Option<&Profile> {
        let profile = self.mig.as_ref()?.geometry.by_name(&name.profile)?;
        let sizes = compute::offered(profile.compute_slices);
        // The one over the whole of it goes by the profile's own name.
        let part = name.slices < profile.compute_slices;
        (part && sizes.iter().any(|size| size.slices == name.slices)).then_some(profile)
    }
}

/// Why an operator keeps new attempts from a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuClosure {
    /// The kind of override.
    pub how: ClosureKind,
    /// A sentence, such as `node a is drained (maintenance, by ada)`.
    pub words: String,
    /// What clears it, such as `node a is undrained`.
    pub until: String,
}

/// The kinds of overrides that keep new attempts away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClosureKind {
    /// It is to become empty: running attempts finish.
    Drained,
    /// It is not trusted.
    Quarantined,
    /// Not by an operator: it is reserved for a gang, see [`crate::gangs`].
    Kept,
}

impl ClosureKind {
    /// Returns the stable word of the API.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Drained => "drained",
            Self::Quarantined => "quarantined",
            Self::Kept => "kept",
        }
    }
}

/// The partitioning rules of one GPU, shared by all GPUs of its model.
///
/// Building one takes milliseconds (every state and its reachability is precomputed, as
/// MIGM §4 has it), so GPUs with equal geometry should share it.
#[derive(Debug)]
pub struct MigView {
    /// As the agent reported it.
    pub geometry: Geometry,
    /// States of all profiles, since instances of any profile may stand in the way; reachability
    /// of the plain ones.
    space: StateSpace,
    /// The plain profiles, smallest memory first, then fewest compute slices.
    plain: Vec<ProfileId>,
    /// The place of the largest profile among the geometry's; nothing if that has none.
    largest: Option<usize>,
    /// The full layouts of plain profiles, in the order of the states; empty where there are too
    /// many states to list.
    full: Vec<Layout>,
    /// The same with numbered slots, for searches.
    layout_index: LayoutIndex,
}

/// Two views of one geometry are equal: all else follows from it.
impl PartialEq for MigView {
    fn eq(&self, other: &Self) -> bool {
        self.geometry == other.geometry
    }
}

impl Eq for MigView {}

impl MigView {
    /// Derives the rules from a reported geometry.
    ///
    /// # Errors
    ///
    /// [`TooManyPlacements`] if the geometry has more placements than a state has bits: the GPU
    /// can't be planned for, and should be reported as unsupported.
    pub fn new(geometry: Geometry) -> Result<Self, TooManyPlacements> {
        let offered = geometry.plain();
        let space = StateSpace::offering(&geometry, &offered)?;
        let mut plain: Vec<_> =
            geometry.profiles.iter().filter(|p| offered.contains(&p.id)).collect();
        plain.sort_by_key(|p| (p.memory, p.compute_slices, p.id));
        let plain: Vec<_> = plain.into_iter().map(|p| p.id).collect();
        let listed = space.full_configurations().unwrap_or_default();
        let plainly = |layout: &Layout| layout.iter().all(|slot| offered.contains(&slot.profile));
        let full: Vec<Layout> =
            listed.into_iter().map(|s| space.layout(s)).filter(plainly).collect();
        let layout_index = LayoutIndex::new(&full);
        let whole = geometry.largest().map(|largest| largest.id);
        let largest = geometry.profiles.iter().position(|profile| Some(profile.id) == whole);
        Ok(Self { geometry, space, plain, largest, full, layout_index })
    }

    /// Returns the profile that takes the whole GPU, as [`Geometry::largest`] finds it.
    pub fn largest(&self) -> Option<&Profile> {
        self.geometry.profiles.get(self.largest?)
    }

    /// Returns the space of all profiles, plain or not: what may stand together. Its `R` counts
    /// the full layouts that allocations of **plain** profiles alone can still lead to; instances
    /// of other profiles count as obstacles.
    ///
    /// Source: MIGM §4; the paper offers the plain profiles only.
    pub const fn all(&self) -> &StateSpace {
        &self.space
    }

    /// Returns how many full layouts plain allocations can still lead to; `None` where the
    /// geometry has too many states to count them.
    pub fn full_layouts(&self, state: MigState) -> Option<usize> {
        match self.space.measure() {
            ReachabilityMeasure::FullLayouts => Some(self.space.reachability(state)),
            ReachabilityMeasure::OpenPlacements => None,
        }
    }

    /// Returns the full layouts of plain profiles (19 on an A100, 5 on an A30); none where the
    /// geometry has too many states to list them.
    pub fn full(&self) -> &[Layout] {
        &self.full
    }

    /// Returns the full layouts with numbered slots.
    pub const fn layout_index(&self) -> &LayoutIndex {
        &self.layout_index
    }

    /// Returns the plain profiles, smallest memory first, then fewest compute slices.
    pub fn plain(&self) -> impl DoubleEndedIterator<Item = &Profile> {
        self.plain.iter().filter_map(|id| self.geometry.profile(*id))
    }
}

/// One instance, standing or promised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceView {
    /// Where it stands; `None` for a whole GPU with MIG off.
    pub slot: Option<Slot>,
    /// Memory that a job can use.
    pub memory: Bytes,
    /// What it is doing.
    pub state: InstanceState,
}

/// What an instance is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InstanceState {
    /// Nothing runs on it: a job may start, or it may be destroyed.
    Idle,
    /// A job has it: it runs there, is starting, or the instance is being made for it.
    Taken {
        /// The job.
        job: JobId,
    },
    /// Jobs of one user share it.
    Shared(Tenancy),
    /// An operator partitioned it into compute instances, which only jobs use that name them. Policies
    /// leave it alone until its layout is another one.
    Cut(ComputeInstancesView),
    /// It is used or was made from outside Tessera: planned around, never touched.
    Foreign,
    /// It can't be used or destroyed until a person looks.
    Stuck,
    /// It is not part of an operator's layout, and is about to be destroyed.
    Leaving,
    /// An operator quarantined it: it is neither used nor destroyed until that is cleared.
    Quarantined,
}

impl InstanceState {
    /// Returns whether the instance must be left alone.
    pub const fn busy(&self) -> bool {
        !matches!(self, Self::Idle)
    }

    /// Returns whether the instance stays even when every job has ended.
    pub const fn fixed(&self) -> bool {
        matches!(self, Self::Foreign | Self::Stuck | Self::Quarantined | Self::Cut(_))
    }
}

/// The compute instances of one GPU instance, and the jobs on them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeInstancesView {
    /// Those that may be taken or are.
    pub cut: Cut,
    /// The jobs there, all jobs of one user: what fails on a GPU instance may hit all of them.
    pub tenancy: Option<Tenancy>,
}

impl ComputeInstancesView {
    /// Returns the jobs with their compute instances.
    pub fn taken(&self) -> impl Iterator<Item = (JobId, ComputeSlot)> {
        let sharers = self.tenancy.iter().flat_map(|tenancy| &tenancy.sharers);
        sharers.filter_map(|(job, part)| Some((*job, part.compute()?)))
    }

    /// Returns the compute instances that nobody has.
    pub fn free(&self) -> impl Iterator<Item = ComputeSlot> {
        self.cut.iter().filter(|slot| self.taken().all(|(_, taken)| !taken.overlaps(*slot)))
    }
}

/// A job that waits in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedJob {
    /// Its number; the queue's order among equals.
    pub id: JobId,
    /// The requested GPU or slice.
    pub gpu: GpuRequest,
    /// Its user.
    #[serde(with = "shared_text")]
    pub user: Arc<str>,
    /// Its part of a slice, if it may share one.
    pub share: Option<SharingRequest>,
    /// What is known of it as a sharer, if the controller decides whether it shares (`--share auto`). Policies
    /// take such a job for one that has its slice to itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto: Option<KernelSharer>,
    /// What orders it in the queue.
    #[serde(flatten)]
    pub queue_rank: QueueRank,
    /// When it was accepted, on the database's clock.
    pub submitted: Millis,
    /// Its place in its gang, if it is one of several that start together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangMember>,
    /// Where it may run, if not everywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Arc<PlaceFilter>>,
}

/// The order of service: by rank, then by number.
pub type QueueKey = (QueueRank, JobId);

impl QueuedJob {
    /// Returns what orders it in the queue.
    pub const fn key(&self) -> QueueKey {
        (self.queue_rank, self.id)
    }
}

/// Text that many share, written as text.
pub(crate) mod shared_text {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(text: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(text)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<str>, D::Error> {
        String::deserialize(from).map(Arc::from)
    }
}
