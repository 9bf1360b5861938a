//! The policies, one file each, behind one trait.

mod exclusive;
mod pinned;
mod scheme_b;
mod static_layout;

use tessera_model::Millis;

use crate::decision::Decision;
use crate::view::{ClusterView, QueuedJob};

pub use exclusive::Exclusive;
pub(crate) use pinned::Pinned;
pub use scheme_b::SchemeB;
pub use static_layout::StaticLayout;

/// A placement policy: pure, stateless, replayable.
pub trait Policy: Send + Sync + std::fmt::Debug {
    /// Returns the name that configuration and decisions use.
    fn name(&self) -> &'static str;

    /// Decides one round.
    ///
    /// `queue` holds the waiting jobs in service order. Decisions are consistent with each
    /// other: each sees the places that earlier ones took, so all of them can be carried out.
    /// The steps of a decision assume that the steps of earlier decisions of the round for the
    /// same GPU have been taken, in order. A GPU that was changing as the round began gets no
    /// steps at all.
    ///
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
pub const NAMES: &[&str] = &["exclusive", "static", "scheme-b"];

/// Finds a policy by its name.
pub fn by_name(name: &str) -> Option<Box<dyn Policy>> {
    match name {
        "exclusive" => Some(Box::new(Exclusive)),
        "static" => Some(Box::new(StaticLayout)),
        "scheme-b" => Some(Box::new(SchemeB)),
        _ => None,
    }
}
