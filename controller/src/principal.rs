//! Who is calling, and what that caller may do. Established once at the edge of the API, and passed to
//! every handler, read, idempotency key and entry of the audit log.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tessera_control::callers::CallerJob;
use time::OffsetDateTime;

/// What a caller may do: each role may do all that the ones before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum Role {
    /// Reads the metrics.
    Metrics,
    /// Submits jobs, and commands their own.
    User,
    /// Reads and commands all users' jobs, and changes nodes, GPUs and layouts.
    Operator,
    /// Makes tokens for others, and reads the audit log.
    Admin,
}

impl Role {
    /// Every role, the least first.
    pub const ALL: [Self; 4] = [Self::Metrics, Self::User, Self::Operator, Self::Admin];

    /// Returns its word in tokens, rows and settings.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::User => "user",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A word that is no role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is not a role: write metrics, user, operator or admin")]
pub struct UnknownRole {
    word: String,
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(word: &str) -> Result<Self, UnknownRole> {
        let role = Self::ALL.into_iter().find(|role| role.word() == word);
        role.ok_or_else(|| UnknownRole { word: word.to_owned() })
    }
}

impl TryFrom<String> for Role {
    type Error = UnknownRole;

    fn try_from(word: String) -> Result<Self, UnknownRole> {
        word.parse()
    }
}

impl From<Role> for String {
    fn from(role: Role) -> Self {
        role.word().to_owned()
    }
}

/// How a caller proved who it is, and from where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The kernel names the process at the other end of the Unix socket.
    Socket {
        /// The account's number.
        uid: u32,
        /// The process that connected; only a hint, since numbers are used again.
        pid: Option<i32>,
    },
    /// A personal token.
    Token {
        /// Number of the token, without its secret.
        id: Arc<str>,
        /// Whether an administrator granted its role, whatever role its user has.
        granted: bool,
        /// From where.
        from: Source,
    },
    /// A token that an issuer signed (OpenID Connect).
    Issuer {
        /// The issuer's own name of the user.
        subject: Arc<str>,
        /// From where.
        from: Source,
        /// Until when the token is valid.
        expires_at: OffsetDateTime,
    },
    /// The token in the data folder, which only makes other tokens.
    Bootstrap {
        /// From where.
        from: Source,
    },
    /// The node of a job, of one of the job's processes: it starts steps of that job, and does nothing else.
    Job {
        /// The job whose process calls.
        job: CallerJob,
        /// From where.
        from: Source,
    },
}

impl Proof {
    /// Returns the word that the API uses for it.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Socket { .. } => "socket",
            Self::Token { .. } => "token",
            Self::Issuer { .. } => "oidc",
            Self::Bootstrap { .. } => "bootstrap",
            Self::Job { .. } => "job",
        }
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket { uid, pid: Some(pid) } => write!(f, "socket, uid {uid}, process {pid}"),
            Self::Socket { uid, pid: None } => write!(f, "socket, uid {uid}"),
            Self::Token { id, from, .. } => write!(f, "token {id} from {from}"),
            Self::Issuer { subject, from, .. } => write!(f, "oidc, subject {subject}, from {from}"),
            Self::Bootstrap { from } => write!(f, "bootstrap token from {from}"),
            Self::Job { job, from } => write!(f, "job {} at {from}", job.first),
        }
    }
}

/// The other end of a connection, as the kernel names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A network address, for calls over TCP.
    Address(SocketAddr),
    /// A process on this machine.
    Process {
        /// The account's number.
        uid: u32,
        /// The process that connected.
        pid: Option<i32>,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{}", address.ip()),
            Self::Process { uid, pid: Some(pid) } => write!(f, "uid {uid}, process {pid}"),
            Self::Process { uid, pid: None } => write!(f, "uid {uid}"),
        }
    }
}

/// A caller whose name is proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The user.
    pub name: Arc<str>,
    /// What that user may do over this connection.
    pub role: Role,
    /// How the name was proved.
    pub proof: Proof,
    /// The members of the accounts that the user coordinates.
    pub coordinates: Arc<[String]>,
}

impl Principal {
    /// The name under which the token in the data folder acts.
    pub const BOOTSTRAP: &str = "bootstrap";

    /// Returns whether this is the token in the data folder, which only makes other tokens.
    pub const fn is_bootstrap(&self) -> bool {
        matches!(self.proof, Proof::Bootstrap { .. })
    }

    /// Returns the job whose process this is, if its node names it.
    pub const fn job(&self) -> Option<&CallerJob> {
        match &self.proof {
            Proof::Job { job, .. } => Some(job),
            _ => None,
        }
    }

    /// Returns whose jobs exist for this caller.
    pub fn jobs(&self) -> JobScope {
        if self.role >= Role::Operator {
            return JobScope::everyone();
        }
        let mut users = vec![self.name.to_string()];
        users.extend(self.coordinates.iter().cloned());
        JobScope(Some(users))
    }

    /// Returns whether this caller sees all details of a user's jobs.
    pub fn sees(&self, user: &str) -> bool {
        self.role >= Role::Operator
            || *self.name == *user
            || self.coordinates.iter().any(|member| member == user)
    }

    /// Returns whether this caller may submit for a user.
    pub fn may_act_for(&self, user: &str) -> bool {
        self.role >= Role::Operator || *self.name == *user
    }
}

