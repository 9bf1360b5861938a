//! Recent usage, held slices and quotas of accounts and users.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The recent usage of accounts, and their fair-share factors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageReport {
    /// Whether recent usage affects the order of service.
    pub fair_share: bool,
    /// Age at which past usage is weighted by half; absent if it is never reduced.
    pub half_life_secs: Option<f64>,
    /// Configured accounts by name, then users without an account by name.
    pub accounts: Vec<AccountUsage>,
}

/// An account, or a user who has none and is treated as one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AccountUsage {
    /// Its name.
    pub account: String,
    /// Whether it is configured; otherwise it is a user.
    pub named: bool,
    /// Its raw shares (Slurm: `RawShares`).
    pub share: u32,
    /// Its shares as a fraction of all shares (Slurm: `NormShares`).
    pub norm_shares: f64,
    /// Its recent usage, weighted by age, in seconds of one compute slice.
    pub recent_slice_secs: f64,
    /// Its recent usage as a fraction of all recent usage (Slurm: `EffectvUsage`).
    pub effective_usage: f64,
    /// Its fair-share factor: 1 without usage, 0.5 if usage equals its share, less above it.
    pub factor: f64,
    /// Compute slices that its jobs hold now; a shared slice counts once.
    pub held_slices: u32,
    /// Maximum number of compute slices that its jobs may hold at once, if limited.
    pub quota_slices: Option<u32>,
    /// Number of jobs that have a placement.
    pub running: u64,
    /// Number of waiting jobs.
    pub waiting: u64,
    /// The account's users with usage, or with slices now.
    pub users: Vec<UserUsage>,
}

/// One user of an account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UserUsage {
    /// The user's name.
    pub user: String,
    /// The user's recent usage, weighted by age, in seconds of one compute slice.
    pub recent_slice_secs: f64,
    /// Compute slices that the user's jobs hold now; a shared slice counts once.
    pub held_slices: u32,
    /// Maximum number of compute slices that the user's jobs may hold at once, if limited.
    pub quota_slices: Option<u32>,
    /// Number of jobs that have a placement.
    pub running: u64,
    /// Number of waiting jobs.
    pub waiting: u64,
}
