//! What a policy sees.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tessera_model::mig::compute::{self, ComputeName, ComputeSlot, Cut};
use tessera_model::mig::{
    Geometry, Layout, Measure, Profile, ProfileId, Slot, State, StateSpace, TooManyPlacements,
};
use tessera_model::share::Part;
use tessera_model::spec::{GpuAsk, Priority};
use tessera_model::{Bytes, GpuId, JobId, Member, Millis, NodeName};

use crate::seating::Atlas;

mod tenancy;

pub use tenancy::{Client, Sharer, Tenancy};

/// The cluster at one moment: every GPU that agents reported, in a fixed order (node name, then
/// index on the node). The order is part of the input: policies break ties by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// The GPUs.
    pub gpus: Vec<GpuView>,
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
    /// Memory of the whole card.
    pub memory: Bytes,
    /// Streaming multiprocessors of the whole card, if the driver says.
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
    /// What stands on it. With MIG off: the whole GPU as one instance.
    pub instances: Vec<InstanceView>,
    /// What operators said of it.
    pub operator: OperatorWord,
}

/// What operators said of a GPU, in words that explanations repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorWord {
    /// Who keeps new attempts away; such a GPU is never available.
    pub closed: Option<Closed>,
    /// Who keeps its layout as it is, such as `the layout of GPU 0 of node a is pinned (by ada)`:
    /// its slices may be used, and nothing may be created or destroyed for a job.
    pub pinned: Option<String>,
}

impl GpuView {
    /// Tells whether its node can share slices in this way.
    pub const fn shares(&self, part: Part) -> bool {
        match part {
            Part::Mps(_) => self.mps,
            Part::Kernel(_) => self.kernel,
            Part::Compute(_) => self.mig.is_some(),
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
pub struct Closed {
    /// What was said.
    pub how: Closure,
    /// A sentence, such as `node a is drained (maintenance, by ada)`.
    pub words: String,
    /// What takes it back, such as `node a is undrained`.
    pub until: String,
}

/// What an operator said that keeps new attempts away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Closure {
    /// It is to become empty: running attempts finish.
    Drained,
    /// It is not trusted.
    Quarantined,
    /// No operator's word: it is kept for a gang, see [`crate::gangs`].
    Kept,
}

impl Closure {
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
    atlas: Atlas,
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
        let atlas = Atlas::new(&full);
        let whole = geometry.largest().map(|largest| largest.id);
        let largest = geometry.profiles.iter().position(|profile| Some(profile.id) == whole);
        Ok(Self { geometry, space, plain, largest, full, atlas })
    }

    /// Returns the profile that takes the whole card, as [`Geometry::largest`] finds it.
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
    pub fn full_layouts(&self, state: State) -> Option<usize> {
        match self.space.measure() {
            Measure::FullLayouts => Some(self.space.reachability(state)),
            Measure::OpenPlacements => None,
        }
    }

    /// Returns the full layouts of plain profiles (19 on an A100, 5 on an A30); none where the
    /// geometry has too many states to list them.
    pub fn full(&self) -> &[Layout] {
        &self.full
    }

    /// Returns the full layouts with numbered slots.
    pub(crate) const fn atlas(&self) -> &Atlas {
        &self.atlas
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
        /// By whom.
        job: JobId,
    },
    /// Jobs of one user share it.
    Shared(Tenancy),
    /// An operator had it cut into several compute instances: they are seats for the jobs that name
    /// them, and policies leave it alone until its layout is another one.
    Cut(Seats),
    /// Somebody outside Tessera uses or made it: planned around, never touched.
    Foreign,
    /// It can't be used or destroyed until a person looks.
    Stuck,
    /// An operator's layout has no place for it: it is about to be destroyed.
    Leaving,
    /// An operator distrusts it: it is neither used nor destroyed until that is taken back.
    Quarantined,
}

impl InstanceState {
    /// Tells whether the instance must be left alone.
    pub const fn busy(&self) -> bool {
        !matches!(self, Self::Idle)
    }

    /// Tells whether the instance stays even when every job has ended.
    pub const fn fixed(&self) -> bool {
        matches!(self, Self::Foreign | Self::Stuck | Self::Quarantined | Self::Cut(_))
    }
}

/// The compute instances of one GPU instance, as seats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seats {
    /// Those that may be taken or are.
    pub cut: Cut,
    /// Who sits there, all jobs of one user: what fails on a GPU instance may hit all of them.
    pub tenancy: Option<Tenancy>,
}

impl Seats {
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

/// A job that waits for a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedJob {
    /// Its number; the queue's order among equals.
    pub id: JobId,
    /// What it asks for.
    pub gpu: GpuAsk,
    /// Whose it is.
    #[serde(with = "shared_text")]
    pub user: Arc<str>,
    /// Its part of a slice, if it may share one.
    pub share: Option<Sharer>,
    /// 0 (highest) to 9.
    pub priority: Priority,
    /// When it was accepted, on the database's clock.
    pub submitted: Millis,
    /// Its place in its gang, if it is one of several that start together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<Member>,
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
