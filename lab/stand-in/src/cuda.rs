//! The parts of the CUDA driver stand-in (`lab/stand-in/cuda`) that need no driver interface: the
//! timed device, module images, which devices a process sees, and the player's recordings.
//!
//! | variable | meaning | unset |
//! |---|---|---|
//! | `TESSERA_SIM_CUDA_VERSION` | CUDA version of the driver: 11080, 12010, 12040, 12090, 13000 or 13050 | 12090 |
//! | `TESSERA_SIM_CUDA_CLOCK` | `real`, or `virtual` for one process without real waits | `real` |
//! | `TESSERA_SIM_CUDA_SLICE_US` | length of a time slice between contexts, in µs | 2000 |
//! | `TESSERA_SIM_CUDA_SWITCH_US` | cost of a context switch, in µs | 150 |
//! | `TESSERA_SIM_CUDA_LAUNCH_NS` | least time of a launch call, in ns | 4500 |
//! | `TESSERA_SIM_CUDA_RECORD_NS` | least time of recording an event, in ns | 2500 |
//! | `TESSERA_SIM_CUDA_START_NS` | from launch to the kernel's earliest start, in ns | 3000 |
//! | `TESSERA_SIM_CUDA_CONTEXT_MIB` | memory that a context takes for itself, in MiB | 300 |
//! | `TESSERA_SIM_CUDA_TRACE` | folder for traces, `cuda-PID.jsonl` each | none |
//! | `TESSERA_SIM_CUDA_STRICT` | set to abort at a call of what isn't simulated | returns 801 |
//! | `TESSERA_SIM_CUDA_FAULTS` | faults of the process, as [`crate::faults`] writes them | none |
//! | `TESSERA_SIM_CUDA_SEED` | seed of all random numbers | 0 |
//!
//! The node is that of [`crate`]: `TESSERA_SIM_NODE` and `TESSERA_SIM_GPUS`. Slice and switch
//! are those of the process that first used the device; no source states them for a GPU of
//! ours, so they are settings.

pub mod board;
pub mod duration;
pub mod image;
pub mod names;
pub mod program;
pub mod recording;
pub mod schedule;
pub mod settings;
pub mod visible;
