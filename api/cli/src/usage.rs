//! Recent usage, held slices and quotas of accounts: `tessera usage`.

use clap::Args;
use tessera_model::{Millis, RetentionTime};

use super::failure::CommandFailure;
use super::session::{CommandSession, table};
use tessera_api_types::{AccountUsage, UsageReport, UserUsage};

#[derive(Args)]
pub struct UsageList {
    /// Show only this account, or the account of this user
    account: Option<String>,
}

impl UsageList {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let mut report = session.client.usage().await?;
        if let Some(name) = &self.account {
            report.accounts.retain(|account| {
                account.account == *name || account.users.iter().any(|user| user.user == *name)
            });
        }
        session.print(&report, draw)?;
        Ok(0)
    }
}

fn draw(report: &UsageReport) -> String {
    if report.accounts.is_empty() {
        return "There is no recent usage, and no account is configured.".to_owned();
    }
    let rule = match (report.fair_share, report.half_life_secs) {
        (false, _) => {
            "Jobs are served by priority and number; past usage has no effect.".to_owned()
        }
        (true, None) => "All past usage counts in full, for as long as history is kept.".to_owned(),
        (true, Some(half)) => {
            let half = std::time::Duration::try_from_secs_f64(half).ok();
            let half = half.and_then(|half| u64::try_from(half.as_millis()).ok());
            let half = String::from(RetentionTime::For(Millis::new(half.unwrap_or_default())));
            format!("Past usage is weighted by half for each {half} of age.")
        }
    };
    let header = [
        "Account",
        "User",
        "RawShares",
        "NormShares",
        "RecentUsage",
        "EffectvUsage",
        "FairShare",
        "HeldSlices",
        "Quota",
        "Running",
        "Waiting",
    ];
    let rows = report.accounts.iter().flat_map(rows);
    format!("{rule}\n\n{}", table(Some(&header), rows))
}

fn rows(of: &AccountUsage) -> Vec<Vec<String>> {
    let percent = |part: f64| format!("{:.1} %", part * 100.0);
    let user = match (of.named, of.users.as_slice()) {
        (false, [user]) => user.user.clone(),
        _ => String::new(),
    };
    let mut rows = vec![vec![
        if of.named { of.account.clone() } else { "-".to_owned() },
        user,
        of.share.to_string(),
        percent(of.norm_shares),
        hours(of.recent_slice_secs),
        percent(of.effective_usage),
        format!("{:.2}", of.factor),
        of.held_slices.to_string(),
        quota(of.quota_slices),
        of.running.to_string(),
        of.waiting.to_string(),
    ]];
    if of.named {
        rows.extend(of.users.iter().map(|user| row(&of.account, user)));
    }
    rows
}

fn row(account: &str, user: &UserUsage) -> Vec<String> {
    vec![
        account.to_owned(),
        user.user.clone(),
        String::new(),
        String::new(),
        hours(user.recent_slice_secs),
        String::new(),
        String::new(),
        user.held_slices.to_string(),
        quota(user.quota_slices),
        user.running.to_string(),
        user.waiting.to_string(),
    ]
}

fn quota(slices: Option<u32>) -> String {
    slices.map_or_else(|| "-".to_owned(), |slices| slices.to_string())
}

/// Formats seconds as hours of one compute slice.
fn hours(secs: f64) -> String {
    format!("{:.2} h", secs / 3_600.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_above_its_users_and_a_user_without_one_is_alone() {
        let user = |name: &str, secs: f64| UserUsage {
            user: name.to_owned(),
            recent_slice_secs: secs,
            held_slices: 3,
            quota_slices: Some(14),
            running: 1,
            waiting: 0,
        };
        let account = |name: &str, named: bool, users: Vec<UserUsage>| AccountUsage {
            account: name.to_owned(),
            named,
            share: 2,
            norm_shares: 0.5,
            recent_slice_secs: users.iter().map(|user| user.recent_slice_secs).sum(),
            effective_usage: 0.25,
            factor: 0.707,
            held_slices: 6,
            quota_slices: None,
            running: 2,
            waiting: 0,
            users,
        };
        let report = UsageReport {
            fair_share: true,
            half_life_secs: Some(86_400.0),
            accounts: vec![
                account("lab-a", true, vec![user("ada", 3_600.0), user("bob", 1_800.0)]),
                account("cyd", false, vec![user("cyd", 900.0)]),
            ],
        };

        let text = draw(&report);

        let lines: Vec<Vec<&str>> =
            text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines[1],
            ["lab-a", "2", "50.0", "%", "1.50", "h", "25.0", "%", "0.71", "6", "-", "2", "0"]
        );
        assert_eq!(lines[2], ["lab-a", "ada", "1.00", "h", "3", "14", "1", "0"]);
        assert_eq!(lines[4][..2], ["-", "cyd"]);
        assert!(text.starts_with("Past usage is weighted by half for each 1d of age.\n"), "{text}");
    }
}
