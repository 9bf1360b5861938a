//! Which job is where on every GPU, and in which order GPUs are looked at; kept from round to round.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use tessera_model::mig::{Layout, Slot};
use tessera_model::{JobId, Millis};

use super::super::planned_gpu::PlannedGpu;
use crate::decision::PlacedJob;
use crate::facts::JobTable;
use crate::view::{ClusterView, GpuKinds};

/// One GPU as a round finds it.
#[derive(Clone, Debug, Default)]
pub(super) struct IndexedGpu {
    /// Its existing instances.
    pub(super) layout: Layout,
    /// Whether more instances could be created next to the existing ones.
    has_space: bool,
    /// The jobs there.
    pub(super) placements: Vec<PlacedJob>,
    /// Whether it may be changed in this round.
    pub(super) open: bool,
    /// Its model, by number.
    pub(super) kind: usize,
    /// How many placements it has, including those that this round plans.
    job_count: usize,
    /// When the latest of its jobs arrived; zero if it has none, `None` if it can't be planned for.
    last_came: Option<Millis>,
}

impl IndexedGpu {
    pub(super) fn jobs(&self) -> Vec<JobId> {
        self.placements.iter().map(|placed| placed.job).collect()
    }

    fn has_holder(&self) -> bool {
        let alone = |placed: &PlacedJob| {
            self.placements.iter().filter(|s| s.slot == placed.slot).count() == 1
        };
        self.placements.iter().any(|placed| placed.kernel_priority.is_some() && alone(placed))
    }

    fn idle(&self) -> usize {
        let part = |slot| self.placements.iter().filter(|placed| placed.slot == slot).count() < 2;
        let idle = |slot: &&Slot| !self.placements.iter().any(|placed| placed.slot == Some(**slot));
        // A job whose co-runner ended has a part of a slice and could have all of it.
        let parts =
            self.placements.iter().filter(|placed| placed.sm.is_some() && part(placed.slot));
        let space = usize::from(self.has_space);
        self.layout.iter().filter(idle).count() + parts.count() + space
    }
}

/// All GPUs. The sets contain only GPUs that may be changed in this round.
#[derive(Clone, Debug, Default)]
pub(super) struct GpuIndex {
    posts: Vec<IndexedGpu>,
    /// The first GPU of each model.
    kinds: Vec<usize>,
    /// Empty GPUs by model.
    empty: Vec<BTreeSet<usize>>,
    /// GPUs with jobs, ordered by the number of jobs, the fewest first.
    fewest: BTreeSet<(usize, usize)>,
    /// The same GPUs, the most jobs first.
    most: BTreeSet<(Reverse<usize>, usize)>,
    /// GPUs with jobs and idle slices, the most idle slices first.
    idle: BTreeSet<(Reverse<usize>, usize)>,
    /// GPUs on which a job is alone in a slice's kernel queue.
    holders: BTreeSet<usize>,
    /// GPUs that can be planned for, open or not, those with the oldest last arrival first.
    calm: BTreeSet<(Millis, usize)>,
    /// The GPUs that changed and have to be read again.
    changed: BTreeSet<usize>,
}

impl GpuIndex {
    pub(super) fn changed(&mut self, at: usize) {
        self.changed.insert(at);
    }

    /// Reads the GPUs that changed; all GPUs the first time.
    pub(super) fn read(&mut self, cluster: &ClusterView, jobs: &dyn JobTable) {
        if self.posts.len() != cluster.gpus.len() {
            *self = Self::default();
            self.posts = vec![IndexedGpu::default(); cluster.gpus.len()];
            let GpuKinds { first, kind_of } = cluster.gpu_kinds();
            self.kinds = first;
            for (at, kind) in kind_of.into_iter().enumerate() {
                self.posts[at].kind = kind;
                self.changed.insert(at);
            }
            self.empty = vec![BTreeSet::new(); self.kinds.len()];
        }
        for at in std::mem::take(&mut self.changed) {
            self.forget(at);
            let Some(view) = cluster.gpus.get(at) else { continue };
            let gpu = &mut self.posts[at];
            if let Some(came) = gpu.last_came.take() {
                self.calm.remove(&(came, at));
            }
            match PlannedGpu::new(view) {
                Some(planned) => {
                    gpu.has_space = !planned.mig.full().contains(&planned.layout);
                    (gpu.layout, gpu.placements, gpu.open) =
                        (planned.layout, planned.placements, planned.open);
                    if view.available && view.operator.pinned.is_none() {
                        let came =
                            gpu.placements.iter().filter_map(|placed| jobs.since(placed.job));
                        let came = came.max().unwrap_or(Millis::ZERO);
                        gpu.last_came = Some(came);
                        self.calm.insert((came, at));
                    }
                }
                None => (gpu.placements, gpu.open) = (Vec::new(), false),
            }
            gpu.job_count = gpu.placements.len();
            self.remember(at);
        }
    }

