//! Requests to the kernel that the standard library doesn't offer.

pub mod clock;
pub mod holders;
pub mod identity;
pub mod owner;
pub mod relatives;
pub mod spawn;
