//! What accounts and users have had lately, hold now, and may hold.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What accounts have had, and what follows for whose turn it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageReport {
    /// Whether what was had counts in the order of service.
    pub fair_share: bool,
    /// After which time half of what was had counts no more; absent if all counts for ever.
    pub half_life_secs: Option<f64>,
    /// The accounts that settings name, by name; then users who are accounts of their own, by name.
    pub accounts: Vec<AccountUsage>,
}

/// An account, or a user who is an account of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AccountUsage {
    /// Its name.
    pub account: String,
    /// Whether settings name it; else it is a user.
    pub named: bool,
    /// What it is entitled to, beside the others' numbers.
    pub share: u32,
    /// That, as a part of all shares.
    pub share_part: f64,
    /// What it has had, decayed by age: seconds of one compute slice.
    pub used_slice_secs: f64,
    /// That, as a part of what all have had.
    pub used_part: f64,
    /// Its fair-share factor: 1 if it has had nothing, 0.5 if it has had its part, less if more.
    pub factor: f64,
    /// Compute slices that its jobs hold now; a slice that jobs share counts once.
    pub held_slices: u32,
    /// Most compute slices that its jobs may hold at once, if that is limited.
    pub quota_slices: Option<u32>,
    /// Jobs that have places.
    pub running: u64,
    /// Jobs that wait.
    pub waiting: u64,
    /// Its users.
    pub users: Vec<UserUsage>,
}

/// One user of an account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UserUsage {
    /// Who.
    pub user: String,
    /// What the user has had, decayed by age: seconds of one compute slice.
    pub used_slice_secs: f64,
    /// Compute slices that the user's jobs hold now; a slice that jobs share counts once.
    pub held_slices: u32,
    /// Most compute slices that the user's jobs may hold at once, if that is limited.
    pub quota_slices: Option<u32>,
    /// Jobs that have places.
    pub running: u64,
    /// Jobs that wait.
    pub waiting: u64,
}
