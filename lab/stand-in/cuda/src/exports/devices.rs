//! Devices, before there are contexts.

use std::ffi::c_char;

use tessera_stand_in::cuda::schedule::rates::WHOLE;

use crate::abi::{CallResult, CudaCode, OutPointer, to_int, to_native};
use crate::gate::cuda;
use crate::world::CudaDevice;

/// Bus of the first GPU, as NVML's stand-in has it.
const FIRST_BUS: i32 = 7;
/// Highest attribute of the newest header that is known; what has no value here is 0, "no".
const ATTRIBUTE_MAX: i32 = 161;

cuda! {
    fn cuDeviceGetCount(count: OutPointer<i32>) |call| {
        let devices = call.driver.world().devices.len();
        count.set(to_int(devices)?)
    }

    fn cuDeviceGet(device: OutPointer<i32>, ordinal: i32) |call| {
        call.driver.world().device(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetName(name: OutPointer<c_char>, length: i32, device: i32) |call| {
        let world = call.driver.world();
        write_text(name, length, &world.device(device)?.visible.name)
    }

    /// The GPU's, also of a MIG device.
    fn cuDeviceGetUuid(uuid: OutPointer<[u8; 16]>, device: i32) |call| {
        uuid.set(call.driver.world().device(device)?.visible.gpu_uuid)
    }

    /// The MIG device's.
    fn cuDeviceGetUuid_v2(uuid: OutPointer<[u8; 16]>, device: i32) |call| {
        uuid.set(call.driver.world().device(device)?.visible.uuid)
    }

    fn cuDeviceTotalMem_v2(bytes: OutPointer<usize>, device: i32) |call| {
        let world = call.driver.world();
        bytes.set(to_native(world.device(device)?.visible.memory_bytes))
    }

    fn cuDeviceGetAttribute(value: OutPointer<i32>, attribute: i32, device: i32) |call| {
        let world = call.driver.world();
        let cap = world.mps.as_ref().map_or(WHOLE, |mps| mps.cap);
        value.set(value_of(world.device(device)?, cap, attribute)?)
    }

    fn cuDeviceGetPCIBusId(id: OutPointer<c_char>, length: i32, device: i32) |call| {
        let world = call.driver.world();
        let bus = FIRST_BUS + to_int::<_, i32>(world.device(device)?.visible.gpu)?;
        write_text(id, length, &format!("0000:{bus:02X}:00.0"))
    }
}

fn write_text(to: OutPointer<c_char>, length: i32, text: &str) -> CallResult {
    let length = usize::try_from(length).ok().filter(|length| *length > 0);
    let length = length.ok_or(CudaCode::INVALID_VALUE)?;
    let bytes = text.bytes().take(length - 1).chain([0]);
    for (index, byte) in bytes.enumerate() {
        to.set_at(index, c_char::from_ne_bytes([byte]))?;
    }
    Ok(())
}

/// Returns an attribute by its number in `cuda.h`. What depends on the GPU is the catalogue's;
/// the limits are those of compute capability 8.0. A client of an MPS server sees the SMs of its
/// part, `cap` thousandths.
fn value_of(device: &CudaDevice, cap: u32, attribute: i32) -> CallResult<i32> {
    let seen = &device.visible;
    let bus = FIRST_BUS + to_int::<_, i32>(seen.gpu)?;
    Ok(match attribute {
        // Threads of a block; its x and y; its z.
        1..=3 => 1_024,
        4 => 64,
        // Blocks of a grid by axis.
        5 => i32::MAX,
        6 | 7 => 65_535,
        // Shared memory of a block, constant memory, warp, pitch, registers of a block.
        8 => 49_152,
        9 => 65_536,
        10 => 32,
        11 => i32::MAX,
        12 => 65_536,
        // Clock in kHz: the study's A30.
        13 => 1_440_000,
        14 => 512,
        15 => 1,
        16 => to_int((seen.sms * cap).div_ceil(WHOLE))?,
        // No limit on run time, not integrated, can map host memory, default compute mode.
        17 | 18 => 0,
        19 => 1,
        20 => 0,
        // Concurrent kernels, ECC, bus, device, no TCC, memory clock and bus width.
        31 | 32 => 1,
        33 => bus,
        34 | 35 => 0,
        36 => 1_215_000,
        37 => 3_072,
        // L2 cache, threads of an SM, copy engines, unified addressing.
        38 => 25_165_824,
        39 => 2_048,
        40 => 2,
        41 => 1,
        50 => 0,
        75 => seen.capability.0,
        76 => seen.capability.1,
        78 => 1,
        // Shared memory and registers of an SM, managed memory, no multi-GPU board.
        81 => 167_936,
        82 => 65_536,
        83 => 1,
        84 | 85 => 0,
        // Compute preemption, cooperative launch, shared memory of a block by request.
        89 => 0,
        90 => 1,
        91 => 0,
        95 => 1,
        96 => 0,
        97 => 166_912,
        // Host memory can be registered; no virtual memory management; blocks of an SM.
        99 => 1,
        102 => 0,
        106 => 32,
        // Shared memory that the system takes for each block.
        111 => 1_024,
        // No pools to set up, no clusters.
        115 | 120 => 0,
        _ if (1..=ATTRIBUTE_MAX).contains(&attribute) => 0,
        _ => return Err(CudaCode::INVALID_VALUE),
    })
}
