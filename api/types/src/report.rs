//! Accounting: what users, accounts and others had in a period.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};

/// Which period to report, and how to group it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ReportQuery {
    /// Start of the period (RFC 3339); by default the start of the current month, in UTC.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub since: Option<OffsetDateTime>,
    /// End of the period (RFC 3339); by default now.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub until: Option<OffsetDateTime>,
    /// Grouping of the lines: one or more of `user`, `account`, `month`, `node` and `profile`,
    /// separated by commas; by default `account,user`. Months are those of UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Only the jobs of these users, separated by commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// What was used in a period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AccountingReport {
    /// Beginning of the period.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// End of the period.
    #[serde(with = "time::serde::rfc3339")]
    pub until: OffsetDateTime,
    /// How the lines are grouped.
    pub by: Vec<String>,
    /// The lines, in order of their keys.
    pub lines: Vec<ReportLine>,
    /// The sum of all lines.
    pub total: ReportFigures,
}

/// One line of a report. Keys that were not requested are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReportLine {
    /// The account, if lines are grouped by accounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The user, if lines are grouped by users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The month, such as `2027-01`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub month: Option<String>,
    /// The node, if lines are grouped by nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The slice's profile, or `whole GPU`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// What was used.
    #[serde(flatten)]
    pub figures: ReportFigures,
}

/// What attempts used. All numbers are whole, so that lines add up exactly to their total, however
/// they are grouped. An attempt over several months counts in each by its part of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReportFigures {
    /// Number of attempts that were placed in the period.
    pub attempts: i64,
    /// Number of attempts that ended successfully in the period.
    pub succeeded: i64,
    /// Number of attempts that ended in another way in the period.
    pub failed: i64,
    /// Time from acceptance, or from the end of the attempt before, to the placement; in milliseconds, for
    /// attempts that were placed in the period.
    pub waiting_ms: i64,
    /// Time that programs ran, in milliseconds.
    pub run_ms: i64,
    /// Time that slices were held, in milliseconds of one compute slice. A whole GPU counts as 7, and a
    /// sharer with a percentage by that part.
    pub slice_ms: i64,
    /// The same in milliseconds of a whole GPU, each attempt rounded down.
    pub gpu_ms: i64,
    /// The part of `slice_ms` of attempts that did not end successfully.
    pub wasted_slice_ms: i64,
    /// GPU energy in millijoules, as far as it was measured.
    pub energy_mj: i64,
    /// Requested time: the time limits of the attempts that have one and that ended in the period.
    pub requested_ms: i64,
    /// Run time of these attempts.
    pub used_of_requested_ms: i64,
    /// GPU memory that attempts held, in MiB times seconds, where both this and the peak are known.
    pub memory_held_mib_s: i64,
    /// The peak GPU memory of these attempts, in MiB times seconds.
    pub memory_used_mib_s: i64,
}

impl ReportFigures {
    /// Adds the figures of other attempts.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            attempts: self.attempts + other.attempts,
            succeeded: self.succeeded + other.succeeded,
            failed: self.failed + other.failed,
            waiting_ms: self.waiting_ms + other.waiting_ms,
            run_ms: self.run_ms + other.run_ms,
            slice_ms: self.slice_ms + other.slice_ms,
            gpu_ms: self.gpu_ms + other.gpu_ms,
            wasted_slice_ms: self.wasted_slice_ms + other.wasted_slice_ms,
            energy_mj: self.energy_mj + other.energy_mj,
            requested_ms: self.requested_ms + other.requested_ms,
            used_of_requested_ms: self.used_of_requested_ms + other.used_of_requested_ms,
            memory_held_mib_s: self.memory_held_mib_s + other.memory_held_mib_s,
            memory_used_mib_s: self.memory_used_mib_s + other.memory_used_mib_s,
        }
    }
}
