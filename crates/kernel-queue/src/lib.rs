//! Whose kernel goes next on one slice: ten queues, gap filling with early stop (FIKIT),
//! admission and ageing (MMK), and the profiles that both rest on.
//!
//! Pure: no clock, no randomness, no I/O; time is an argument of [`Queue::step`]. The agent's
//! actor and the simulator drive the same code. Nothing is allocated while launches are decided
//! on; every table has a limit in [`limits`].
//!
//! | word | meaning |
//! |---|---|
//! | *holder* | a session of the highest priority that is there: its kernels never wait |
//! | *filler* | any other session: its kernels wait for grants |
//! | *gap* | the device is idle between two kernels of the holder |
//! | *grant* | a budget of predicted kernel time until a moment: a lease |
//! | *early stop* | the holder launches before the predicted end of its gap: all grants end |
//!
//! Sources: Wu, "FIKIT: Priority-Based Real-time GPU Multi-tasking Scheduling with Kernel
//! Identification" (cited as FIKIT); "MMK: a hybrid scheduling framework for fine-grained
//! Multi-Instance GPU sharing" (MMK); Shen et al., "XSched: Preemptive Scheduling for Diverse
//! XPUs", OSDI 2025 (XSched). Where the papers are open, the doc comment at the place names the
//! choice.

#![forbid(unsafe_code)]

pub mod action;
pub mod admission;
pub mod counters;
pub mod drift;
pub mod event;
pub mod fill;
pub mod ids;
pub mod learned;
pub mod lease;
pub mod limits;
pub mod measure;
pub mod pairs;
pub mod predict;
pub mod profile;
pub mod purse;
pub mod queue;
pub mod rules;
pub mod sketch;
pub mod stats;
pub mod time;
pub mod waiting;

pub use action::{Action, Refusal, Role};
pub use counters::Counters;
pub use event::{Event, Join};
pub use ids::{Dims, Epoch, KernelId, KernelIndex, SessionId, TaskKey};
pub use learned::Learned;
pub use lease::{Gate, Grant, Kind};
pub use measure::Sample;
pub use predict::GapPredictor;
pub use profile::{KernelProfile, TaskProfile};
pub use purse::{Purse, Spend};
pub use queue::Queue;
pub use rules::{Ageing, GrantSize, Rules, Sharing};
pub use time::Nanos;
