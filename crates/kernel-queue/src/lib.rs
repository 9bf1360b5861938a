//! Decides which session's kernel runs next on one slice.
//!
//! Ten priority queues, gap filling with early stop (FIKIT), admission and ageing (MMK), and the
//! profiles that both use.
//!
//! Pure: no clock, no randomness, no I/O; time is an argument of [`KernelQueue::step`]. The agent's
//! actor and the simulator drive the same code. Decisions about launches allocate no memory. Every
//! table has a limit in [`limits`].
//!
//! | word | meaning |
//! |---|---|
//! | *holder* | a session of the highest priority present: its kernels never wait |
//! | *filler* | any other session: its kernels wait for grants |
//! | *gap* | the device is idle between two kernels of the holder |
//! | *grant* | a lease: a budget of predicted kernel time that expires at a given time |
//! | *grant ahead* | a grant of a gap that begins after a launch that the holder has not made yet |
//! | *early stop* | the holder launches before the predicted end of its gap: all grants end |
//!
//! Sources:
//!
//! - FIKIT: Wu, "FIKIT: Priority-Based Real-time GPU Multi-tasking Scheduling with Kernel Identification".
//! - MMK: "MMK: a hybrid scheduling framework for fine-grained Multi-Instance GPU sharing".
//! - XSched: Shen et al., "XSched: Preemptive Scheduling for Diverse XPUs", OSDI 2025.
//!
//! Where the papers leave a question open, a doc comment states the
//! choice.

#![forbid(unsafe_code)]

pub mod action;
pub mod admission;
pub mod budget;
pub mod counters;
pub mod course;
pub mod drift;
pub mod event;
pub mod fikit;
pub mod histograms;
pub mod ids;
pub mod lease;
pub mod limits;
pub mod loss;
pub mod mean;
pub mod measure;
pub mod need;
pub mod predict;
pub mod profile;
pub mod profile_delta;
pub mod queue;
pub mod relatives;
pub mod rules;
pub mod sketch;
pub mod time;
pub mod waiting;

pub use action::{QueueAction, QueueRefusal, Role};
pub use admission::ResourceNeed;
pub use budget::{GrantBudget, LaunchDecision};
pub use counters::QueueCounters;
pub use event::{Join, QueueEvent};
pub use ids::{Dims, Epoch, KernelId, KernelIndex, SessionId, TaskKey};
pub use lease::{GapOpening, GateState, Grant, GrantKind, LastLaunch};
pub use loss::LossBudget;
pub use measure::KernelSample;
pub use predict::GapPredictor;
pub use profile::{KernelProfile, TaskProfile};
pub use profile_delta::ProfileDelta;
pub use queue::{KernelQueue, ReportNeed};
pub use relatives::TimeEstimate;
pub use rules::{Ageing, GrantSize, KernelSharing, QueueRules};
pub use time::Nanos;
