//! The controller's settings: command line over environment over file over defaults.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand};
use serde::{Deserialize, Serialize};
use tessera_model::lease::LeaseTerms;
use tessera_model::sizing::MemoryPrediction;
use tessera_model::{Millis, NodeName, RetentionTime};
use tessera_placement::migration_cooldown::MIGRATION_COOLDOWN;
use tessera_placement::policy::PolicyOptions;
use tessera_placement::power::PowerCap;
use tessera_placement::preemption::{PreemptionMode, PreemptionRules};

use crate::live::PlacementSettings;
use crate::notifications::{MailSettings, WebhookSettings};
use crate::oidc::OidcSettings;
use crate::principal::{Appointed, Appointments};
use tessera_control::accounts::{AccountSettings, Accounts};
use tessera_control::site::{PartitionSettings, QosSettings, ShareDefault, Site};

/// Default time that ended jobs are kept: the usage of a quarter can be reported.
const KEEP_HISTORY: RetentionTime = RetentionTime::days(90);

/// Default time that recorded rounds are kept: the decisions of a week can be replayed.
const KEEP_ROUNDS: RetentionTime = RetentionTime::days(7);

/// Default time that the audit log is kept: a year, and the time until somebody looks.
const KEEP_AUDIT: RetentionTime = RetentionTime::days(400);

/// Default time that a round may spend on improving placements.
const IMPROVE_FOR_MS: u64 = 10;

/// Default time that a node's certificate lasts: two weeks, so that a node may be off for some days.
const NODE_CERTIFICATES: RetentionTime = RetentionTime::days(14);
/// Shortest and longest time that a node's certificate may last, in seconds.
const NODE_CERTIFICATES_SECS: std::ops::RangeInclusive<u64> = 6..=366 * 86_400;

/// Default time between looks for new runs to train models on.
const LEARN_EVERY_SECS: u64 = 600;

/// Default half-life of recent usage.
const HALF_LIFE: RetentionTime = RetentionTime::For(Accounts::HALF_LIFE);

const DEFAULT_POLICY: &str = "tessera";

/// Keeps jobs, places them on partitioned GPUs, and answers users.
#[derive(Debug, Parser)]
#[command(name = "tessera-controller", version)]
pub struct Command {
    /// What to do instead of serving.
    #[command(subcommand)]
    pub verb: Option<Verb>,
    /// How to serve.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// Everything but serving.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Creates the cluster's certificate authority, the controller's certificate and the API
    /// token in the data folder. Existing files are kept.
    Init {
        /// The controller's data folder.
        #[arg(long, env = "TESSERA_DATA")]
        data: PathBuf,
    },
    /// Creates a node's certificate, for the agent's DATA/identity folder.
    NodeCert {
        /// The node's name.
        name: NodeName,
        /// The controller's data folder.
        #[arg(long, env = "TESSERA_DATA")]
        data: PathBuf,
        /// Where to write ca.pem, cert.pem and key.pem.
        #[arg(long)]
        out: PathBuf,
    },
    /// Lets a running controller read its configuration file again, and reports what changed.
    ///
    /// Give the options that it was started with. If a key changed that is read only at the start,
    /// nothing changes, the error names the key, and the exit code is 1.
    Reload {
        /// The controller's process [default: the unit's, under systemctl reload].
        #[arg(long, env = "MAINPID")]
        pid: i32,
    },
    /// Prints the API's description (OpenAPI 3.1).
    Openapi,
    /// Writes the manual pages of this program into a folder.
    #[command(hide = true)]
    Manual {
        /// The folder.
        out: PathBuf,
    },
}

