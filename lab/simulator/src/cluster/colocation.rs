//! Training samples of co-location. MMK measures 1,400 of them on a GPU; here the study's model of
//! contention replaces the GPU.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use tessera_model::number::{clamped, index};

use tessera_lab_learners::sharing::{MeasuredSharing, SharedJob, SharingPredictor, SliceUse};
use tessera_placement::{Demand, MpsClient, SpeedRange};
use tessera_predict::colocation::{
    CoRunners, ColocatedRun, Colocation, ColocationPredictor, SharingClient,
};

use super::contention::{self, ContentionSharer};
use tessera_predict::random::SeededRng;

/// The number of MMK's measurements (§III-A).
pub const ROWS: u64 = 1_400;

/// Seed of the rows that the simulator's own forest learns from: any would do.
const SEED: u64 = 1;

/// Sizes of an A100's instances that are shared, in compute slices: those of
/// MMK's partitions (Algorithm 1) except 1g, which is too small for two jobs.
const SIZES: [u8; 4] = [2, 3, 4, 7];
const WHOLE: u8 = 7;

/// The forest that predicts for policies of the simulator, for jobs whose demands are known.
static FOREST: LazyLock<SharingPredictor> = LazyLock::new(|| {
    SharingPredictor::learn(&rows(SEED, ROWS), SEED).expect("so many rows are enough to learn from")
});

/// How many answers of the forest are cached; if there are more, the cache is cleared. Chosen:
/// about a hundred MiB.
const CACHED_MAX: usize = 1 << 20;

/// The forest's predictions. They are cached, since a policy needs the same ones in many rounds,
/// and evaluating all trees each time took seven tenths of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct SpeedCache(BTreeMap<SharedJob, u64>);

impl SpeedCache {
    /// Returns a job's speed with co-runners, in thousandths of its speed alone.
    pub(super) fn speed(&mut self, shared: &SharedJob) -> u64 {
        if self.0.len() >= CACHED_MAX && !self.0.contains_key(shared) {
            self.0.clear();
        }
        *self.0.entry(*shared).or_insert_with(|| FOREST.predict(shared).value)
    }
}

/// The forest that predicts for `--share auto`. It learns from the same co-locations with a
/// controller's knowledge: percentages and how busy jobs are, but not which resources they use.
static LOAD_FOREST: LazyLock<ColocationPredictor> = LazyLock::new(|| {
    ColocationPredictor::learn(&runs(SEED, ROWS), SEED)
        .expect("so many runs are enough to learn from")
});

/// Returns the speeds of co-runners on such a part of a GPU, relative to their speeds alone on all
/// of it.
pub(super) fn speeds_by_load(slice: u16, clients: &[MpsClient]) -> Vec<SpeedRange> {
    let client = |known: &MpsClient| SharingClient {
        online: known.online,
        sm_percent: known.sm.get(),
        busy: known.busy,
    };
    let clients: Vec<SharingClient> = clients.iter().map(client).collect();
    let range = |found: tessera_predict::Prediction| {
        let [low, expected, high] = [found.low, found.value, found.high].map(clamped::<u32>);
        SpeedRange { low: low.min(expected), expected, high: high.max(expected) }
    };
    LOAD_FOREST.next_to_each_other(slice, &clients).into_iter().map(range).collect()
}

/// Generates random runs in a controller's form: how busy each job is, its percentage, and its
/// speed. While its kernels run, a job uses four fifths of the multiprocessors and up to the
/// study's 45 % of the bandwidth.
fn runs(seed: u64, count: u64) -> Vec<ColocatedRun> {
    let mut rng = SeededRng::named(seed, "co-located runs");
    (0..count).map(|task| colocated_run(task, &mut rng)).collect()
}

