//! Faults on demand: what goes wrong, where, and when.
//!
//! A fault list has one fault a line; empty lines and lines that begin with `#` are skipped. The
//! file `faults` in the node's folder is read again at each call, so that a test can change it
//! while programs run. Write it with [`SimulatedNode::set_faults`], or to another name and rename
//! it. `TESSERA_SIM_FAULTS` holds faults of one process, separated by line ends or `;`.
//!
//! ```text
//! call=nvmlDeviceCreateGpuInstanceWithPlacement nth=2 code=23
//! call=nvmlDeviceGetUUID code=999 times=3
//! call=nvmlGpuInstanceDestroy gpu=1 hang
//! delay_ms=500
//! call=nvmlComputeInstanceDestroy nth=1 crash
//! call=nvmlDeviceSetMigMode activation=16
//! call=nvmlGpuInstanceDestroy nth=1 ghost
//! gpu=0 lost
//! gpu=0 xid=79
//! gpu=0 xid=94 gi=1 ci=0
//! gpu=0 recovery=1
//! gpu=0 remap=1
//! ```
//!
//! Each line holds conditions and exactly one effect, in any order.
//!
//! | condition | holds for |
//! |---|---|
//! | `call=NAME` | this function of NVML, by its exported name; any if left out |
//! | `gpu=N` | calls on this GPU or on what stands on it; any call if left out |
//! | `nth=N` | the Nth call that meets the other conditions, from 1 |
//! | `times=N` | so many such calls, from the `nth` on (1 if only `nth` is given; without both, every one) |
//!
//! | effect | the call |
//! |---|---|
//! | `code=N` | returns this `nvmlReturn_t`, 1 to 999, and does nothing |
//! | `hang` | never returns; no lock is held |
//! | `delay_ms=N` | takes that much longer, up to 600000 |
//! | `crash` | aborts its process |
//! | `ghost` | `nvmlGpuInstanceDestroy` and `nvmlComputeInstanceDestroy` only: reports success, and the instance stays (go-nvml issue 146) |
//! | `activation=N` | `nvmlDeviceSetMigMode` only: leaves the mode pending and returns N as its activation status |
//! | `lost` | (needs `gpu`, takes no other condition) each call on the GPU returns 15, GPU is lost |
//! | `xid=N`, with `gi=N` and `ci=N` at will | (as `lost`) is no call's fault but an event: event sets get it once |
//! | `remap=N` | (as `lost`) the GPU waits for a reset to remap a memory row (1), or a remapping failed (2) |
//! | `recovery=N` | (as `lost`) the GPU's recovery action, field 230, is N (0 to 4) |
//!
//! An event from the file reaches the event sets that had registered the GPU before the line
//! was there; one from the environment reaches each of the process's sets.
//!
//! Calls that meet a line of the file are counted over all processes of the node, so "crash
//! once" also holds for the process that is started again. Equal lines share a count. A line
//! that is taken out of the file is forgotten, and starts again when it comes back. Calls that
//! meet a line of the environment are counted by their process.
//!
//! A line that can't be read makes initialisation fail, and each later call if it comes then. A
//! fault list that does nothing would make a test pass that tested nothing.

mod injector;
mod rule;

pub use injector::{FaultInjector, InjectorError, RaisedEvent, RaisedEvents};
pub use rule::{FaultAction, FaultError, FaultRule, InjectedEvent, RuleProblem};

#[cfg(doc)]
use crate::node::SimulatedNode;