/// How to serve, from the command line and the environment.
#[derive(Clone, Debug, Default, Args)]
pub struct ServeArgs {
    /// Configuration file (TOML); its keys are the long options' names.
    #[arg(long, env = "TESSERA_CONTROLLER_CONFIG")]
    pub config: Option<PathBuf>,
    /// Checks the configuration, prints the effective settings, and exits.
    #[arg(long)]
    pub check: bool,
    /// Data folder.
    #[arg(long, env = "TESSERA_DATA")]
    pub data: Option<PathBuf>,
    /// `private` for its own PostgreSQL in the data folder, or a postgres:// URL.
    #[arg(long, env = "TESSERA_DATABASE")]
    pub database: Option<String>,
    /// Address of the REST API.
    #[arg(long, env = "TESSERA_HTTP")]
    pub http: Option<SocketAddr>,
    /// Address for agents (QUIC).
    #[arg(long, env = "TESSERA_QUIC")]
    pub quic: Option<SocketAddr>,
    /// Placement policy: tessera, scheme-b, static or exclusive [default: tessera].
    #[arg(long, env = "TESSERA_POLICY")]
    pub policy: Option<String>,
    /// How many seconds a node's lease lasts (2 or more) [default: 300].
    #[arg(long, env = "TESSERA_LEASE", value_name = "SECONDS")]
    pub lease: Option<u64>,
    /// How long ended jobs, their decisions and layout plans are kept: 90d, 12h, or
    /// forever [default: 90d].
    #[arg(long, env = "TESSERA_KEEP_HISTORY", value_name = "DURATION")]
    pub keep_history: Option<RetentionTime>,
    /// How long recorded placement rounds are kept, for `tessera simulate --since`: 7d,
    /// 12h, or forever [default: 7d].
    #[arg(long, env = "TESSERA_KEEP_ROUNDS", value_name = "DURATION")]
    pub keep_rounds: Option<RetentionTime>,
    /// How many seconds a job runs before it may have to migrate, and between two migrations
    /// [default: 300].
    #[arg(long, env = "TESSERA_MIGRATION_COOLDOWN", value_name = "SECONDS")]
    pub migration_cooldown: Option<u64>,
    /// What is done about running jobs whose GPU memory is predicted to exceed their slices, unless
    /// they state it: off, advise or act [default: advise].
    #[arg(long, env = "TESSERA_MEMORY_PREDICTION", value_name = "WHAT")]
    pub memory_prediction: Option<MemoryPrediction>,
    /// Which offline jobs an online job without a place sends back to the queue: off (none), checkpoint
    /// (those that write a checkpoint when they are stopped) or requeue (others, too). The file's table
    /// preemption has the limits [default: checkpoint].
    #[arg(long, env = "TESSERA_PREEMPTION", value_name = "WHICH")]
    pub preemption: Option<PreemptionMode>,
    /// How many milliseconds a round may spend on improving placements by exchanging and migrating
    /// jobs, under policy tessera; 0 disables it [default: 10].
    #[arg(long, env = "TESSERA_IMPROVE_FOR", value_name = "MILLISECONDS",
          value_parser = clap::value_parser!(u64).range(..=1_000))]
    pub improve_for: Option<u64>,
    /// How many seconds pass between looks for new runs to train the prediction models on
    /// [default: 600].
    #[arg(long, env = "TESSERA_LEARN_EVERY", value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub learn_every: Option<u64>,
    /// How many compute slices each user's jobs may hold at once under policy tessera, such as
    /// ada=14,bob=7,*=28; * is every user without their own quota.
    #[arg(long, env = "TESSERA_QUOTAS", value_name = "USER=SLICES", value_delimiter = ',',
          value_parser = parse_quota)]
    pub quotas: Vec<(String, u32)>,
    /// Half-life of recent usage in fair shares under policy tessera: 1d, 12h, or forever. Past usage
    /// is weighted by half for each half-life of age; forever keeps its full weight [default: 1d].
    #[arg(long, env = "TESSERA_USAGE_HALF_LIFE", value_name = "DURATION")]
    pub usage_half_life: Option<RetentionTime>,
    /// Orders jobs by priority and number alone, whatever the recent usage of their accounts.
    #[arg(long, env = "TESSERA_NO_FAIR_SHARE")]
    pub no_fair_share: bool,
    /// How much policy tessera weighs energy: the loss of speed, in percent, that it accepts for a
    /// slice that is a whole GPU smaller [default: 25].
    #[arg(long, env = "TESSERA_ENERGY", value_name = "PERCENT")]
    pub energy: Option<u8>,
    /// Most power that all GPUs may draw together by the limits of their boards, such as 12kW: jobs wait
    /// rather than exceed it [default: none].
    #[arg(long, env = "TESSERA_POWER_CAP", value_name = "POWER")]
    pub power_cap: Option<PowerCap>,
    /// Gives a job that requests one GPU (--gres=gpu:1) a slice of one; the file's tables partitions.NAME can
    /// change that with their key share-gpus.
    #[arg(long, env = "TESSERA_SHARE_GPUS")]
    pub share_gpus: bool,
    /// How a job without --share is treated. With exclusive it gets a slice alone. With auto it may
    /// share one with another job of the same user where a benefit is predicted [default:
    /// exclusive].
    #[arg(long, env = "TESSERA_SHARE_DEFAULT", value_name = "exclusive|auto")]
    pub share_default: Option<ShareDefault>,
    /// Other controllers may share the database; one of them leads at a time.
    #[arg(long, env = "TESSERA_HA")]
    pub ha: bool,
    /// Unix socket of the REST API, over which the kernel names the callers [default: DATA/api.sock].
    #[arg(long, env = "TESSERA_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Users and Unix groups (@group) with the role admin, such as root,@wheel [default: root]. The
    /// controller's own account always has it.
    #[arg(long, env = "TESSERA_ADMINS", value_name = "USERS", value_delimiter = ',')]
    pub admins: Vec<Appointed>,
    /// Users and Unix groups (@group) with the role operator, such as ada,@gpu-operators.
    #[arg(long, env = "TESSERA_OPERATORS", value_name = "USERS", value_delimiter = ',')]
    pub operators: Vec<Appointed>,
    /// Further names by which browsers and programs call this controller, such as gpu.example.org.
    #[arg(long, env = "TESSERA_HOSTS", value_name = "NAMES", value_delimiter = ',')]
    pub hosts: Vec<String>,
    /// How long entries of the audit log are kept: 400d, or forever [default: 400d].
    #[arg(long, env = "TESSERA_KEEP_AUDIT", value_name = "DURATION")]
    pub keep_audit: Option<RetentionTime>,
    /// How long a node's certificate lasts: 14d, 24h. Agents renew theirs after two thirds of that time
    /// [default: 14d].
    #[arg(long, env = "TESSERA_NODE_CERTIFICATES", value_name = "DURATION")]
    pub node_certificates: Option<RetentionTime>,
    /// Encrypts the REST API with a certificate of the cluster's authority, for the names of --hosts and
    /// of this machine.
    #[arg(long, env = "TESSERA_TLS")]
    pub tls: bool,
    /// Encrypts the REST API with this certificate chain (PEM); needs --tls-key.
    #[arg(long, env = "TESSERA_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert (PEM).
    #[arg(long, env = "TESSERA_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Serves the API beyond loopback without TLS, for a proxy in front of it.
    #[arg(long, env = "TESSERA_INSECURE_HTTP")]
    pub insecure_http: bool,
    /// Accepts a database that may lose acknowledged jobs in a crash; for experiments only.
    #[arg(long, env = "TESSERA_NOT_DURABLE")]
    pub not_durable: bool,
}

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct File {
    data: Option<PathBuf>,
    database: Option<String>,
    http: Option<SocketAddr>,
    quic: Option<SocketAddr>,
    policy: Option<String>,
    lease: Option<u64>,
    keep_history: Option<RetentionTime>,
    keep_rounds: Option<RetentionTime>,
    migration_cooldown: Option<u64>,
    memory_prediction: Option<MemoryPrediction>,
    improve_for: Option<u64>,
    learn_every: Option<u64>,
    quotas: Option<BTreeMap<String, u32>>,
    accounts: Option<BTreeMap<String, AccountSettings>>,
    partitions: Option<BTreeMap<String, PartitionSettings>>,
    qos: Option<BTreeMap<String, QosSettings>>,
    features: Option<BTreeMap<String, String>>,
    preemption: Option<PreemptionRules>,
    share_gpus: Option<bool>,
    share_default: Option<ShareDefault>,
    usage_half_life: Option<RetentionTime>,
    no_fair_share: Option<bool>,
    energy: Option<u8>,
    power_cap: Option<PowerCap>,
    ha: Option<bool>,
    socket: Option<PathBuf>,
    admins: Option<Vec<Appointed>>,
    operators: Option<Vec<Appointed>>,
    hosts: Option<Vec<String>>,
    keep_audit: Option<RetentionTime>,
    node_certificates: Option<RetentionTime>,
    tls: Option<bool>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    insecure_http: Option<bool>,
    not_durable: Option<bool>,
    oidc: Option<OidcSettings>,
    mail: Option<MailSettings>,
    webhook: Option<WebhookSettings>,
}