fn colocated_run(task: u64, rng: &mut SeededRng) -> ColocatedRun {
    let slices = SIZES[rng.index_below(SIZES.len())];
    let others = rng.index_below(2);
    let mut draw_job = |part: u8| {
        let busy = 50 + rng.below(950);
        let memory = rng.below(busy * 45 / 100 + 1);
        let demand = Demand { sm: clamped(busy * 4 / 5), memory: clamped(memory) };
        (SharingClient { online: false, sm_percent: part, busy: Some(clamped(busy)) }, demand)
    };
    let first = [30, 50, 70][index(task % 3)];
    let (own, demand) = draw_job(first);
    let (other, others_demand) = draw_job(100 - first);
    let mut sharers = vec![ContentionSharer { demand: Some(demand), cap: first }];
    let mut there = CoRunners::default();
    if others > 0 {
        there.add(&other, 1_000);
        sharers.push(ContentionSharer { demand: Some(others_demand), cap: 100 - first });
    }
    let slowed = contention::under_mps(&sharers, slices, WHOLE)[0];
    let slowed = rng.spread(slowed, 30).max(1_000);
    let slice = u16::from(slices) * 1_000 / u16::from(WHOLE);
    let colocation = Colocation { slice, own, others: there };
    ColocatedRun { task, colocation, speed_per_mille: clamped(1_000_000 / slowed) }
}

/// Generates random co-locations: one job with one to three co-runners on a slice of an A100.
/// Demands are in the range of the study's jobs, rounded (tables 2 and 5: SMs 5 to 81 %, bandwidth
/// 0.5 to 45 %).
pub fn rows(seed: u64, count: u64) -> Vec<MeasuredSharing> {
    let mut rng = SeededRng::named(seed, "colocation");
    (0..count).map(|task| row(task, &mut rng)).collect()
}

fn row(task: u64, rng: &mut SeededRng) -> MeasuredSharing {
    let slices = SIZES[rng.index_below(SIZES.len())];
    let others = 1 + rng.index_below(3);
    // Percentages in steps of ten with a sum of at most 100, like those of both policies.
    let mut left = 10_u64;
    let jobs: Vec<(Demand, u8)> = (0..=others)
        .map(|place| {
            let kept = (others - place) as u64;
            let part = 1 + rng.below((left - kept).max(1));
            left -= part;
            let demand = Demand { sm: draw(rng, 800), memory: draw(rng, 430) };
            (demand, clamped(part * 10))
        })
        .collect();
    let sharers: Vec<ContentionSharer> = jobs
        .iter()
        .map(|(demand, cap)| ContentionSharer { demand: Some(*demand), cap: *cap })
        .collect();
    let slowed = contention::under_mps(&sharers, slices, WHOLE)[0];
    // Noise of three percent, chosen: two measurements of the same pair are never equal.
    let slowed = rng.spread(slowed, 30).max(1_000);
    let shared = shared_job(jobs[0].0, jobs[0].1, &jobs[1..], (slices, WHOLE), rng.below(2) == 0);
    let speed_per_mille = clamped(1_000_000 / slowed);
    MeasuredSharing { task, shared, speed_per_mille }
}

/// Describes a job and its co-runners, each with its percentage.
pub(super) fn shared_job(
    own: Demand,
    percent: u8,
    others: &[(Demand, u8)],
    (slices, whole): (u8, u8),
    online: bool,
) -> SharedJob {
    let mut occupied = SliceUse::default();
    for (demand, cap) in others {
        let used = used(*demand, (slices, whole));
        // A cap limits only multiprocessors.
        occupied.sm += used.sm.min(u32::from(*cap) * 10);
        occupied.bandwidth += used.bandwidth;
        occupied.l2 += used.l2;
    }
    SharedJob {
        online,
        slice: u32::from(slices) * 1_000 / u32::from(whole.max(1)),
        sm_percent: percent,
        own: used(own, (slices, whole)),
        occupied,
        others: clamped(others.len()),
    }
}

/// Returns a job's use of a slice, from its use of a whole GPU. The model has no separate L2: its
/// use equals that of the bandwidth.
fn used(demand: Demand, (slices, whole): (u8, u8)) -> SliceUse {
    let part = |of: u16| (u32::from(of) * u32::from(whole) / u32::from(slices.max(1))).min(1_000);
    SliceUse { sm: part(demand.sm), bandwidth: part(demand.memory), l2: part(demand.memory) }
}

fn draw(rng: &mut SeededRng, below: u64) -> u16 {
    clamped(20 + rng.below(below))
}
