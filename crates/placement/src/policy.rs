//! The policies, one file each, behind one trait.

use tessera_model::Millis;

use crate::decision::Decision;
use crate::view::{ClusterView, QueuedJob};

/// A placement policy: pure, stateless, replayable.
pub trait Policy: Send + Sync + std::fmt::Debug {
    /// Returns the name that configuration and decisions use.
    fn name(&self) -> &'static str;

    /// Decides one round.
    ///
    /// `queue` holds the waiting jobs in service order. Decisions are consistent with each
    /// other: each sees the places that earlier ones took, so all of them can be carried out.
    /// At most one decision a job; a job without one was not looked at (it stands behind a job
    /// that waits, where the policy keeps the order). At most `starts_max` jobs are started.
    fn decide(
        &self,
        cluster: &ClusterView,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision>;
}

/// Names of all policies that [`by_name`] knows.
pub const NAMES: &[&str] = &[];

/// Finds a policy by its name.
pub fn by_name(_name: &str) -> Option<Box<dyn Policy>> {
    None
}