/// The effective settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Settings {
    /// Data folder.
    pub data: PathBuf,
    /// `private`, or a URL.
    pub database: String,
    /// Address of the REST API.
    pub http: SocketAddr,
    /// Address for agents.
    pub quic: SocketAddr,
    /// Placement policy.
    pub policy: String,
    /// Seconds of a node's lease.
    pub lease: u64,
    /// How long ended jobs and layout plans are kept.
    pub keep_history: RetentionTime,
    /// How long recorded placement rounds are kept.
    pub keep_rounds: RetentionTime,
    /// How many seconds a job runs before it may have to migrate.
    pub migration_cooldown: u64,
    /// What is done about running jobs whose memory is predicted to exceed their slices.
    pub memory_prediction: MemoryPrediction,
    /// Which online jobs send offline jobs back to the queue.
    pub preemption: PreemptionRules,
    /// How many milliseconds a round may spend on improving placements.
    pub improve_for: u64,
    /// How many seconds pass between looks for new runs.
    pub learn_every: u64,
    /// How much energy weighs, in percent.
    pub energy: u8,
    /// The most power that all GPUs may draw together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_cap: Option<PowerCap>,
    /// Half-life of recent usage.
    pub usage_half_life: RetentionTime,
    /// Whether jobs are ordered by priority and number alone.
    pub no_fair_share: bool,
    /// Whether other controllers may share the database.
    pub ha: bool,
    /// Unix socket of the REST API; by default in the data folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Who has the role admin.
    pub admins: Vec<Appointed>,
    /// Who has the role operator.
    pub operators: Vec<Appointed>,
    /// Further names of this controller.
    pub hosts: Vec<String>,
    /// How long entries of the audit log are kept.
    pub keep_audit: RetentionTime,
    /// How long a node's certificate lasts.
    pub node_certificates: RetentionTime,
    /// Whether the REST API has a certificate of the cluster's authority.
    pub tls: bool,
    /// The certificate of the REST API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Whether the API may be served beyond loopback without TLS.
    pub insecure_http: bool,
    /// Whether the database may lose acknowledged jobs.
    pub not_durable: bool,
    /// How many compute slices users' jobs may hold at once; `*` is every other user.
    pub quotas: BTreeMap<String, u32>,
    /// Accounts with their members, shares and quotas.
    pub accounts: BTreeMap<String, AccountSettings>,
    /// The issuer whose tokens are valid, in addition to personal tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oidc: Option<OidcSettings>,
    /// How mail about jobs leaves, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mail: Option<MailSettings>,
    /// Where state changes of jobs are posted, if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookSettings>,
    /// What the terms of batch schedulers mean here.
    #[serde(flatten)]
    pub site: Site,
}

