//! The view of the cluster that policies get.

use std::collections::{BTreeMap, BTreeSet};
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
use crate::power_cap::PowerCap;

mod tenancy;

pub use tenancy::{MpsClient, SharingRequest, Tenancy};

/// The cluster at one moment: every GPU that agents reported, in a fixed order (node name, then
/// index on the node). The order is part of the input: policies break ties by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// The GPUs of all nodes, in the order of their identities.
    pub gpus: Vec<GpuView>,
    /// The most power that they may draw together, if that is limited.
    pub power_cap: Option<PowerCap>,
}

impl From<Vec<GpuView>> for ClusterView {
    /// A cluster of GPUs in their order, without a power cap.
    fn from(gpus: Vec<GpuView>) -> Self {
        Self::new(gpus, None)
    }
}

/// Which GPUs of a cluster are alike.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuKinds {
    /// The first GPU of each kind, by its index in the view.
    pub(crate) first: Vec<usize>,
    /// The kind of each GPU, in the order of the view.
    pub(crate) kind_of: Vec<usize>,
}

impl ClusterView {
    /// Returns the part of the cluster that a filter allows.
    #[must_use]
    pub fn within(&self, filter: &PlaceFilter) -> Self {
        let allowed = |gpu: &&GpuView| filter.allows(&gpu.node, &gpu.model);
        let gpus = self.gpus.iter().filter(allowed).cloned().collect();
        Self::new(gpus, self.power_cap)
    }

    /// Returns a cluster of GPUs in their order.
    pub const fn new(gpus: Vec<GpuView>, power_cap: Option<PowerCap>) -> Self {
        Self { gpus, power_cap }
    }

    /// Returns the same cluster, in which GPUs are of different kinds if one of the filters allows only some of them. So a
    /// policy that decides by kinds need not compare a job's restriction with each GPU.
    pub(crate) fn with_parts<'f>(&self, filters: impl Iterator<Item = &'f PlaceFilter>) -> Self {
        let filters: BTreeSet<&PlaceFilter> = filters.collect();
        let allowed = |gpu: &GpuView| -> Vec<bool> {
            filters.iter().map(|filter| filter.allows(&gpu.node, &gpu.model)).collect()
        };
        let allowed: Vec<Vec<bool>> = self.gpus.iter().map(allowed).collect();
        // Numbered by what they are, so that the order in which the cluster lists its GPUs doesn't matter.
        let distinct: BTreeSet<&Vec<bool>> = allowed.iter().collect();
        let numbers: BTreeMap<&Vec<bool>, u32> = distinct.into_iter().zip(0..).collect();
        let mut divided = self.clone();
        for (gpu, allowed) in divided.gpus.iter_mut().zip(&allowed) {
            // From 1 on: 0 is a GPU of which no restriction was read.
            gpu.part = numbers[allowed] + 1;
        }
        divided
    }

    /// Returns whether its kinds differ by jobs' restrictions, too.
    pub(crate) fn has_parts(&self) -> bool {
        self.gpus.first().is_some_and(|gpu| gpu.part > 0)
    }

    /// Returns the kinds of GPUs in the order in which they appear. So predictions for thousands of
    /// jobs are needed only for a few kinds.
    pub(crate) fn gpu_kinds(&self) -> GpuKinds {
        let mut kinds = GpuKinds::default();
        for (at, gpu) in self.gpus.iter().enumerate() {
            let alike = |first: &usize| {
                self.gpus[*first].part == gpu.part && self.gpus[*first].is_same_kind(gpu)
            };
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

/// One GPU in the last report of its agent, with later decisions applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuView {
    /// Its UUID.
    pub id: GpuId,
    /// Name of the node that has the GPU.
    pub node: NodeName,
    /// Its index on the node.
    pub index: u32,
    /// The driver's name for the board.
    pub model: String,
    /// Memory of the whole GPU.
    pub memory: Bytes,
    /// Streaming multiprocessors of the whole GPU, if the driver reports them.
    pub sms: Option<u16>,
    /// Reported profiles and placements; `None` where MIG is off or not supported. It is left out
    /// of serialized views: [`crate::record`] stores it once for all GPUs of a kind.
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
    /// The number of the jobs' restrictions that allow it: GPUs with different numbers are of different kinds. It is 0
    /// outside of rounds with restrictions ([`ClusterView::with_parts`]).
    #[serde(skip)]
    pub part: u32,
}

/// Administrative overrides of a GPU, with the sentences for explanations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminOverride {
    /// Why no new attempts may start; such a GPU is never available.
    pub closed: Option<GpuClosure>,
    /// Why its layout must not change, such as `the layout of GPU 0 of node a is pinned (by ada)`.
    /// Its slices may be used, but no instance may be created or destroyed for a job.
    pub pinned: Option<String>,
}

impl GpuView {
    /// Returns whether a job's restriction to nodes and models allows it to run here.
    pub(crate) fn is_allowed(&self, job: &QueuedJob) -> bool {
        job.place.as_ref().is_none_or(|place| place.allows(&self.node, &self.model))
    }

