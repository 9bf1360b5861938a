//! Lease arithmetic: how long a node may run attempts without a renewal by the controller, and
//! when the controller may take them for dead.
//!
//! Both sides reckon on their own monotonic clock (`CLOCK_BOOTTIME`); only spans are compared.
//! The node counts from the time it **sent** the renewal, the controller from the time it
//! **processed** it. The controller adds the drift bound, so the node's deadline always
//! comes first (rule F6).

use serde::{Deserialize, Serialize};

use crate::units::Millis;

/// The spans that a cluster's leases are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseTerms {
    /// `L`: how long one renewal lasts.
    pub length: Millis,
    /// `D`: how far two clocks may drift apart during a lease, plus the time a kill takes.
    pub drift: Millis,
}

/// A lease that is too short to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a lease of {length} is too short: the shortest is {}", LeaseTerms::SHORTEST)]
pub struct LeaseTooShort {
    /// What was requested.
    pub length: Millis,
}

impl LeaseTerms {
    /// Default `L`, as long as the patience of schedulers that don't fence.
    pub const DEFAULT_LENGTH: Millis = Millis::from_secs(300);
    /// Shortest `L`: below it, a busy machine loses leases by scheduling delays alone.
    pub const SHORTEST: Millis = Millis::from_secs(2);

    /// Derives the terms from the length: `D` is 2 s + 1 % of it, at most a quarter of it.
    ///
    /// # Errors
    ///
    /// [`LeaseTooShort`] below [`Self::SHORTEST`].
    pub fn from_length(length: Millis) -> Result<Self, LeaseTooShort> {
        if length < Self::SHORTEST {
            return Err(LeaseTooShort { length });
        }
        let drift = Millis::new((2_000 + length.get() / 100).min(length.get() / 4));
        Ok(Self { length, drift })
    }

    /// Returns how often a node requests renewal: a thirtieth of the lease, but at least every
    /// 10 s, and no more than five times a second.
    pub fn renew_every(&self) -> Millis {
        Millis::new((self.length.get() / 30).clamp(200, 10_000))
    }

    /// Returns the time at which the node must have killed its attempts, on the node's clock.
    pub fn node_deadline(&self, renewal_sent: Millis) -> Millis {
        renewal_sent.plus(self.length)
    }

    /// Returns the time from which the controller may declare the node lost, on the
    /// controller's clock.
    pub fn controller_expiry(&self, renewal_processed: Millis) -> Millis {
        renewal_processed.plus(self.length).plus(self.drift)
    }
}

impl Default for LeaseTerms {
    fn default() -> Self {
        Self::from_length(Self::DEFAULT_LENGTH).expect("the default is longer than the shortest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_node_stops_before_the_controller_gives_it_up(
            length in 2_000_u64..1_000_000,
            sent in 0_u64..1_000_000_000,
            flight in 0_u64..1_000_000,
        ) {
            let terms = LeaseTerms::from_length(Millis::new(length)).unwrap();

            let node = terms.node_deadline(Millis::new(sent));
            let controller = terms.controller_expiry(Millis::new(sent + flight));

            prop_assert!(node.plus(terms.drift) <= controller);
        }
    }

    #[test]
    fn a_node_can_renew_several_times() {
        for secs in [2, 10, 300, 3600] {
            let terms = LeaseTerms::from_length(Millis::from_secs(secs)).unwrap();
            assert!(terms.renew_every().get() * 5 <= terms.length.get(), "{secs} s");
        }
    }
}