/// One call, as the audit log keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// Who called, if the name was proved.
    pub principal: Option<Arc<str>>,
    /// The caller's role.
    pub role: Option<Role>,
    /// What proved the name, and from where.
    pub origin: String,
    /// Method and route.
    pub action: String,
    /// The path.
    pub object: String,
    /// The status of the response.
    pub status: u16,
}

/// Whose jobs exist for a read: those of others are not found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobScope(Option<Vec<String>>);

impl JobScope {
    /// Everybody's.
    pub const fn everyone() -> Self {
        Self(None)
    }

    /// Those of some users.
    pub const fn of(users: Vec<String>) -> Self {
        Self(Some(users))
    }

    /// Returns the users as the parameter of a statement; `None` for all users.
    pub fn users(&self) -> Option<&[String]> {
        self.0.as_deref()
    }
}

/// Returns whether a text can be the name of a user or of a Unix group.
pub fn is_user_name(name: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "._-+\\".contains(c);
    !name.is_empty() && name.len() <= 64 && name.chars().all(plain)
}

/// One entry of the lists of operators and administrators: a user, or `@group` for a Unix group.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum Appointed {
    /// The user with this name.
    User(String),
    /// All members of a Unix group.
    Group(String),
}

/// An entry that names nobody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} names nobody: write a user such as ada, or a Unix group such as @gpu-operators")]
pub struct BadAppointment {
    text: String,
}

impl FromStr for Appointed {
    type Err = BadAppointment;

    fn from_str(text: &str) -> Result<Self, BadAppointment> {
        let name = text.strip_prefix('@').unwrap_or(text);
        if !is_user_name(name) {
            return Err(BadAppointment { text: text.to_owned() });
        }
        let name = name.to_owned();
        Ok(if text.starts_with('@') { Self::Group(name) } else { Self::User(name) })
    }
}

impl TryFrom<String> for Appointed {
    type Error = BadAppointment;

    fn try_from(text: String) -> Result<Self, BadAppointment> {
        text.parse()
    }
}

impl From<Appointed> for String {
    fn from(entry: Appointed) -> Self {
        match entry {
            Appointed::User(name) => name,
            Appointed::Group(name) => format!("@{name}"),
        }
    }
}

/// Who has more than the role of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Appointments {
    /// Administrators.
    pub admins: Vec<Appointed>,
    /// Who may operate the cluster.
    pub operators: Vec<Appointed>,
    /// The account that the controller runs under, which is an administrator: it could read the
    /// controller's database and keys anyway.
    pub own_uid: Option<u32>,
}

impl Appointments {
    /// Returns the Unix groups that the lists name.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.admins.iter().chain(&self.operators).filter_map(|entry| match entry {
            Appointed::Group(name) => Some(name.as_str()),
            Appointed::User(_) => None,
        })
    }

    /// Returns the role of an account with these groups.
    pub fn role(&self, name: &str, uid: Option<u32>, groups: &[String]) -> Role {
        let among = |list: &[Appointed]| {
            list.iter().any(|entry| match entry {
                Appointed::User(user) => user == name,
                Appointed::Group(group) => groups.contains(group),
            })
        };
        if among(&self.admins) || (uid.is_some() && uid == self.own_uid) {
            Role::Admin
        } else if among(&self.operators) {
            Role::Operator
        } else {
            Role::User
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(name: &str, role: Role) -> Principal {
        Principal {
            name: name.into(),
            role,
            proof: Proof::Socket { uid: 1000, pid: Some(7) },
            coordinates: Arc::from([]),
        }
    }

    #[test]
    fn users_see_their_own_jobs_and_those_of_the_accounts_that_they_coordinate() {
        let mut ada = principal("ada", Role::User);
        assert_eq!(ada.jobs(), JobScope::of(vec!["ada".into()]));
        assert!(ada.sees("ada") && !ada.sees("bob"));

        ada.coordinates = Arc::from(["bob".to_owned()]);

        assert!(ada.sees("bob") && !ada.sees("cyd"));
        assert!(!ada.may_act_for("bob"), "a coordinator doesn't submit for members");
        let operator = principal("op", Role::Operator);
        assert_eq!(operator.jobs(), JobScope::everyone());
        assert!(operator.may_act_for("bob"));
    }

    #[test]
    fn the_lists_name_users_and_unix_groups() {
        let lists = Appointments {
            admins: vec!["root".parse().unwrap()],
            operators: vec!["ada".parse().unwrap(), "@gpu-ops".parse().unwrap()],
            own_uid: Some(990),
        };

        assert_eq!(lists.groups().collect::<Vec<_>>(), ["gpu-ops"]);
        assert_eq!(lists.role("root", Some(0), &[]), Role::Admin);
        assert_eq!(lists.role("tessera", Some(990), &[]), Role::Admin);
        assert_eq!(lists.role("ada", Some(1000), &[]), Role::Operator);
        assert_eq!(lists.role("bob", Some(1001), &["gpu-ops".into()]), Role::Operator);
        assert_eq!(lists.role("bob", Some(1001), &["users".into()]), Role::User);
        assert_eq!(lists.role("bob", None, &[]), Role::User);
        for bad in ["", "@", "a b", "ada,bob"] {
            assert!(bad.parse::<Appointed>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn roles_are_ordered_and_known_by_their_words() {
        assert!(Role::Metrics < Role::User && Role::Operator < Role::Admin);
        for role in Role::ALL {
            assert_eq!(role.word().parse(), Ok(role));
        }
        assert!("root".parse::<Role>().unwrap_err().to_string().contains("operator"));
    }
}
