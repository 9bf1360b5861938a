//! State changes of jobs and attempts: batches of compare-and-set statements.
//!
//! Every function runs inside the caller's guarded transaction ([`super::leader::begin_guarded`]). It
//! changes exactly the rows that it was given, or fails with [`super::StoreError::Conflict`].

mod attempts;
mod jobs;
mod reserve;

pub use self::attempts::{
    AttemptEnd, launch_attempts, pair_starts_with_ends, record_migrations, record_starts_and_ends,
    record_stops,
};
pub use self::jobs::{change_shares, command_waiting_jobs};
pub use self::reserve::{Placements, record_placements};
