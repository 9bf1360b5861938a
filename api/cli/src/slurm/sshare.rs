//! `sshare`: the shares and the recent usage of accounts and their users.

use clap::{ArgAction, Parser};
use tessera_api_types::{AccountUsage, UserUsage};

use super::lists::{ListColumn, ListSeparator, ListStyle, choose, draw, left, right};
use super::{Done, VERSION, connect, words, write_out};

const DEFAULT: &str = "account,user,rawshares,normshares,rawusage,effectvusage,fairshare";

const COLUMNS: &[ListColumn] = &[
    left("Account", 20),
    right("User", 10),
    right("RawShares", 10),
    right("NormShares", 11),
    right("RawUsage", 11),
    right("NormUsage", 11),
    right("EffectvUsage", 13),
    right("FairShare", 10),
    right("LevelFS", 10),
    right("GrpTRESMins", 30),
    right("TRESRunMins", 30),
];

/// Shows shares and recent usage, as Slurm's sshare does.
#[derive(Parser)]
#[command(disable_help_flag = true)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of sshare")]
pub struct Sshare {
    /// Show only these accounts
    #[arg(short = 'A', long, visible_alias = "account", value_name = "ACCOUNTS")]
    accounts: Vec<String>,
    /// Show all users
    #[arg(short, long)]
    all: bool,
    /// Show these users; by default yourself
    #[arg(short, long, visible_alias = "uid", value_name = "USERS")]
    users: Vec<String>,
    /// Show users only, without their accounts' own lines
    #[arg(short = 'U', long = "Users")]
    only_users: bool,
    /// The columns, separated by commas, with widths such as account%-30
    #[arg(short = 'o', long, value_name = "COLUMNS")]
    format: Vec<String>,
    /// More columns
    #[arg(short, long)]
    long: bool,
    /// Omit the headings
    #[arg(short = 'n', long, short_alias = 'h')]
    noheader: bool,
    /// Separate columns by |, with one at the end
    #[arg(short, long)]
    parsable: bool,
    /// Separate columns by |
    #[arg(short = 'P', long)]
    parsable2: bool,
    /// Accepted: there is one cluster
    #[arg(short = 'M', long, value_name = "CLUSTERS")]
    clusters: Option<String>,
    /// Accepted: jobs of all partitions count together
    #[arg(short = 'm', long)]
    partition: bool,
    /// List the columns
    #[arg(short = 'e', long)]
    helpformat: bool,
    /// Accepted
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

impl Sshare {
    /// Shows the shares.
    pub async fn run(self) -> Done {
        if self.version {
            write_out(&format!("{VERSION}\n"))?;
            return Ok(0);
        }
        if self.helpformat {
            let names = COLUMNS.iter().map(|column| column.name);
            write_out(&(names.collect::<Vec<_>>().join("\n") + "\n"))?;
            return Ok(0);
        }
        let list = match (self.format.is_empty(), self.long) {
            (false, _) => self.format.join(","),
            (true, false) => DEFAULT.to_owned(),
            (true, true) => format!("{DEFAULT},levelfs,grptresmins,tresrunmins"),
        };
        let chosen = choose("sshare", &list, COLUMNS)?;
        let session = connect()?;
        let mut users = words(&self.users);
        if users.is_empty() && !self.all {
            users.push(session.client.who_am_i().await?.user);
        }
        let report = session.client.usage().await?;
        let accounts = words(&self.accounts);
        let mut rows = Vec::new();
        for account in &report.accounts {
            if !accounts.is_empty() && !accounts.contains(&account.account) {
                continue;
            }
            rows.extend(self.rows(account, &users));
        }
        let style = ListStyle {
            has_header: !self.noheader,
            is_ruled: true,
            separator: ListSeparator::of(self.parsable, self.parsable2),
        };
        write_out(&draw(style, &chosen, &rows))?;
        Ok(0)
    }

    /// Returns the line of an account, and those of its users.
    fn rows(&self, account: &AccountUsage, users: &[String]) -> Vec<Vec<String>> {
        let is_shown = |user: &&UserUsage| self.all || users.contains(&user.user);
        let mut rows = Vec::new();
        if !self.only_users && account.named {
            rows.push(row(account, None));
        }
        let mut own: Vec<_> = account.users.iter().filter(is_shown).collect();
        own.sort_by(|one, other| one.user.cmp(&other.user));
        rows.extend(own.into_iter().map(|user| row(account, Some(user))));
        if self.only_users {
            // Below no account, names are not indented.
            rows.iter_mut().for_each(|row| row[0] = row[0].trim_start().to_owned());
        }
        rows
    }
}

/// Returns a text for each column.
fn row(account: &AccountUsage, user: Option<&UserUsage>) -> Vec<String> {
    let usage = user.map_or(account.recent_slice_secs, |user| user.recent_slice_secs);
    let name =
        if user.is_some() { format!(" {}", account.account) } else { account.account.clone() };
    let level = match account.effective_usage > 0.0 {
        true => format!("{:.6}", account.norm_shares / account.effective_usage),
        false => "inf".to_owned(),
    };
    let fraction = |number: f64| format!("{number:.6}");
    vec![
        name,
        user.map_or_else(String::new, |user| user.user.clone()),
        account.share.to_string(),
        fraction(account.norm_shares),
        format!("{usage:.0}"),
        fraction(account.effective_usage),
        fraction(account.effective_usage),
        if user.is_some() { fraction(account.factor) } else { String::new() },
        level,
        String::new(),
        String::new(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_follow_their_account_and_are_chosen_by_name() {
        let user = |name: &str| UserUsage {
            user: name.to_owned(),
            recent_slice_secs: 12.4,
            held_slices: 0,
            quota_slices: None,
            running: 0,
            waiting: 0,
        };
        let account = AccountUsage {
            account: "lab".to_owned(),
            named: true,
            share: 2,
            norm_shares: 0.5,
            recent_slice_secs: 24.8,
            effective_usage: 0.25,
            factor: 0.75,
            held_slices: 0,
            quota_slices: None,
            running: 0,
            waiting: 0,
            users: vec![user("bob"), user("ada")],
        };
        let shown = |words: &[&str]| {
            let line = Sshare::try_parse_from([&["sshare"], words].concat()).unwrap();
            let rows = line.rows(&account, &["ada".to_owned()]);
            rows.iter().map(|row| row[..5].join("|")).collect::<Vec<_>>()
        };

        assert_eq!(shown(&[]), ["lab||2|0.500000|25", " lab|ada|2|0.500000|12"]);
        assert_eq!(shown(&["-U", "-a"]).len(), 2);
    }
}
