//! The accounts of recorded users, which a simulation charges for the slices that jobs hold.

use std::collections::{BTreeMap, BTreeSet};

use tessera_api_types::UsageReport;
use tessera_simulator::cluster::HALF_LIFE;
use tessera_simulator::cluster::job::SimulatedJob;

/// The configured accounts of a controller, and how it reckons recent usage.
#[derive(Debug, Default)]
pub struct PastAccounts {
    /// Account and shares of each user who has one.
    of_user: BTreeMap<String, (String, u32)>,
    fair_share: bool,
    half_life_secs: Option<f64>,
    has_quotas: bool,
}

impl PastAccounts {
    /// Reads the accounts from the controller's report.
    pub fn of(report: &UsageReport) -> Self {
        let named = report.accounts.iter().filter(|account| account.named);
        let of_user = named.flat_map(|account| {
            let terms = (account.account.clone(), account.share);
            account.users.iter().map(move |user| (user.user.clone(), terms.clone()))
        });
        let has_quota = |account: &tessera_api_types::AccountUsage| {
            account.quota_slices.is_some()
                || account.users.iter().any(|user| user.quota_slices.is_some())
        };
        Self {
            of_user: of_user.collect(),
            fair_share: report.fair_share,
            half_life_secs: report.half_life_secs,
            has_quotas: report.accounts.iter().any(has_quota),
        }
    }

    /// Charges a job to its user's account. A user without one counts as an account with one share.
    pub(super) fn charge(&self, job: &mut SimulatedJob) {
        if let Some((account, shares)) = self.of_user.get(&job.user) {
            job.account = Some(account.clone());
            job.shares = *shares;
        }
    }

    /// States how the reckoning differs from the controller's; nothing for a workload of one account.
    pub(super) fn notes(&self, jobs: &[SimulatedJob]) -> Vec<String> {
        let accounts: BTreeSet<&str> = jobs.iter().map(SimulatedJob::account).collect();
        let mut notes = Vec::new();
        if self.has_quotas {
            notes.push("quotas are not part of the simulation".to_owned());
        }
        if accounts.len() < 2 {
            return notes;
        }
        notes.push(
            "accounts and their shares are those of now, and each account begins without recent usage"
                .to_owned(),
        );
        if !self.fair_share {
            notes.push(
                "the controller does not order jobs by recent usage; simulated policies with fair share do"
                    .to_owned(),
            );
        } else if self.half_life_secs != Some(HALF_LIFE.duration().as_secs_f64()) {
            notes.push(
                "recent usage has a half-life of one day in the simulation, and another in the controller"
                    .to_owned(),
            );
        }
        notes
    }
}