impl Settings {
    /// Merges the sources of settings, and checks the result.
    ///
    /// # Errors
    ///
    /// Names the setting that is wrong and what was expected.
    pub fn resolve(args: &ServeArgs) -> anyhow::Result<Self> {
        let file = args.config.as_deref().map(read_file).transpose()?.unwrap_or_default();
        let settings = Self {
            data: args.data.clone().or(file.data).context(
                "no data folder: give --data DIR, TESSERA_DATA or data in the configuration file",
            )?,
            database: args.database.clone().or(file.database).unwrap_or("private".to_owned()),
            http: args.http.or(file.http).unwrap_or(([127, 0, 0, 1], 7070).into()),
            quic: args.quic.or(file.quic).unwrap_or(([127, 0, 0, 1], 7071).into()),
            policy: args
                .policy
                .clone()
                .or(file.policy)
                .unwrap_or_else(|| DEFAULT_POLICY.to_owned()),
            lease: args.lease.or(file.lease).unwrap_or(LeaseTerms::DEFAULT_LENGTH.get() / 1_000),
            keep_history: args.keep_history.or(file.keep_history).unwrap_or(KEEP_HISTORY),
            keep_rounds: args.keep_rounds.or(file.keep_rounds).unwrap_or(KEEP_ROUNDS),
            migration_cooldown: args
                .migration_cooldown
                .or(file.migration_cooldown)
                .unwrap_or(MIGRATION_COOLDOWN.get() / 1_000),
            memory_prediction: args
                .memory_prediction
                .or(file.memory_prediction)
                .unwrap_or(MemoryPrediction::Advise),
            preemption: PreemptionRules {
                online_over_offline: args
                    .preemption
                    .or(file.preemption.map(|rules| rules.online_over_offline))
                    .unwrap_or_default(),
                ..file.preemption.unwrap_or_default()
            },
            improve_for: args.improve_for.or(file.improve_for).unwrap_or(IMPROVE_FOR_MS),
            learn_every: args.learn_every.or(file.learn_every).unwrap_or(LEARN_EVERY_SECS).max(1),
            energy: args.energy.or(file.energy).unwrap_or(PolicyOptions::DEFAULT.energy_percent),
            power_cap: args.power_cap.or(file.power_cap),
            ha: args.ha || file.ha.unwrap_or(false),
            socket: args.socket.clone().or(file.socket),
            admins: match args.admins.is_empty() {
                true => file.admins.unwrap_or_else(|| vec![Appointed::User("root".to_owned())]),
                false => args.admins.clone(),
            },
            operators: match args.operators.is_empty() {
                true => file.operators.unwrap_or_default(),
                false => args.operators.clone(),
            },
            hosts: match args.hosts.is_empty() {
                true => file.hosts.unwrap_or_default(),
                false => args.hosts.clone(),
            },
            keep_audit: args.keep_audit.or(file.keep_audit).unwrap_or(KEEP_AUDIT),
            node_certificates: args
                .node_certificates
                .or(file.node_certificates)
                .unwrap_or(NODE_CERTIFICATES),
            tls: args.tls || file.tls.unwrap_or(false),
            tls_cert: args.tls_cert.clone().or(file.tls_cert),
            tls_key: args.tls_key.clone().or(file.tls_key),
            insecure_http: args.insecure_http || file.insecure_http.unwrap_or(false),
            not_durable: args.not_durable || file.not_durable.unwrap_or(false),
            quotas: match args.quotas.is_empty() {
                true => file.quotas.unwrap_or_default(),
                false => args.quotas.iter().cloned().collect(),
            },
            accounts: file.accounts.unwrap_or_default(),
            oidc: file.oidc,
            mail: file.mail,
            webhook: file.webhook,
            site: Site {
                partitions: file.partitions.unwrap_or_default(),
                qos: file.qos.unwrap_or_default(),
                features: file.features.unwrap_or_default(),
                share_gpus: args.share_gpus || file.share_gpus.unwrap_or(false),
                share_default: args.share_default.or(file.share_default).unwrap_or_default(),
            },
            usage_half_life: args.usage_half_life.or(file.usage_half_life).unwrap_or(HALF_LIFE),
            no_fair_share: args.no_fair_share || file.no_fair_share.unwrap_or(false),
        };
        settings.check()?;
        Ok(settings)
    }

