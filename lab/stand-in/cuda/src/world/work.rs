//! What operations are, before they are put anywhere: into a stream, or into a graph.

use std::ffi::c_void;
use std::sync::Arc;

use tessera_stand_in::cuda::image::{ImageKernel, KernelOperation, LaunchShape};
use tessera_stand_in::cuda::schedule::rates::WHOLE;
use tessera_stand_in::cuda::schedule::{DemandRates, DeviceEngine, OPEN_ENDED};
use tessera_stand_in::cuda::visible::VisibleDevice;

use super::{DriverState, HostWork, JobOp, MemoryEffect, OperationKind};
use crate::abi::{CallResult, CudaCode, H, HostFunction, StreamCallback};
use crate::memory::{self, CudaMemory};

/// The modulus of `affine`: 2^61 − 1, a prime.
const MODULUS: u64 = (1 << 61) - 1;

/// Bytes a nanosecond over the host's bus: PCI Express 4.0 with 16 lanes, as programs see it.
const BUS_BYTES_PER_NS: u64 = 25;
/// Bytes a nanosecond within the device, read and written: of the order of GPUs with HBM.
const DEVICE_BYTES_PER_NS: u64 = 700;
/// The minimum time of a copy, in nanoseconds.
const COPY_LEAST: u64 = 2_000;

/// One operation.
#[derive(Clone)]
pub enum StreamStep {
    Kernel(KernelLaunch),
    Copy { to: u64, from: u64, bytes: u64, over_bus: bool, staged: Option<Arc<[u8]>> },
    Fill { at: u64, pattern: Vec<u8>, count: u64 },
    Host(HostFunction, *mut c_void),
    Callback { function: StreamCallback, stream: H, data: *mut c_void },
    Record(H),
    Free(u64),
}

// SAFETY: the pointers are handles, which are numbers, and the program's own for its functions.
unsafe impl Send for StreamStep {}

/// One launch of a kernel.
#[derive(Clone)]
pub struct KernelLaunch {
    /// The handle with which it was launched.
    pub function: H,
    pub kernel: Arc<ImageKernel>,
    pub shape: LaunchShape,
    pub shared_bytes: u32,
    /// Values of the parameters.
    pub params: Vec<Vec<u8>>,
}

impl DriverState {
    /// Makes an operation of a step, for a lane of a context.
    pub fn what(&mut self, context: u64, step: StreamStep, lane: u64) -> CallResult<OperationKind> {
        Ok(match step {
            StreamStep::Kernel(launch) => {
                let device = self.context(context)?.device;
                let time = launch.kernel.law(launch.shape).draw(&mut self.rng);
                let need = need(&launch.kernel, &self.devices[device].visible);
                OperationKind::Job(launch.into_job(time, need, lane))
            }
            StreamStep::Copy { to, from, bytes, over_bus, staged } => {
                let speed = if over_bus { BUS_BYTES_PER_NS } else { DEVICE_BYTES_PER_NS };
                let effect: MemoryEffect = Box::new(move |_: &CudaMemory| {
                    let from = staged
                        .as_ref()
                        .map_or(from, |bytes| bytes.as_ptr().expose_provenance() as u64);
                    // SAFETY: both ranges were checked when the copy was requested; the program has
                    // to keep them until it is completed.
                    unsafe { memory::copy(to, from, bytes) };
                    Ok(())
                });
                OperationKind::Job(copy_job("copy", COPY_LEAST + bytes / speed, effect))
            }
            StreamStep::Fill { at, pattern, count } => {
                let bytes = pattern.len() as u64 * count;
                let effect: MemoryEffect = Box::new(move |_: &CudaMemory| {
                    // SAFETY: as of copies.
                    unsafe { memory::fill(at, &pattern, count) };
                    Ok(())
                });
                OperationKind::Job(copy_job(
                    "fill",
                    COPY_LEAST + bytes / DEVICE_BYTES_PER_NS,
                    effect,
                ))
            }
            StreamStep::Host(function, data) => {
                OperationKind::Host { function: HostWork::Function(function, data) }
            }
            StreamStep::Callback { function, stream, data } => {
                OperationKind::Host { function: HostWork::Callback { function, stream, data } }
            }
            StreamStep::Record(event) => {
                let found = self.events.get(event)?;
                OperationKind::Record { event, generation: found.generation }
            }
            StreamStep::Free(address) => OperationKind::Free { address },
        })
    }
}

fn copy_job(kind: &'static str, work: u64, effect: MemoryEffect) -> JobOp {
    let need = DemandRates { sms: WHOLE, bandwidth: 0 };
    let effect = Some(effect);
    JobOp {
        engine: DeviceEngine::Copy,
        work,
        need,
        kind,
        name: Arc::from(kind),
        effect,
        until: None,
    }
}