    pub(super) fn gpu(&self, at: usize) -> &IndexedGpu {
        &self.posts[at]
    }

    /// Returns the first GPU of each model.
    pub(super) fn kinds(&self) -> &[usize] {
        &self.kinds
    }

    /// Counts a placement that this round plans.
    pub(super) fn promise(&mut self, at: usize, placements: usize) {
        self.forget(at);
        self.posts[at].job_count = placements;
        self.changed.insert(at);
        self.remember(at);
    }

    /// Takes a GPU out for the rest of the round.
    pub(super) fn close(&mut self, at: usize) {
        self.forget(at);
        self.posts[at].open = false;
        self.changed.insert(at);
    }

    /// Returns the GPUs that can be planned for, open or not, those with the oldest last arrival
    /// first.
    pub(super) fn calmest(&self) -> impl Iterator<Item = usize> {
        self.calm.iter().map(|(_, at)| *at)
    }

    /// Returns how many GPUs there are.
    pub(super) const fn len(&self) -> usize {
        self.posts.len()
    }

    /// Returns the jobs on every GPU.
    pub(super) fn placements(&self) -> impl Iterator<Item = (usize, &[PlacedJob])> {
        self.posts.iter().enumerate().map(|(at, gpu)| (at, gpu.placements.as_slice()))
    }

    pub(super) fn any_open(&self) -> bool {
        !self.fewest.is_empty() || self.empty.iter().any(|at| !at.is_empty())
    }

    /// Returns the first empty GPU of each model.
    pub(super) fn empty_of_each_kind(&self) -> Vec<usize> {
        let mut first: Vec<usize> =
            self.empty.iter().filter_map(BTreeSet::first).copied().collect();
        first.sort_unstable();
        first
    }

    /// Returns open GPUs of other models than one GPU's that have jobs.
    pub(super) fn of_other_kinds(&self, at: usize, most: usize) -> Vec<usize> {
        if self.kinds.len() < 2 {
            return Vec::new();
        }
        let kind = self.posts[at].kind;
        let others = self.fewest.iter().map(|(_, other)| *other);
        others.filter(|other| self.posts[*other].kind != kind).take(most).collect()
    }

    /// Returns one empty GPU of each model, then those with the fewest jobs.
    pub(super) fn fewest(&self, jobs_max: usize, most: usize) -> Vec<usize> {
        let mut order: Vec<usize> =
            self.empty.iter().filter_map(BTreeSet::first).copied().collect();
        order.sort_unstable();
        let shared = self.fewest.iter().take_while(|(job_count, _)| *job_count < jobs_max);
        order.extend(shared.map(|(_, at)| *at).take(most));
        order.truncate(most);
        order
    }

    /// Returns the GPUs with the most jobs, two at least.
    pub(super) fn most_shared(&self, most: usize) -> Vec<usize> {
        let shared = self.most.iter().take_while(|(Reverse(job_count), _)| *job_count > 1);
        shared.map(|(_, at)| *at).take(most).collect()
    }

    /// Returns GPUs on which a job is alone in a slice's kernel queue.
    pub(super) fn holders(&self, most: usize) -> Vec<usize> {
        self.holders.iter().copied().take(most).collect()
    }

    /// Returns the GPUs with jobs that have the most idle slices.
    pub(super) fn most_idle(&self, most: usize) -> Vec<usize> {
        self.idle.iter().map(|(_, at)| *at).take(most).collect()
    }

    fn forget(&mut self, at: usize) {
        let gpu = &self.posts[at];
        let (job_count, idle) = (gpu.job_count, gpu.idle());
        if let Some(empty) = self.empty.get_mut(gpu.kind) {
            empty.remove(&at);
        }
        self.fewest.remove(&(job_count, at));
        self.most.remove(&(Reverse(job_count), at));
        self.idle.remove(&(Reverse(idle), at));
        self.holders.remove(&at);
    }

    fn remember(&mut self, at: usize) {
        let gpu = &self.posts[at];
        if !gpu.open {
            return;
        }
        let (job_count, idle, kind) = (gpu.job_count, gpu.idle(), gpu.kind);
        if job_count == 0 {
            self.empty[kind].insert(at);
            return;
        }
        self.fewest.insert((job_count, at));
        self.most.insert((Reverse(job_count), at));
        if self.posts[at].has_holder() {
            self.holders.insert(at);
        }
        if idle > 0 && !self.posts[at].placements.is_empty() {
            self.idle.insert((Reverse(idle), at));
        }
    }
}
