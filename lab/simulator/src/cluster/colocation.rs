//! Training samples of co-location for experiments. MMK measures 1,400 of them on a GPU. Here the study's model of
//! contention replaces the GPU, or ParvaGPU's measurements do.

use tessera_lab_learners::sharing::{MeasuredSharing, SharedJob, SliceUse};
use tessera_model::number::clamped;
use tessera_placement::Demand;
use tessera_predict::colocation::{CoRunners, ColocatedRun, Colocation, SharingClient};
use tessera_predict::random::SeededRng;

use super::contention::{self, ContentionSharer};
use super::job::SimulatedJob;
use super::overheads::ContentionTruth;
use super::sharing::{SharedInstance, SharingJob};
use super::workload::papers::plain;

/// The number of MMK's measurements (§III-A).
pub const ROWS: u64 = 1_400;

/// Sizes of an A100's instances that are shared, in compute slices: those of
/// MMK's partitions (Algorithm 1) except 1g, which is too small for two jobs.
const SIZES: [u8; 4] = [2, 3, 4, 7];
const WHOLE: u8 = 7;

/// Noise of measured speeds, in thousandths. Chosen: two measurements of the same pair are never equal.
const NOISE: u64 = 30;

/// Generates runs of random tasks in a controller's form: how busy each job is, its percentage, and its speed as it was
/// measured of such loads. Each task runs so many times, with another co-runner or none. While its kernels run, a job
/// uses half to all of the multiprocessors; a controller doesn't know that.
pub(super) fn runs(seed: u64, tasks: u64, each: u64) -> Vec<ColocatedRun> {
    let mut rng = SeededRng::named(seed, "co-located runs");
    let mut runs = Vec::new();
    for task in 0..tasks {
        let own = drawn_task(&mut rng);
        runs.extend((0..each).map(|_| ColocatedRun { task, ..run_of(&own, &mut rng) }));
    }
    runs
}

/// A task, with the part of the time in which its kernels run.
fn drawn_task(rng: &mut SeededRng) -> (SimulatedJob, u16) {
    let busy = 50 + rng.below(950);
    let sm = busy * (500 + rng.below(501)) / 1_000;
    let demand = Demand { sm: clamped(sm), memory: 0 };
    let name = format!("task {}", rng.below(1 << 32));
    (SimulatedJob { demand: Some(demand), ..plain(&name, 4_000, &[]) }, clamped(busy))
}

fn run_of((own, busy): &(SimulatedJob, u16), rng: &mut SeededRng) -> ColocatedRun {
    let slices = SIZES[rng.index_below(SIZES.len())];
    let first = [30, 50, 70][rng.index_below(3)];
    let (other, other_busy) = drawn_task(rng);
    let client =
        |sm_percent: u8, busy: u16| SharingClient { online: false, sm_percent, busy: Some(busy) };
    let mut there = CoRunners::default();
    let mut jobs = vec![SharingJob { job: own, cap: first }];
    if rng.below(2) > 0 {
        there.add(&client(100 - first, other_busy), 1_000);
        jobs.push(SharingJob { job: &other, cap: 100 - first });
    }
    let on = SharedInstance { gpu: "a100-80gb", slices, whole: WHOLE };
    let slowed = on.slowed(ContentionTruth::Measured, &jobs)[0];
    let slowed = rng.spread(slowed, NOISE).max(1_000);
    let slice = u16::from(slices) * 1_000 / u16::from(WHOLE);
    let colocation = Colocation { slice, own: client(first, *busy), others: there };
    ColocatedRun { task: 0, colocation, speed_per_mille: clamped(1_000_000 / slowed) }
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
    let slowed = rng.spread(slowed, NOISE).max(1_000);
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