    /// Returns whether both are of the same model, with the same geometry.
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
        // A compute instance that covers the whole GPU instance has the name of its profile.
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
    /// The event that clears it, such as `node a is undrained`.
    pub until: String,
}

/// The kinds of overrides that keep new attempts away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClosureKind {
    /// Drained: running attempts finish, and no new ones start.
    Drained,
    /// Quarantined: it is not trusted.
    Quarantined,
    /// Reserved for a gang, not by an operator; see [`crate::gangs`].
    Kept,
}

impl ClosureKind {
    /// Returns the stable value in the API.
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
/// Building it takes milliseconds (all states and their reachability are precomputed, following
/// MIGM §4), so GPUs with equal geometry should share it.
#[derive(Debug)]
pub struct MigView {
    /// The geometry that the agent reported.
    pub geometry: Geometry,
    /// The state space of all profiles, since instances of any profile may be in the way, with the
    /// reachability of the plain ones.
    space: StateSpace,
    /// The plain profiles, smallest memory first, then fewest compute slices.
    plain: Vec<ProfileId>,
    /// The index of the largest profile in the geometry; `None` if it has no profiles.
    largest: Option<usize>,
    /// The full layouts of plain profiles, in the order of the states; empty where there are too
    /// many states to list.
    full: Vec<Layout>,
    /// The full layouts with numbered slots, for searches.
    layout_index: LayoutIndex,
}

/// Two views of one geometry are equal: all other fields are derived from it.
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

    /// Returns the state space of all profiles, plain or not: which instances may coexist. Its `R`
    /// counts the full layouts that are still reachable by allocations of **plain** profiles alone;
    /// instances of other profiles count as obstacles.
    ///
    /// Source: MIGM §4; the paper offers the plain profiles only.
    pub const fn all(&self) -> &StateSpace {
        &self.space
    }

    /// Returns how many full layouts are still reachable by plain allocations; `None` where the
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

/// One instance, existing or planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceView {
    /// Its slot; `None` for a whole GPU with MIG off.
    pub slot: Option<Slot>,
    /// Memory that a job can use.
    pub memory: Bytes,
    /// What the instance is used for.
    pub state: InstanceState,
}

/// What a GPU instance is used for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InstanceState {
    /// It has no job: a job may start on it, or it may be destroyed.
    Idle,
    /// A job has it: the job runs or starts on it, or the instance is being created for it.
    Taken {
        /// The job that has the instance.
        job: JobId,
    },
    /// Several jobs of one user share it.
    Shared(Tenancy),
    /// An operator divided it into compute instances, which are used only by jobs that name them.
    /// Policies don't touch it while it is divided.
    Cut(ComputeInstancesView),
    /// Another program uses it or created it: it is an obstacle and never touched.
    Foreign,
    /// It can't be used or destroyed until a person intervenes.
    Stuck,
    /// It is not part of an operator's layout, and will be destroyed.
    Leaving,
    /// An operator quarantined it: it is neither used nor destroyed until that is cleared.
    Quarantined,
}

impl InstanceState {
    /// Returns whether the instance must not be touched.
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
    /// The compute instances that are free or in use.
    pub cut: Cut,
    /// The jobs on them, all of one user: a fault of a GPU instance may affect all of them.
    pub tenancy: Option<Tenancy>,
}

impl ComputeInstancesView {
    /// Returns the jobs with their compute instances.
    pub fn taken(&self) -> impl Iterator<Item = (JobId, ComputeSlot)> {
        let sharers = self.tenancy.iter().flat_map(|tenancy| &tenancy.sharers);
        sharers.filter_map(|(job, part)| Some((*job, part.compute()?)))
    }

    /// Returns the compute instances without jobs.
    pub fn free(&self) -> impl Iterator<Item = ComputeSlot> {
        self.cut.iter().filter(|slot| self.taken().all(|(_, taken)| !taken.overlaps(*slot)))
    }
}

/// A job in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedJob {
    /// Its number, which orders jobs of equal rank.
    pub id: JobId,
    /// The requested GPU or slice.
    pub gpu: GpuRequest,
    /// Name of the user who submitted it.
    #[serde(with = "shared_text")]
    pub user: Arc<str>,
    /// Its share of a slice, if it may share one.
    pub share: Option<SharingRequest>,
    /// What is known about it as a sharing job, if the controller decides whether it shares
    /// (`--share auto`). Policies treat such a job as one that has its slice to itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto: Option<KernelSharer>,
    /// Its rank, which orders the queue.
    #[serde(flatten)]
    pub queue_rank: QueueRank,
    /// When it was accepted, on the database's clock.
    pub submitted: Millis,
    /// Whether it is of the class `online`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub online: bool,
    /// Its membership in a gang, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangMember>,
    /// Its restriction to nodes or GPUs, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Arc<PlaceFilter>>,
}

/// The order of service: by rank, then by number.
pub type QueueKey = (QueueRank, JobId);

impl QueuedJob {
    /// Returns the key that orders it in the queue.
    pub const fn key(&self) -> QueueKey {
        (self.queue_rank, self.id)
    }
}

/// Serializes shared text as plain text.
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
