//! Programs modelled on the networks of FIKIT's ten pairs A to J (§4.1).
//!
//! The pairs are published. For pair A totals are published, too. From them follow the time alone
//! of both (32.32 ms and 12.97 ms), and that keypointrcnn keeps the device busy for 9.69 ms of it.
//! No kernel times or gaps of any network are published, so everything else here is a proxy. It was
//! chosen once to resemble such networks, and never tuned to a result. Detectors have many small
//! kernels and many returns to the host, backbones one burst of kernels.

use super::program::{ProgramStep, SimulatedProgram};
use tessera_model::number::{clamped, index};
use tessera_predict::random::SeededRng;

/// One network as a task that is run again and again.
#[derive(Clone, Copy, Debug)]
pub struct ProgramModel {
    /// Its name in torchvision.
    pub name: &'static str,
    /// Time of one task alone, in microseconds.
    pub alone_us: u64,
    /// How long the device is busy during that time.
    pub busy_us: u64,
    /// Launches in a task.
    pub launches: u64,
    /// Different kernels among them.
    pub kernels: u64,
    /// Launches that are followed by a gap.
    pub gaps: u64,
}

/// A pair of programs on one device.
#[derive(Clone, Copy, Debug)]
pub struct ProgramPair {
    /// Its letter in the paper.
    pub letter: char,
    /// The one of high priority.
    pub high: ProgramModel,
    /// The one of low priority.
    pub low: ProgramModel,
}

const fn model(
    name: &'static str,
    [alone_us, busy_us]: [u64; 2],
    [launches, kernels, gaps]: [u64; 3],
) -> ProgramModel {
    ProgramModel { name, alone_us, busy_us, launches, kernels, gaps }
}

const KEYPOINT: ProgramModel = model("keypointrcnn_resnet50_fpn", [32_320, 9_690], [320, 90, 60]);
const FASTER: ProgramModel = model("fasterrcnn_resnet50_fpn", [25_000, 9_000], [260, 80, 48]);
const MASK: ProgramModel = model("maskrcnn_resnet50_fpn", [29_000, 10_500], [290, 85, 52]);
const ALEX: ProgramModel = model("alexnet", [1_600, 600], [24, 16, 6]);
const DEEPLAB_50: ProgramModel = model("deeplabv3_resnet50", [16_000, 13_600], [190, 60, 12]);
const DEEPLAB_101: ProgramModel = model("deeplabv3_resnet101", [24_000, 24_000], [330, 70, 0]);
const FCN: ProgramModel = model("fcn_resnet50", [12_970, 12_970], [160, 60, 0]);
const FCOS: ProgramModel = model("fcos_resnet50_fpn", [27_000, 22_000], [310, 90, 20]);
const VGG: ProgramModel = model("vgg16", [3_200, 3_200], [45, 30, 0]);
const RESNET: ProgramModel = model("resnet101", [13_000, 11_000], [320, 60, 8]);

const fn pair(letter: char, high: ProgramModel, low: ProgramModel) -> ProgramPair {
    ProgramPair { letter, high, low }
}

/// FIKIT's ten pairs.
pub const PAIRS: [ProgramPair; 10] = [
    pair('A', KEYPOINT, FCN),
    pair('B', KEYPOINT, FCOS),
    pair('C', FASTER, DEEPLAB_101),
    pair('D', FASTER, FCN),
    pair('E', KEYPOINT, DEEPLAB_101),
    pair('F', ALEX, VGG),
    pair('G', MASK, FCN),
    pair('H', MASK, KEYPOINT),
    pair('I', MASK, FCOS),
    pair('J', DEEPLAB_50, RESNET),
];

impl ProgramModel {
    /// Returns the task's launches: the same for every task of the model.
    ///
    /// A kernel has one nominal time wherever it stands; a gap belongs to a place in the task.
    /// Both are spread widely, about 1 to 10. Every other gap begins with a call that waits for
    /// the device, the others with work of the host that does not.
    pub fn program(&self) -> SimulatedProgram {
        let mut rng = SeededRng::named(1, self.name);
        let weights: Vec<u64> = (0..self.kernels).map(|_| wide(&mut rng)).collect();
        let places: Vec<u64> = (0..self.launches).map(|_| rng.below(self.kernels)).collect();
        let weight = |kernel: u64| usize::try_from(kernel).map_or(1, |kernel| weights[kernel]);
        let all: u64 = places.iter().map(|kernel| weight(*kernel)).sum();
        let busy = self.busy_us * 1_000;
        let gaps = self.gap_times(&mut rng);
        let mut steps: Vec<ProgramStep> = places
            .iter()
            .zip(gaps)
            .enumerate()
            .map(|(place, (kernel, gap_ns))| ProgramStep {
                kernel: clamped(*kernel),
                took_ns: busy * weight(*kernel) / all,
                gap_ns,
                waits_for_device: place % 2 == 0,
                host_ns: 0,
            })
            .collect();
        // A request ends when its result is there.
        if let Some(last) = steps.last_mut() {
            last.waits_for_device = true;
        }
        SimulatedProgram::new(self.name, steps)
    }

    /// Returns the gap after each launch, in nanoseconds.
    fn gap_times(&self, rng: &mut SeededRng) -> Vec<u64> {
        let mut weights = vec![0; index(self.launches)];
        let mut left = self.gaps.min(self.launches);
        while left > 0 {
            let place = rng.index_below(weights.len());
            if weights[place] == 0 {
                weights[place] = wide(rng);
                left -= 1;
            }
        }
        let all: u64 = weights.iter().sum::<u64>().max(1);
        let idle = (self.alone_us - self.busy_us) * 1_000;
        weights.into_iter().map(|weight| idle * weight / all).collect()
    }
}

/// Returns a weight of 900 to 10,000, the small ones far more often.
fn wide(rng: &mut SeededRng) -> u64 {
    1_000_000 / (100 + rng.below(1_000))
}