    fn check(&self) -> anyhow::Result<()> {
        self.lease_terms()?;
        if tessera_placement::by_name(&self.policy).is_none() {
            bail!(
                "no policy is called {:?}: choose one of {}",
                self.policy,
                tessera_placement::policy::NAMES.join(", ")
            );
        }
        if self.improve_for > 1_000 {
            bail!("improve-for is {}: write 0 to 1000 milliseconds", self.improve_for);
        }
        if self.energy > 100 {
            bail!("energy is {}: write 0 to 100 percent", self.energy);
        }
        if !self.quotas.is_empty() && self.policy != DEFAULT_POLICY {
            bail!(
                "only policy {DEFAULT_POLICY} supports quotas, and the policy is {}: remove the quotas, \
                 or choose {DEFAULT_POLICY}",
                self.policy
            );
        }
        if !self.accounts.is_empty() && self.policy != DEFAULT_POLICY {
            bail!(
                "only policy {DEFAULT_POLICY} supports accounts, and the policy is {}: remove the \
                 accounts, or choose {DEFAULT_POLICY}",
                self.policy
            );
        }
        self.accounts()?;
        self.site.check()?;
        self.oidc.as_ref().map_or(Ok(()), OidcSettings::check)?;
        self.mail.as_ref().map_or(Ok(()), MailSettings::check)?;
        self.webhook.as_ref().map_or(Ok(()), WebhookSettings::check)?;
        let url =
            self.database.starts_with("postgres://") || self.database.starts_with("postgresql://");
        if self.database != "private" && !url {
            bail!("database is {:?}: write private, or a postgres:// URL", self.database);
        }
        if self.database == "private" && self.ha {
            bail!("ha needs a database that controllers can share: give its URL");
        }
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            bail!("a certificate needs its key: give both tls-cert and tls-key, or neither");
        }
        if self.tls && self.tls_cert.is_some() {
            bail!(
                "tls makes a certificate of the cluster's authority, and tls-cert names another one: \
                 give one of them"
            );
        }
        self.node_certificate_life()?;
        let encrypted = self.tls || self.tls_cert.is_some();
        if !self.http.ip().is_loopback() && !encrypted && !self.insecure_http {
            bail!(
                "http is {}: beyond loopback the API needs TLS: give --tls, or --tls-cert and \
                 --tls-key; or put a proxy with TLS in front and accept it with --insecure-http",
                self.http
            );
        }
        for host in &self.hosts {
            let plain = |c: char| c.is_ascii_alphanumeric() || ".-[]:".contains(c);
            if host.is_empty() || !host.chars().all(plain) {
                bail!("hosts has {host:?}: write names such as gpu.example.org, without a port");
            }
        }
        Ok(())
    }

    /// Returns how long a node's certificate lasts.
    ///
    /// # Errors
    ///
    /// If that is out of range, or forever.
    pub fn node_certificate_life(&self) -> anyhow::Result<std::time::Duration> {
        match self.node_certificates {
            RetentionTime::For(life) if NODE_CERTIFICATES_SECS.contains(&(life.get() / 1_000)) => {
                Ok(life.duration())
            }
            _ => bail!(
                "node-certificates is {}: write a time of 6 seconds to 366 days, such as 14d",
                self.node_certificates
            ),
        }
    }

    /// Returns the terms of node leases.
    ///
    /// # Errors
    ///
    /// If the lease is too short.
    pub fn lease_terms(&self) -> anyhow::Result<LeaseTerms> {
        Ok(LeaseTerms::from_length(Millis::from_secs(self.lease))?)
    }

    /// Returns the half-life of recent usage; `None` if past usage keeps its full weight.
    pub const fn half_life(&self) -> Option<Millis> {
        match self.usage_half_life {
            RetentionTime::Forever => None,
            RetentionTime::For(half_life) => Some(half_life),
        }
    }

    /// Returns the accounts with their members and quotas.
    ///
    /// # Errors
    ///
    /// Names the account that is wrong and what was expected.
    pub fn accounts(&self) -> anyhow::Result<Accounts> {
        let (quotas, accounts) = (self.quotas.clone(), self.accounts.clone());
        let accounts = Accounts::new(quotas, accounts, self.half_life())?;
        Ok(if self.no_fair_share { accounts.in_turn() } else { accounts })
    }

    /// Returns the policy's own settings.
    pub const fn policy_terms(&self) -> PolicyOptions {
        PolicyOptions { energy_percent: self.energy }
    }

    /// Returns the settings of rounds, except the accounts.
    pub const fn placement(&self) -> PlacementSettings {
        PlacementSettings {
            improve_for: Duration::from_millis(self.improve_for),
            migration_cooldown: Millis::from_secs(self.migration_cooldown),
            memory_prediction: self.memory_prediction,
            preemption: self.preemption,
            power_cap: self.power_cap,
        }
    }

    /// Returns where the Unix socket of the REST API is.
    pub fn socket_path(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| self.data.join("api.sock"))
    }

    /// Returns who has more than the role of a user.
    pub fn appointments(&self, own_uid: u32) -> Appointments {
        Appointments {
            admins: self.admins.clone(),
            operators: self.operators.clone(),
            own_uid: Some(own_uid),
        }
    }

    /// Returns the settings for people, without what is secret: a password in the database's URL, wherever
    /// it stands.
    pub fn shown(&self) -> Self {
        Self { database: without_password(&self.database), ..self.clone() }
    }
}

