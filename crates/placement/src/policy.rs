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
    /// It makes the tightest slice, by MIGM's rules.
    #[default]
    MadeToMeasure,
    /// It uses the slices that stand.
    AsTheyStand,
    /// It gives whole GPUs.
    WholeGpus,
}

/// A placement policy: pure, stateless, replayable.
pub trait Policy: Send + Sync + std::fmt::Debug {
    /// Returns the name that configuration and decisions use.
    fn name(&self) -> &'static str;

    /// Whether it may move running jobs ([`Decision::Reshape`]): then it decides now and then
    /// although nobody waits.
    fn moves(&self) -> bool {
        false
    }

    /// Returns what it weighs, by name; null for a policy that has nothing to set.
    /// [`with_settings`] makes the same policy of it again.
    fn settings(&self) -> Value {
        Value::Null
    }

    /// Whether jobs stand in the order of service by what their accounts have had
    /// ([`crate::fair`]): else by priority and number alone.
    fn shares_fairly(&self) -> bool {
        false
    }

    /// Whether it needs to know how long jobs take before it places them: else it may put a job wherever its
    /// memory fits.
    fn needs_run_times(&self) -> bool {
        true
    }

    /// How it gets the slices for the members of gangs.
    fn slice_manner(&self) -> SliceManner {
        SliceManner::MadeToMeasure
    }

    /// Decides one round, with what is predicted of the jobs; a policy that looks at sizes only has
    /// no use for that.
    ///
    /// `queue` holds the waiting jobs in service order. Decisions are consistent with each
    /// other: each sees the places that earlier ones took, so all of them can be carried out.
    /// The steps of a decision assume that the steps of earlier decisions of the round for the
    /// same GPU have been taken, in order. A GPU that was changing as the round began gets no
    /// steps at all.
    ///
    /// At most one decision a job; a job without one was not looked at (it stands behind a job
    /// that waits, where the policy keeps the order). At most `starts_max` jobs are started.
    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision>;

    /// Returns a session that need not look at everything in each round, if the policy has one;
    /// [`crate::policy::session()`] has one for each.
    fn session(&self) -> Option<Box<dyn Session + '_>> {
        None
    }

    /// Decides one round where nothing is predicted of any job.
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

/// What of policies their operator may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyOptions {
    /// How much energy counts for `tessera`: what of its speed a job forgoes for a slice that is a
    /// whole GPU smaller, in percent; at most 100.
    pub energy_percent: u8,
}

impl PolicyOptions {
    /// The options that hold by default.
    pub const DEFAULT: Self = Self { energy_percent: 25 };
}

/// Finds a policy by its name, and gives it its terms.
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
