//! Finds where a gang could start now, and where it could start soonest.

use std::collections::BTreeMap;
use std::rc::Rc;

use tessera_model::mig::{PlanStep, Slot};
use tessera_model::{GangShape, JobId, Millis};

use super::end_times::EndTimes;
use crate::numbers::index;
use crate::offer::{FutureFit, Offer, Rule};
use crate::policy::SliceManner;
use crate::policy::{AsItStands, MadeToMeasure, Pinned, WholeGpu};
use crate::predictor::Unknown;
use crate::request::{NumberedRequest, RequestNumbers};
use crate::view::{ClusterView, QueuedJob, SharingRequest};
use crate::working_state::{WorkingGpu, WorkingState};

#[derive(Debug)]
enum SliceSource {
    Measured(Pinned<MadeToMeasure>),
    GpuLayout(Pinned<AsItStands>),
    Whole(Pinned<WholeGpu>),
}

impl SliceSource {
    fn offer(&mut self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<Rc<Offer>> {
        if !size.allows(gpu.view) {
            return None;
        }
        match self {
            Self::Measured(rule) => rule.offer(gpu, size),
            Self::GpuLayout(rule) => rule.offer(gpu, size),
            Self::Whole(rule) => rule.offer(gpu, size),
        }
    }

    fn future_fit(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> FutureFit {
        if !size.allows(gpu.view) {
            return FutureFit::Never;
        }
        match self {
            Self::Measured(rule) => rule.future_fit(gpu, size),
            Self::GpuLayout(rule) => rule.future_fit(gpu, size),
            Self::Whole(rule) => rule.future_fit(gpu, size),
        }
    }

    fn blockers(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Vec<Vec<JobId>> {
        match self {
            Self::Measured(rule) => rule.blockers(gpu, size),
            Self::GpuLayout(rule) => rule.blockers(gpu, size),
            Self::Whole(rule) => rule.blockers(gpu, size),
        }
    }
}

/// One member's placement.
#[derive(Clone, Debug)]
pub(super) struct MemberPlacement {
    /// The GPU's index in the cluster.
    pub(super) gpu: usize,
    pub(super) offer: Rc<Offer>,
}

/// GPUs that are reserved for a gang.
#[derive(Clone, Debug)]
pub(super) struct ReservedGpus {
    /// Their indices in the cluster.
    pub(super) gpus: Vec<usize>,
    /// The time until it starts; `None` if the end of some job in its way is unknown.
    pub(super) wait: Option<Millis>,
    /// Whether it may start sooner, since for some jobs in its way only the time limit is known.
    pub(super) at_most: bool,
    /// The jobs in its way.
    pub(super) jobs: Vec<JobId>,
}

/// When a GPU has a placement: the number of jobs in the way whose end is unknown, and the time
/// until the others have ended.
#[derive(Clone, Debug)]
struct GpuReadiness {
    cost: (usize, Millis),
    /// Whether some of these ends are time limits, so that they may come sooner.
    at_most: bool,
    gpu: usize,
    jobs: Vec<JobId>,
}

/// The cluster with the decisions of a round applied.
#[derive(Debug)]
pub(super) struct CapacitySearch<'c> {
    cluster: &'c ClusterView,
    pub(super) state: WorkingState<'c>,
    source: SliceSource,
    sizes: RequestNumbers,
    /// By GPU: whether no more decisions may be made for it.
    closed: Vec<bool>,
    /// By GPU: whether this round placed a job on it.
    touched: Vec<bool>,
    models: Vec<&'c str>,
}

impl<'c> CapacitySearch<'c> {
    pub(super) fn new(manner: SliceManner, cluster: &'c ClusterView) -> Self {
        let mut models: Vec<&str> = cluster.gpus.iter().map(|gpu| gpu.model.as_str()).collect();
        models.sort_unstable();
        models.dedup();
        Self {
            cluster,
            // Gangs don't share slices, so no predictions for co-runners are needed.
            state: WorkingState::new(cluster, &Unknown),
            source: match manner {
                SliceManner::MadeToMeasure => {
                    SliceSource::Measured(Pinned(MadeToMeasure::default()))
                }
                SliceManner::AsTheyStand => SliceSource::GpuLayout(Pinned(AsItStands)),
                SliceManner::WholeGpus => SliceSource::Whole(Pinned(WholeGpu)),
            },
            sizes: RequestNumbers::new(cluster),
            closed: vec![false; cluster.gpus.len()],
            touched: vec![false; cluster.gpus.len()],
            models,
        }
    }

    pub(super) fn size(&mut self, job: &QueuedJob) -> NumberedRequest {
        self.sizes.size(job)
    }

    /// Closes a GPU to further decisions.
    pub(super) fn close(&mut self, gpu: usize) {
        self.closed[gpu] = true;
    }

    /// Gives a placement to a job.
    pub(super) fn take(
        &mut self,
        job: JobId,
        share: Option<&SharingRequest>,
        gpu: usize,
        slot: Option<Slot>,
        steps: &[PlanStep],
    ) {
        self.state.gpus[gpu].take(job, share, slot, steps);
        self.touched[gpu] = true;
    }

    /// Returns the cluster as later parts of the round see it: with this round's placements, and
    /// with changing GPUs closed.
    pub(super) fn view(&self) -> ClusterView {
        let mut view = self.cluster.clone();
        for (gpu, seen) in view.gpus.iter_mut().enumerate() {
            if self.touched[gpu] {
                let stood: Vec<_> = seen.instances.iter().map(|i| i.slot).collect();
                seen.instances.clone_from(&self.state.gpus[gpu].instances);
                let stands: Vec<_> = seen.instances.iter().map(|i| i.slot).collect();
                seen.changing |= stood != stands;
            }
        }
        view
    }

    /// Finds placements for a whole gang, by rank.
    pub(super) fn find_placements(
        &mut self,
        size: &NumberedRequest,
        shape: GangShape,
    ) -> Option<Vec<MemberPlacement>> {
        let offers = self.offers(size);
        let mut found: Vec<Vec<usize>> = Vec::new();
        for model in &self.models {
            let of_model = |gpu: &usize| self.cluster.gpus[*gpu].model == *model;
            found.extend(self.choose(&offers, shape, of_model));
        }
        if found.is_empty() {
            found.extend(self.choose(&offers, shape, |_| true));
        }
        // The tightest fit over all models.
        let memory = |gpus: &Vec<usize>| -> u64 {
            let offers = gpus.iter().filter_map(|gpu| offers[*gpu].as_ref());
            offers.map(|offer| offer.rank.memory.get()).fold(0, u64::saturating_add)
        };
        let best = found.into_iter().min_by_key(memory)?;
        let placed = |gpu: usize| Some(MemberPlacement { gpu, offer: offers[gpu].clone()? });
        best.into_iter().map(placed).collect()
    }

    fn offers(&mut self, size: &NumberedRequest) -> Vec<Option<Rc<Offer>>> {
        let Self { state, source, closed, .. } = self;
        let one = |(gpu, closed): (&WorkingGpu<'_>, &bool)| {
            let open = gpu.view.available && !closed;
            if open { source.offer(gpu, size) } else { None }
        };
        state.gpus.iter().zip(closed.iter()).map(one).collect()
    }

    /// Chooses nodes with enough offers, those with the fewest left over, and the best GPUs on
    /// each.
    fn choose(
        &self,
        offers: &[Option<Rc<Offer>>],
        shape: GangShape,
        suits: impl Fn(&usize) -> bool,
    ) -> Option<Vec<usize>> {
        let per_node = index(shape.per_node());
        let offering = (0..offers.len()).filter(|gpu| offers[*gpu].is_some()).filter(|g| suits(g));
        let mut nodes: Vec<Vec<usize>> = self.by_node(offering);
        nodes.retain(|gpus| gpus.len() >= per_node);
        nodes.sort_by_key(|gpus| (gpus.len(), gpus[0]));
        if nodes.len() < index(shape.nodes()) {
            return None;
        }
        nodes.truncate(index(shape.nodes()));
        let mut placements = Vec::new();
        nodes.sort_by_key(|gpus| gpus[0]);
        for mut gpus in nodes {
            gpus.sort_by_key(|gpu| (offers[*gpu].as_ref().map(|offer| offer.rank), *gpu));
            gpus.truncate(per_node);
            gpus.sort_unstable();
            placements.extend(gpus);
        }
        Some(placements)
    }

    fn by_node(&self, gpus: impl Iterator<Item = usize>) -> Vec<Vec<usize>> {
        let mut nodes: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for gpu in gpus {
            nodes.entry(&self.cluster.gpus[gpu].node).or_default().push(gpu);
        }
        nodes.into_values().collect()
    }

    /// Returns how many placements of a gang are possible now on the nodes that have the most, in
    /// the order of nodes.
    pub(super) fn partly(
        &mut self,
        size: &NumberedRequest,
        shape: GangShape,
    ) -> Vec<(usize, usize)> {
        let offers = self.offers(size);
        let offering = (0..offers.len()).filter(|gpu| offers[*gpu].is_some());
        let mut nodes: Vec<_> = self
            .by_node(offering)
            .into_iter()
            .map(|gpus| (gpus[0], gpus.len().min(index(shape.per_node()))))
            .collect();
        nodes.sort_by_key(|(first, placements)| (usize::MAX - placements, *first));
        nodes.truncate(index(shape.nodes()));
        nodes.sort_unstable();
        nodes
    }

    /// Finds the GPUs on which a gang could start the soonest; `None` if the available GPUs could
    /// never hold it.
    pub(super) fn keep(
        &mut self,
        size: &NumberedRequest,
        shape: GangShape,
        ends: EndTimes<'_>,
    ) -> Option<ReservedGpus> {
        let offers = self.offers(size);
        let readies: Vec<Option<GpuReadiness>> = (0..offers.len())
            .map(|gpu| self.ready(gpu, offers[gpu].is_some(), size, ends))
            .collect();
        let of_one = |model: &&str| {
            let suits = |gpu: &usize| self.cluster.gpus[*gpu].model == **model;
            self.soonest(&readies, shape, suits)
        };
        let of_one_model =
            self.models.iter().filter_map(of_one).min_by_key(|placements| cost_of(placements));
        let best = of_one_model.or_else(|| self.soonest(&readies, shape, |_| true))?;
        let (unknown, wait) = cost_of(&best);
        let mut jobs: Vec<_> = best.iter().flat_map(|ready| ready.jobs.iter().copied()).collect();
        jobs.sort_unstable();
        jobs.dedup();
        let at_most = best.iter().any(|ready| ready.at_most);
        let gpus = best.into_iter().map(|ready| ready.gpu).collect();
        Some(ReservedGpus { gpus, wait: (unknown == 0).then_some(wait), at_most, jobs })
    }

    fn soonest(
        &self,
        readies: &[Option<GpuReadiness>],
        shape: GangShape,
        suits: impl Fn(&usize) -> bool,
    ) -> Option<Vec<GpuReadiness>> {
        let possible =
            (0..readies.len()).filter(|gpu| readies[*gpu].is_some()).filter(|g| suits(g));
        let mut nodes: Vec<Vec<GpuReadiness>> = self
            .by_node(possible)
            .into_iter()
            .filter(|gpus| gpus.len() >= index(shape.per_node()))
            .map(|gpus| {
                let mut ready: Vec<_> =
                    gpus.into_iter().filter_map(|gpu| readies[gpu].clone()).collect();
                ready.sort_by_key(|ready| (ready.cost, ready.gpu));
                ready.truncate(index(shape.per_node()));
                ready
            })
            .collect();
        if nodes.len() < index(shape.nodes()) {
            return None;
        }
        nodes.sort_by_key(|node| (cost_of(node), node[0].gpu));
        nodes.truncate(index(shape.nodes()));
        Some(nodes.into_iter().flatten().collect())
    }

    fn ready(
        &self,
        gpu: usize,
        now: bool,
        size: &NumberedRequest,
        ends: EndTimes<'_>,
    ) -> Option<GpuReadiness> {
        let seen = &self.state.gpus[gpu];
        if self.closed[gpu] || !seen.view.available {
            return None;
        }
        let none = GpuReadiness { cost: (0, Millis::ZERO), at_most: false, gpu, jobs: Vec::new() };
        if now {
            return Some(none);
        }
        if self.source.future_fit(seen, size) != FutureFit::Possible {
            return None;
        }
        let way = |jobs: Vec<JobId>| {
            let known: Vec<_> = jobs.iter().filter_map(|job| ends.of_running(seen, *job)).collect();
            let unknown = jobs.len() - known.len();
            let wait = known.iter().map(|end| end.left).max().unwrap_or_default();
            let at_most = known.iter().any(|end| end.by_limit);
            GpuReadiness { cost: (unknown, wait), at_most, gpu, jobs }
        };
        let ways = self.source.blockers(seen, size).into_iter().map(way);
        // If no job is in the way, a layout plan is.
        Some(ways.min_by_key(|ready| ready.cost).unwrap_or(none))
    }
}

fn cost_of(placements: &[GpuReadiness]) -> (usize, Millis) {
    let unknown = placements.iter().map(|ready| ready.cost.0).sum();
    (unknown, placements.iter().map(|ready| ready.cost.1).max().unwrap_or_default())
}
