//! The actors of the kernel plane: one owns the queues of a GPU, and one serves each shim's connection.

pub mod queue;
pub mod shim;
pub mod system;
