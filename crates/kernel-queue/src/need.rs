//! What a launch needs of its slice, from what the driver reports about its function and the device
//! (MMK §III-C, Listing 1: `req_sm` and `req_shared_mem`).
//!
//! The paper reads both from offline profiles. Here they follow from the launch, since the hardware
//! places whole blocks:
//!
//! ```text
//! blocks of an SM = min(block slots, warps / warps of a block, registers / registers of a block,
//!                       shared memory / shared memory of a block)
//! req_sm          = ceil(blocks / blocks of an SM) of all SMs
//! req_shared_mem  = resident blocks * shared memory of a block of all shared memory
//! ```
//!
//! Where it had to choose:
//!
//! * *Rounding.* All amounts are rounded up, as the hardware allocates. The units are 256 registers
//!   of a warp, 256 bytes of shared memory, and four warps of an SM.
//! * *Few blocks.* The device spreads them over more SMs than `req_sm`. The other kernel's blocks
//!   then run on the same SMs, which have space for both.
//! * *Bandwidth* does not follow from a launch, and no counter of it may run all the time. It is zero.
//! * *Clusters, and carve-outs of the L1 cache,* are not considered.

use tessera_model::number::clamped;

use crate::admission::ResourceNeed;
use crate::ids::Dims;

/// What one SM of a device has, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// SMs of the device: of the MIG device, or of the client's part under an MPS percentage.
    pub multiprocessors: u32,
    /// Most threads of a block.
    pub block_threads: u32,
    /// Threads of an SM.
    pub threads: u32,
    /// Blocks of an SM.
    pub blocks: u32,
    /// Registers of an SM.
    pub registers: u32,
    /// Shared memory of an SM, in bytes.
    pub shared_bytes: u32,
    /// Shared memory that the system takes for each block, in bytes.
    pub shared_reserved_bytes: u32,
}

/// What a function needs, as the driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionResources {
    /// Registers of a thread.
    pub registers: u32,
    /// Static shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Most threads of a block of this function.
    pub block_threads: u32,
}

impl FunctionResources {
    /// Returns the larger need of two functions with one name.
    #[must_use]
    pub fn max_of_each(self, other: Self) -> Self {
        Self {
            registers: self.registers.max(other.registers),
            shared_bytes: self.shared_bytes.max(other.shared_bytes),
            block_threads: self.block_threads.max(other.block_threads),
        }
    }
}

/// One launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchSize {
    /// The grid's sides, in blocks.
    pub grid: Dims,
    /// The block's sides, in threads.
    pub block: Dims,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

const WARP: u64 = 32;
/// Registers are allocated to a warp in this unit.
const REGISTERS_UNIT: u64 = 256;
/// Warps with registers are placed on an SM in this unit: one for each of its four parts.
const WARPS_UNIT: u64 = 4;
/// Shared memory is allocated in this unit, in bytes. Newer devices have half of it.
const SHARED_UNIT: u64 = 256;

/// Returns what a launch needs of the device, or `None` if the device can't run it.
pub fn of_launch(
    size: &LaunchSize,
    function: &FunctionResources,
    device: &DeviceLimits,
) -> Option<ResourceNeed> {
    let fit = blocks_of_multiprocessor(size, function, device)?;
    let blocks = size.grid.count();
    let all = u64::from(device.multiprocessors);
    let multiprocessors = blocks.div_ceil(fit).min(all);
    let resident = blocks.min(fit.saturating_mul(all));
    let shared = resident.saturating_mul(shared_of_block(size, function, device));
    Some(ResourceNeed {
        sm_thousandths: thousandths(multiprocessors, all),
        shared_thousandths: thousandths(shared, u64::from(device.shared_bytes) * all),
        bandwidth_thousandths: 0,
    })
}

/// Returns how many blocks of a launch fit on one SM at once; `None` if not even one does.
pub fn blocks_of_multiprocessor(
    size: &LaunchSize,
    function: &FunctionResources,
    device: &DeviceLimits,
) -> Option<u64> {
    let (blocks, threads) = (size.grid.count(), size.block.count());
    let most = u64::from(device.block_threads.min(function.block_threads));
    if blocks == 0 || threads == 0 || threads > most || device.multiprocessors == 0 {
        return None;
    }
    let warps = threads.div_ceil(WARP);
    let by_warps = u64::from(device.threads) / WARP / warps;
    let registers = (u64::from(function.registers.max(1)) * WARP).next_multiple_of(REGISTERS_UNIT);
    let warps_with_registers = u64::from(device.registers) / registers / WARPS_UNIT * WARPS_UNIT;
    let shared = shared_of_block(size, function, device);
    let by_shared = u64::from(device.shared_bytes).checked_div(shared).unwrap_or(u64::MAX);
    let fit =
        u64::from(device.blocks).min(by_warps).min(warps_with_registers / warps).min(by_shared);
    (fit > 0).then_some(fit)
}

fn shared_of_block(size: &LaunchSize, function: &FunctionResources, device: &DeviceLimits) -> u64 {
    let own = u64::from(function.shared_bytes) + u64::from(size.shared_bytes);
    (own + u64::from(device.shared_reserved_bytes)).next_multiple_of(SHARED_UNIT)
}

