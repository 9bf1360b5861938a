//! The policies, one file each, behind one trait.

mod by_rule;
mod exclusive;
mod pinned;
pub mod planned_gpu;
mod scheme_b;
pub mod session;
mod settings;
mod static_layout;
mod tessera;

use serde_json::Value;
use tessera_model::Millis;

use self::session::Session;
use crate::decision::Decision;
use crate::predictor::Knowledge;
use crate::view::{ClusterView, QueuedJob};

pub use by_rule::ByRule;
pub use exclusive::Exclusive;
pub use exclusive::WholeGpu;
pub use pinned::{Pinned, decide_by_rule};
pub use scheme_b::MadeToMeasure;
pub use scheme_b::SchemeB;
pub use settings::{BadSettings, is_settable, simulated_with, with_settings};
pub use static_layout::{AsItStands, StaticLayout, suits};
pub use tessera::Tessera;

/// How a policy gets the slices for the members of gangs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SliceManner {
    /// It creates the tightest slice, by MIGM's rules.
    #[default]
    MadeToMeasure,
    /// It uses existing slices.
    AsTheyStand,
    /// It gives whole GPUs.
    WholeGpus,
}

/// A placement policy: pure, stateless, replayable.
pub trait Policy: Send + Sync + std::fmt::Debug {
    /// Returns the name that configuration and decisions use.
    fn name(&self) -> &'static str;

    /// Returns whether it may move running jobs ([`Decision::Reshape`]). Then it also decides
    /// periodically while no job waits.
    fn moves(&self) -> bool {
        false
    }

    /// Returns the length of its rounds, if its paper decides at fixed intervals. The simulator then also decides at
    /// the multiples of this time, whether or not anything has changed. A controller runs no such policy.
    fn round_interval(&self) -> Option<Millis> {
        None
    }

    /// Returns its settings by name; null for a policy without settings. [`with_settings`] makes
    /// the same policy from them.
    fn settings(&self) -> Value {
        Value::Null
    }

    /// Returns whether the order of service considers the accounts' recent usage ([`crate::fair`]);
    /// otherwise only priority and number count.
    fn shares_fairly(&self) -> bool {
        false
    }

    /// Returns whether it needs run times before it places jobs; otherwise it may place a job
    /// wherever its memory fits.
    fn needs_run_times(&self) -> bool {
        true
    }

    /// Returns whether it places each job only where its user lets it run. Otherwise jobs with different
    /// restrictions are decided one after another, each kind on its part of the cluster.
    fn honours_places(&self) -> bool {
        false
    }

    /// Returns how it gets the slices for the members of gangs.
    fn slice_manner(&self) -> SliceManner {
        SliceManner::MadeToMeasure
    }

    /// Decides one round with facts and predictions about the jobs; a policy that considers only
    /// sizes ignores them.
    ///
    /// `queue` holds the waiting jobs in service order. Decisions are consistent with each
    /// other: each one takes earlier ones into account, so all of them can be carried out. The
    /// steps of a decision assume that the steps of earlier decisions of the round for the same GPU
    /// have been taken, in order. A GPU whose layout was changing when the round began gets no
    /// steps.
    ///
    /// There is at most one decision for each job. A job without one was not considered: it is
    /// behind a waiting job, and the policy keeps the order. At most `starts_max` jobs are started.
    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision>;

    /// Returns a session that need not read the whole input in each round, if the policy has one;
    /// [`crate::policy::session()`] returns one for any policy.
    fn session(&self) -> Option<Box<dyn Session + '_>> {
        None
    }

    /// Decides one round without predictions.
    fn decide(
        &self,
        cluster: &ClusterView,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        self.decide_with(cluster, Knowledge::NONE, queue, now, starts_max)
    }
}

/// Names of all policies that [`by_name`] knows.
pub const NAMES: &[&str] = &["exclusive", "static", "scheme-b", "tessera"];

/// The options of policies that an operator may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyOptions {
    /// How much energy counts for `tessera`: the part of its speed that a job gives up for a slice
    /// that is smaller by a whole GPU, in percent (0–100).
    pub energy_percent: u8,
}

impl PolicyOptions {
    /// The default options.
    pub const DEFAULT: Self = Self { energy_percent: 25 };
}

/// Finds a policy by its name, and applies its options.
pub fn on_terms(name: &str, terms: PolicyOptions) -> Option<Box<dyn Policy>> {
    match name {
        "tessera" => {
            let thousandths = u16::from(terms.energy_percent).saturating_mul(10);
            Some(Box::new(Tessera::with_thrift(thousandths)))
        }
        _ => by_name(name),
    }
}

/// Finds a policy by its name.
pub fn by_name(name: &str) -> Option<Box<dyn Policy>> {
    match name {
        "exclusive" => Some(Box::new(Exclusive)),
        "static" => Some(Box::new(StaticLayout)),
        "scheme-b" => Some(Box::new(SchemeB)),
        "tessera" => Some(Box::new(Tessera::default())),
        _ => None,
    }
}
