//! A device in virtual time on which two programs share one slice kernel by kernel.
//!
//! The programs, their clients and the device are models; the queue between them is the real one
//! ([`tessera_kernel_queue::KernelQueue`] and [`tessera_kernel_queue::GrantBudget`]). Everything is
//! integers and seeded: a run repeats to the nanosecond on any machine.

pub mod client;
pub mod device;
pub mod experiment;
pub mod ideal;
pub mod measuring;
pub mod models;
pub mod outcome;
pub mod program;
pub mod rates;
pub mod world;

pub use measuring::measure;
pub use models::{PAIRS, ProgramModel, ProgramPair};
pub use outcome::{KernelSpans, SharingOutcome};
pub use program::{SimulatedProgram, TaskArrivals, TimeNoise};
pub use world::{PathLatencies, SharingPolicy, SharingRun};
