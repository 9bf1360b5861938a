//! The outbox: what leaves the cluster because of state changes, until it was delivered.

mod delivery;
mod record;

pub use delivery::{
    ClaimedNotification, FailedDelivery, RunningMark, claim_due, expire, give_up, read_mark,
    release_claims, remove_delivered, remove_oldest, retry_later, wait_until_due, waiting,
};
pub(super) use record::{record_round, record_submits};