/// Hides what a URL of a database keeps secret: the password before its host, and the values of parameters
/// that hold one.
fn without_password(url: &str) -> String {
    // A question mark before the last @ belongs to a password that nobody escaped.
    let account_ends = url.rfind('@').unwrap_or(0);
    let (head, query) = match url[account_ends..].find('?') {
        Some(at) => (&url[..account_ends + at], Some(&url[account_ends + at + 1..])),
        None => (url, None),
    };
    let head = match head.split_once("://") {
        None => head.to_owned(),
        Some((scheme, rest)) => {
            // A password may hold any of these letters, if nobody escaped it: its last @ ends it.
            let (account, host) = match rest.rsplit_once('@') {
                Some((account, host)) => (Some(account), host),
                None => (None, rest),
            };
            match account.map(|account| account.split_once(':').unwrap_or((account, ""))) {
                Some((user, "")) => format!("{scheme}://{user}@{host}"),
                Some((user, _)) => format!("{scheme}://{user}:(hidden)@{host}"),
                None => format!("{scheme}://{host}"),
            }
        }
    };
    let shown = query.map(|query| {
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, _)) if name.to_ascii_lowercase().contains("pass") => {
                format!("{name}=(hidden)")
            }
            _ => pair.to_owned(),
        });
        pairs.collect::<Vec<_>>().join("&")
    });
    shown.map_or(head.clone(), |query| format!("{head}?{query}"))
}

/// A quota of the command line that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a quota: write USER=SLICES, such as ada=14 or *=28")]
struct BadQuota {
    text: String,
}

