//! `sacctmgr`: accounts and users, for reading.

use clap::Parser;

use super::columns::{Column, Width, column, find, fit};
use super::{Done, SlurmFailure, VERSION, connect, write_out};

/// Shows accounts and users, as Slurm's sacctmgr does. They are set in the controller's settings.
#[derive(Parser)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of sacctmgr")]
pub struct Sacctmgr {
    /// Omit the headings
    #[arg(short, long)]
    noheader: bool,
    /// Separate columns by |, with one at the end
    #[arg(short, long)]
    parsable: bool,
    /// Separate columns by |
    #[arg(short = 'P', long)]
    parsable2: bool,
    /// Show the accounts of users
    #[arg(short = 's', long)]
    associations: bool,
    /// Accepted: no confirmation is needed
    #[arg(short, long)]
    immediate: bool,
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    /// show or list, an entity, and conditions such as user=ada or format=account%30
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// A user in an account.
struct Association {
    account: String,
    user: String,
    shares: u32,
}

static COLUMNS: &[Column<Association>] = &[
    column(None, "Cluster", "Cluster", "", |_| "tessera".to_owned()),
    column(None, "Account", "Account", "", |one| one.account.clone()),
    column(None, "User", "User", "", |one| one.user.clone()),
    column(None, "DefaultAccount", "Def Acct", "", |one| one.account.clone()),
    column(None, "Admin", "Admin", "", |_| "None".to_owned()),
    column(None, "Share", "Share", "", |one| one.shares.to_string()),
    column(None, "QOS", "QOS", "", |_| "normal".to_owned()),
    column(None, "DefaultQOS", "Def QOS", "", |_| "normal".to_owned()),
    column(None, "Partition", "Partition", "", |_| String::new()),
    column(None, "Name", "Name", "", |_| "normal".to_owned()),
    column(None, "Descr", "Descr", "", |one| one.account.clone()),
];

impl Sacctmgr {
    /// Shows the requested entities.
    pub async fn run(self) -> Done {
        if self.version {
            write_out(&format!("{VERSION}\n"))?;
            return Ok(0);
        }
        let mut words = self.words.iter().map(String::as_str).filter(|word| !word.starts_with('-'));
        let verb = words.next().unwrap_or_default().to_ascii_lowercase();
        if !verb.is_empty() && !"show".starts_with(&verb) && !"list".starts_with(&verb) {
            return Err(SlurmFailure::Message(
                "sacctmgr: error: accounts and users are set in the controller's settings; show and list \
                 work here"
                    .to_owned(),
            ));
        }
        let what = words.next().unwrap_or_default().to_ascii_lowercase();
        let conditions: Vec<&str> = words.collect();
        let of = |name: &str| conditions.iter().find_map(|word| value(word, name));
        let plain =
            conditions.iter().find(|word| !word.contains('=')).map(|word| (*word).to_owned());
        let format = of("format").unwrap_or_else(|| match what.as_str() {
            word if "qos".starts_with(word) => "name".to_owned(),
            word if word.starts_with("cluster") => "cluster".to_owned(),
            word if word.starts_with("account") => "account,descr".to_owned(),
            word if word.starts_with("user") && !self.associations => {
                "user,defaultaccount,admin".to_owned()
            }
            _ => "cluster,account,user,share,qos".to_owned(),
        });
        let user = of("user").or_else(|| of("name")).or(plain);
        let mut lines = match what.as_str() {
            word if "qos".starts_with(word) || word.starts_with("cluster") => {
                vec![Association { account: String::new(), user: String::new(), shares: 1 }]
            }
            _ => associations().await?,
        };
        if let Some(users) = user.filter(|_| !what.starts_with("account") && what != "qos") {
            let users: Vec<&str> = users.split(',').collect();
            lines.retain(|line| users.contains(&line.user.as_str()));
        }
        if what.starts_with("account") {
            lines.dedup_by(|one, other| one.account == other.account);
        }
        self.print(&format, &lines)
    }

    fn print(&self, format: &str, lines: &[Association]) -> Done {
        let mut cells = Vec::new();
        for word in format.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (name, width) = word.split_once('%').unwrap_or((word, ""));
            let column = find(name, COLUMNS).ok_or_else(|| {
                SlurmFailure::Message(format!("sacctmgr: Unknown field '{name}'"))
            })?;
            let left = width.starts_with('-');
            let letters = width.trim_start_matches('-').parse().unwrap_or(10);
            cells.push((column, Width { letters, right: !left }));
        }
        let parsable = self.parsable || self.parsable2;
        let line = |text: &dyn Fn(&'static Column<Association>) -> String| {
            let parts = cells.iter().map(|(column, width)| match parsable {
                true => text(column),
                false => fit(&text(column), *width),
            });
            let parts: Vec<String> = parts.collect();
            match (self.parsable2, self.parsable) {
                (true, _) => parts.join("|") + "\n",
                (false, true) => parts.join("|") + "|\n",
                (false, false) => parts.join(" ") + " \n",
            }
        };
        let mut text = String::new();
        if !self.noheader {
            text += &line(&|column| column.heading.to_owned());
            if !parsable {
                let dashes = cells.iter().map(|(_, width)| "-".repeat(width.letters));
                text += &(dashes.collect::<Vec<_>>().join(" ") + " \n");
            }
        }
        for one in lines {
            text += &line(&|column| (column.cell)(one));
        }
        write_out(&text)?;
        Ok(0)
    }
}

/// Reads `user=ada`, ignoring the name's case.
fn value(word: &str, name: &str) -> Option<String> {
    let (key, value) = word.split_once('=')?;
    key.eq_ignore_ascii_case(name).then(|| value.to_owned())
}

/// Lists users with their accounts; a caller without one is a user in an account of the same name.
async fn associations() -> Result<Vec<Association>, SlurmFailure> {
    let client = connect()?.client;
    let mut all = Vec::new();
    for account in client.usage().await?.accounts {
        let shares = account.share;
        all.extend(account.users.into_iter().map(|user| Association {
            account: account.account.clone(),
            user: user.user,
            shares,
        }));
    }
    let own = client.who_am_i().await?.user;
    if !all.iter().any(|one| one.user == own) {
        all.push(Association { account: own.clone(), user: own, shares: 1 });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_whatever_their_case() {
        assert_eq!(value("Format=account%256", "format").as_deref(), Some("account%256"));
        assert_eq!(value("user", "user"), None);
    }

    #[test]
    fn snakemakes_question_is_understood() {
        let words = ["sacctmgr", "-n", "-s", "list", "user", "root", "format=account%256"];
        let line = Sacctmgr::try_parse_from(words).unwrap();

        assert!(line.noheader && line.associations);
        assert_eq!(line.words, ["list", "user", "root", "format=account%256"]);
    }
}