/// Returns a part of a whole, rounded up, and at most all of it.
fn thousandths(part: u64, whole: u64) -> u32 {
    let thousandths = (u128::from(part) * 1_000).div_ceil(u128::from(whole.max(1)));
    clamped::<u32>(thousandths).min(1_000)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An A100.
    const DEVICE: DeviceLimits = DeviceLimits {
        multiprocessors: 108,
        block_threads: 1_024,
        threads: 2_048,
        blocks: 32,
        registers: 65_536,
        shared_bytes: 167_936,
        shared_reserved_bytes: 1_024,
    };
    const FUNCTION: FunctionResources =
        FunctionResources { registers: 32, shared_bytes: 0, block_threads: 1_024 };

    fn size(blocks: u32, threads: u32, shared_bytes: u32) -> LaunchSize {
        LaunchSize { grid: Dims([blocks, 1, 1]), block: Dims([threads, 1, 1]), shared_bytes }
    }

    fn fit(size: LaunchSize, function: FunctionResources) -> Option<u64> {
        blocks_of_multiprocessor(&size, &function, &DEVICE)
    }

    #[test]
    fn each_limit_of_an_sm_bounds_its_blocks() {
        let registers = |registers| FunctionResources { registers, ..FUNCTION };

        assert_eq!(fit(size(1, 32, 0), FUNCTION), Some(32), "block slots");
        assert_eq!(fit(size(1, 256, 0), FUNCTION), Some(8), "threads");
        assert_eq!(fit(size(1, 256, 0), registers(64)), Some(4), "registers");
        assert_eq!(fit(size(1, 256, 0), registers(33)), Some(6), "registers in units: 40 each");
        assert_eq!(fit(size(1, 256, 48 * 1_024), FUNCTION), Some(3), "shared memory");
        assert_eq!(fit(size(1, 256, 163 * 1_024), FUNCTION), Some(1), "all shared memory");
        assert_eq!(fit(size(1, 1_024, 0), registers(255)), None, "more registers than there are");
        assert_eq!(fit(size(1, 2_048, 0), FUNCTION), None, "no block has so many threads");
    }

    #[test]
    fn a_launch_needs_the_sms_that_its_blocks_fill() {
        let need = |blocks| of_launch(&size(blocks, 256, 0), &FUNCTION, &DEVICE).unwrap();

        assert_eq!(need(8).sm_thousandths, 10, "one of 108, rounded up");
        assert_eq!(need(9).sm_thousandths, 19);
        assert_eq!(need(8 * 54).sm_thousandths, 500);
        assert_eq!(need(8 * 108), need(1_000_000), "more blocks wait for the first ones");
        assert_eq!(need(8 * 108).sm_thousandths, 1_000);
        assert_eq!(need(8 * 108).bandwidth_thousandths, 0, "nothing counts it");
    }

    #[test]
    fn a_launch_of_few_threads_may_need_all_shared_memory() {
        let need = of_launch(&size(108, 64, 160 * 1_024), &FUNCTION, &DEVICE).unwrap();

        assert_eq!(need.sm_thousandths, 1_000, "one block fits on an SM");
        assert!(need.shared_thousandths > 980, "{need:?}");
    }

    fn launch() -> impl Strategy<Value = (LaunchSize, FunctionResources, DeviceLimits)> {
        let device =
            (1_u32..200, 0_u32..300_000, 0_u32..2_048).prop_map(|(sms, shared, reserved)| {
                DeviceLimits {
                    multiprocessors: sms,
                    shared_bytes: shared,
                    shared_reserved_bytes: reserved,
                    ..DEVICE
                }
            });
        let function = (0_u32..256, 0_u32..60_000, 1_u32..=1_024).prop_map(
            |(registers, shared_bytes, block_threads)| FunctionResources {
                registers,
                shared_bytes,
                block_threads,
            },
        );
        let size = (1_u32..100_000, 1_u32..=1_024, 0_u32..100_000)
            .prop_map(|(blocks, threads, shared)| size(blocks, threads, shared));
        (size, function, device)
    }

    proptest! {
        #[test]
        fn a_need_never_exceeds_the_slice((size, function, device) in launch()) {
            if let Some(need) = of_launch(&size, &function, &device) {
                prop_assert!(need.fits(&ResourceNeed::WHOLE), "{need:?}");
                prop_assert!(need.sm_thousandths > 0);
            }
        }

        #[test]
        fn a_larger_grid_never_needs_less(
            (size, function, device) in launch(),
            more in 0_u32..100_000,
        ) {
            let larger = LaunchSize { grid: Dims([size.grid.0[0] + more, 1, 1]), ..size };
            let (one, other) =
                (of_launch(&size, &function, &device), of_launch(&larger, &function, &device));
            prop_assert_eq!(one.is_some(), other.is_some());
            if let Some((one, other)) = one.zip(other) {
                prop_assert!(one.fits(&other), "{:?} {:?}", one, other);
            }
        }

        #[test]
        fn more_registers_or_shared_memory_never_need_less_of_the_sms(
            (size, function, device) in launch(),
            registers in 0_u32..100,
            shared in 0_u32..50_000,
        ) {
            let heavier = FunctionResources {
                registers: function.registers + registers,
                shared_bytes: function.shared_bytes + shared,
                ..function
            };
            if let Some(other) = of_launch(&size, &heavier, &device) {
                let one = of_launch(&size, &function, &device).expect("a lighter one runs too");
                prop_assert!(one.sm_thousandths <= other.sm_thousandths);
            }
        }

        #[test]
        fn the_blocks_of_an_sm_fit_on_it((size, function, device) in launch()) {
            if let Some(fit) = blocks_of_multiprocessor(&size, &function, &device) {
                let threads = size.block.count();
                prop_assert!(fit * threads <= u64::from(device.threads));
                prop_assert!(fit * threads * u64::from(function.registers) <= u64::from(device.registers));
                let shared = u64::from(function.shared_bytes + size.shared_bytes);
                prop_assert!(fit * shared <= u64::from(device.shared_bytes));
            }
        }
    }
}