/// Reads one quota, such as `ada=14`.
fn parse_quota(text: &str) -> Result<(String, u32), BadQuota> {
    let wrong = || BadQuota { text: text.to_owned() };
    let (user, slices) = text.trim().split_once('=').ok_or_else(wrong)?;
    let slices = slices.trim().parse().map_err(|_| wrong())?;
    if user.trim().is_empty() { Err(wrong()) } else { Ok((user.trim().to_owned(), slices)) }
}

fn read_file(path: &Path) -> anyhow::Result<File> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("can't read the configuration file {}", path.display()))?;
    toml::from_str(&text)
        .with_context(|| format!("{} is not a valid configuration file", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> ServeArgs {
        ServeArgs { data: Some("/tmp/t".into()), ..ServeArgs::default() }
    }

    #[test]
    fn the_defaults_are_a_single_controller_on_loopback() {
        let settings = Settings::resolve(&args()).unwrap();

        assert_eq!(settings.database, "private");
        assert_eq!(settings.policy, "tessera");
        assert!(settings.http.ip().is_loopback());
        assert_eq!(settings.socket_path(), Path::new("/tmp/t/api.sock"));
        assert_eq!(settings.admins, [Appointed::User("root".into())]);
    }

    #[test]
    fn each_wrong_setting_names_what_was_expected() {
        type Break = fn(&mut ServeArgs);
        let cases: [(&str, Break); 12] = [
            ("give both", |a| a.tls_cert = Some("/tmp/cert.pem".into())),
            ("give one of them", |a| {
                a.tls = true;
                a.tls_cert = Some("/tmp/cert.pem".into());
                a.tls_key = Some("/tmp/key.pem".into());
            }),
            ("without a port", |a| a.hosts = vec!["a b".into()]),
            ("0 to 1000 milliseconds", |a| a.improve_for = Some(1_001)),
            ("0 to 100 percent", |a| a.energy = Some(101)),
            ("choose tessera", |a| {
                a.policy = Some("scheme-b".into());
                a.quotas = vec![("ada".into(), 7)];
            }),
            ("--data DIR", |a| a.data = None),
            ("scheme-b", |a| a.policy = Some("best".into())),
            ("the shortest is", |a| a.lease = Some(1)),
            ("postgres:// URL", |a| a.database = Some("mysql://x".into())),
            ("--insecure-http", |a| a.http = Some(([0, 0, 0, 0], 7070).into())),
            ("give its URL", |a| a.ha = true),
        ];
        for (hint, break_it) in cases {
            let mut args = args();
            break_it(&mut args);

            let error = format!("{:#}", Settings::resolve(&args).unwrap_err());

            assert!(error.contains(hint), "{error}");
        }
    }

    #[test]
    fn quotas_are_read_from_the_command_line_and_from_the_file() {
        assert_eq!(parse_quota("ada=14"), Ok(("ada".to_owned(), 14)));
        assert_eq!(parse_quota(" * = 28"), Ok(("*".to_owned(), 28)));
        for wrong in ["ada", "=4", "ada=", "ada=many", "ada=-1"] {
            assert!(parse_quota(wrong).unwrap_err().to_string().contains("ada=14"), "{wrong}");
        }
        let file = toml::from_str::<File>("energy = 0\n[quotas]\nada = 14\n\"*\" = 28").unwrap();
        assert_eq!(file.quotas.unwrap()["*"], 28);
        assert_eq!(file.energy, Some(0));
    }

    #[test]
    fn accounts_are_read_from_the_file_and_each_wrong_one_names_what_was_expected() {
        let read = |text: &str| toml::from_str::<File>(text).map_err(|error| error.to_string());
        let text = "usage-half-life = \"12h\"\n[accounts]\n\
                    lab-a = { members = [\"ada\", \"bob\"], share = 2, quota = 28 }\n\
                    lab-b = { members = [\"cyd\"] }";
        let file = read(text).unwrap();
        let accounts = file.accounts.unwrap();
        assert_eq!((accounts["lab-a"].share, accounts["lab-a"].quota), (2, Some(28)));
        assert_eq!((accounts["lab-b"].share, accounts["lab-b"].quota), (1, None));
        let wrong = read("[accounts]\nlab = { members = [\"ada\"], shares = 2 }").unwrap_err();
        assert!(wrong.contains("shares") && wrong.contains("share"), "{wrong}");
        let twice = Settings {
            accounts: [("lab-c".to_owned(), accounts["lab-b"].clone())]
                .into_iter()
                .chain(accounts)
                .collect(),
            ..Settings::resolve(&args()).unwrap()
        };
        let error = twice.check().unwrap_err().to_string();
        assert!(error.contains("cyd") && error.contains("lab-b"), "{error}");
    }

    #[test]
    fn the_issuer_of_tokens_is_a_table_of_the_file_and_is_shown() {
        let read = |text: &str| toml::from_str::<File>(text).map_err(|error| error.to_string());
        let text = "[oidc]\nissuer = \"https://login.example.org\"\naudience = \"tessera\"\n\
                    user-claim = \"uid\"\ngroups-claim = \"groups\"\n\
                    [oidc.roles]\ngpu-operators = \"operator\"";
        let oidc = read(text).unwrap().oidc.unwrap();
        let settings = Settings { oidc: Some(oidc), ..Settings::resolve(&args()).unwrap() };

        settings.check().unwrap();

        let shown = toml::to_string(&settings.shown()).unwrap();
        assert!(shown.contains("[oidc.roles]\ngpu-operators = \"operator\""), "{shown}");
        let wrong = read(&text.replace("\"operator\"", "\"boss\"")).unwrap_err();
        assert!(wrong.contains("boss") && wrong.contains("admin"), "{wrong}");
    }

    #[test]
    fn class_rules_are_a_table_of_the_file_and_each_wrong_one_names_what_was_expected() {
        let read = |text: &str| toml::from_str::<File>(text).map_err(|error| error.to_string());
        let text =
            "[preemption]\nonline-over-offline = \"requeue\"\nmin-run = 60\nmost-per-job = 1";
        let rules = read(text).unwrap().preemption.unwrap();
        assert_eq!(rules.online_over_offline, PreemptionMode::Requeue);
        assert_eq!((rules.min_run, rules.most_per_job), (Millis::from_secs(60), 1));
        assert_eq!(rules.patience, PreemptionRules::default().patience);
        let wrong = read("[preemption]\nonline-over-offline = \"always\"").unwrap_err();
        assert!(wrong.contains("always") && wrong.contains("checkpoint"), "{wrong}");
        let wrong = read("[preemption]\nminimum = 3").unwrap_err();
        assert!(wrong.contains("minimum") && wrong.contains("min-run"), "{wrong}");
        let shown = toml::to_string(&Settings::resolve(&args()).unwrap().shown()).unwrap();
        assert!(shown.contains("[preemption]\nonline-over-offline = \"checkpoint\""), "{shown}");
        let off = ServeArgs { preemption: Some(PreemptionMode::Off), ..args() };
        let settings = Settings::resolve(&off).unwrap();
        assert_eq!(settings.preemption.online_over_offline, PreemptionMode::Off);
    }

    #[test]
    fn an_unknown_key_of_the_file_is_an_error() {
        let error = toml::from_str::<File>("polcy = \"static\"").unwrap_err().to_string();

        assert!(error.contains("polcy") && error.contains("policy"), "{error}");
    }

    #[test]
    fn beyond_loopback_the_api_needs_tls_or_a_proxy() {
        let beyond = ServeArgs { http: Some(([0, 0, 0, 0], 7070).into()), ..args() };

        for served in [
            ServeArgs { insecure_http: true, ..args() },
            ServeArgs { tls: true, ..args() },
            ServeArgs {
                tls_cert: Some("/tmp/cert.pem".into()),
                tls_key: Some("/tmp/key.pem".into()),
                ..args()
            },
        ] {
            Settings::resolve(&ServeArgs { http: beyond.http, ..served }).unwrap();
        }
        assert!(Settings::resolve(&beyond).unwrap_err().to_string().contains("--tls"));
    }

    #[test]
    fn settings_for_people_hold_no_password() {
        for (url, shown) in [
            ("private", "private"),
            ("postgres://tessera@%2Frun%2Fpg/db", "postgres://tessera@%2Frun%2Fpg/db"),
            ("postgres://t:s3cret@db:5432/t", "postgres://t:(hidden)@db:5432/t"),
            ("postgres://t:s3@cret/x@db/t", "postgres://t:(hidden)@db/t"),
            (
                "postgresql://db/t?user=t&password=s3cret&sslmode=require",
                "postgresql://db/t?user=t&password=(hidden)&sslmode=require",
            ),
            ("postgres://t:a:s3cret?x@db/t", "postgres://t:(hidden)@db/t"),
        ] {
            let settings =
                Settings { database: url.to_owned(), ..Settings::resolve(&args()).unwrap() };
            let text = toml::to_string(&settings.shown()).unwrap();

            assert_eq!(settings.shown().database, shown);
            assert!(!text.contains("s3"), "{text}");
        }
    }
}