/// Returns what a kernel needs of the place on which it runs, which may be more than all.
fn need(kernel: &ImageKernel, place: &VisibleDevice) -> DemandRates {
    let (sms, bandwidth) = place.share;
    DemandRates {
        sms: kernel.sms.map_or(WHOLE, |of_gpu| of_gpu * WHOLE / sms).max(1),
        bandwidth: kernel.bandwidth * WHOLE / bandwidth,
    }
}

impl KernelLaunch {
    fn into_job(self, time: u64, need: DemandRates, lane: u64) -> JobOp {
        let words: Vec<_> = self.params.iter().map(|value| word(value)).collect();
        let op = self.kernel.op;
        let (work, until) = match (op, &words[..]) {
            (KernelOperation::SpinUntil, [at, value, ..]) => (OPEN_ENDED, Some((*at, *value))),
            _ => (time, None),
        };
        let effect: Option<MemoryEffect> = match op {
            KernelOperation::None | KernelOperation::SpinUntil => None,
            KernelOperation::Axpy
            | KernelOperation::Affine
            | KernelOperation::Append
            | KernelOperation::Trap => {
                Some(Box::new(move |memory: &CudaMemory| compute(op, &words, lane, memory)))
            }
        };
        let name = Arc::from(self.kernel.name.as_str());
        JobOp { engine: DeviceEngine::Compute, work, need, kind: "kernel", name, effect, until }
    }
}

fn word(value: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let length = value.len().min(8);
    bytes[..length].copy_from_slice(&value[..length]);
    u64::from_le_bytes(bytes)
}

/// Does to memory what a kernel does; memory that isn't there is its fault.
fn compute(op: KernelOperation, words: &[u64], lane: u64, memory: &CudaMemory) -> CallResult {
    let bad = CudaCode::ILLEGAL_ADDRESS;
    let check = |at: u64, bytes: u64| memory.holds(at, bytes).then_some(()).ok_or(bad);
    match (op, words) {
        (KernelOperation::Affine, [x, a, b]) => {
            check(*x, 8)?;
            // SAFETY: checked just above; one lock keeps all kernels apart.
            unsafe { memory::write_word(*x, affine(memory::read_word(*x), *a, *b)) };
            Ok(())
        }
        (KernelOperation::Append, [log, value]) => {
            check(*log, 16)?;
            // SAFETY: checked just above.
            let (length, capacity) =
                unsafe { (memory::read_word(*log), memory::read_word(*log + 8)) };
            if length >= capacity {
                return Err(bad);
            }
            let entry = log + 16 + length * 16;
            check(entry, 16)?;
            // SAFETY: checked just above.
            unsafe {
                memory::write_word(entry, *value);
                memory::write_word(entry + 8, lane);
                memory::write_word(*log, length + 1);
            }
            Ok(())
        }
        (KernelOperation::Axpy, [count, a, x, y]) => {
            let bytes = count.checked_mul(8).ok_or(bad)?;
            check(*x, bytes)?;
            check(*y, bytes)?;
            for at in (0..bytes).step_by(8) {
                // SAFETY: checked just above.
                unsafe {
                    let (from, to) = (memory::read_word(x + at), memory::read_word(y + at));
                    let sum = f64::from_bits(*a).mul_add(f64::from_bits(from), f64::from_bits(to));
                    memory::write_word(y + at, sum.to_bits());
                }
            }
            Ok(())
        }
        (KernelOperation::None | KernelOperation::SpinUntil, _) => Ok(()),
        // Too few parameters are read from wherever: as a device would have it.
        (
            KernelOperation::Affine
            | KernelOperation::Append
            | KernelOperation::Axpy
            | KernelOperation::Trap,
            _,
        ) => Err(bad),
    }
}

/// Returns `a * x + b` modulo 2^61 − 1.
fn affine(x: u64, a: u64, b: u64) -> u64 {
    let modulus = u128::from(MODULUS);
    let value = (u128::from(a) * u128::from(x) + u128::from(b)) % modulus;
    #[expect(clippy::cast_possible_truncation, reason = "below the modulus, which has 61 bits")]
    let value = value as u64;
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affine_steps_do_not_commute() {
        let (one, other) = (|x| affine(x, 3, 5), |x| affine(x, 7, 11));

        assert_ne!(one(other(1)), other(one(1)));
        assert_eq!(affine(MODULUS - 1, MODULUS - 1, 0), 1);
    }
}
