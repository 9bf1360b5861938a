//! State changes of jobs and attempts: batches of compare-and-set statements.
//!
//! Every function runs inside the caller's guarded transaction ([`super::leader::guard_epoch`]). It
//! changes exactly the rows that it was given, or fails with [`super::StoreError::Conflict`].

mod attempts;
mod jobs;
mod reserve;

pub use self::attempts::{
    launch_attempts, record_ends, record_migrations, record_starts, record_stops,
};
pub use self::jobs::{change_shares, command_waiting_jobs, record_waits};
pub use self::reserve::reserve_slices;
