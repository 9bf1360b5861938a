//! Detects that the database was rolled back to an earlier state, by comparison with what is
//! remembered of it (rule F14).
//!
//! Three memories are compared with the server that answers now: the leader's row itself, the
//! controller's data folder, and the agents, which report the epochs and generations that they
//! obeyed. None of them alone detects every case. A promoted replica has a new timeline. A restored
//! copy of the files has the old one but a shorter log. A restored copy with later writes has lower
//! epochs than agents have obeyed.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One history of one PostgreSQL: it never forks without a change of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// The identifier of `pg_control_system()`: `initdb` generates it, and copies keep it.
    pub system: i64,
    /// The write-ahead log's timeline: rises with each promotion and each recovery to a point in
    /// time.
    pub timeline: u32,
}

/// What the server reports about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreNow {
    /// Its history.
    pub lineage: Lineage,
    /// Where its log ends, in bytes.
    pub log_end: u64,
    /// The leader's epoch.
    pub epoch: u64,
    /// The history that the newest leader found; absent before the first.
    pub led: Option<Lineage>,
    /// The epoch under which a rollback was last handled; zero if never.
    pub rollback_epoch: u64,
}

/// What a controller's data folder remembers about the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remembered {
    /// The history at that time.
    pub lineage: Lineage,
    /// The end of its log, in bytes, before a commit that was answered since: no crash undoes that.
    /// (The flushed position may be within a record, which a crash does undo.)
    pub log_end: u64,
    /// The leader's epoch at that time.
    pub epoch: u64,
}

/// How a rollback of the database was detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseRollback {
    /// It is another database: restored from a dump, or newly created.
    OtherSystem {
        /// The identifier that was known.
        known: i64,
        /// The one that the server reports.
        found: i64,
    },
    /// A replica was promoted, or a backup was recovered to a point in time.
    OtherTimeline {
        /// The timeline that was known.
        known: u32,
        /// The one that the server reports.
        found: u32,
    },
    /// Its log is shorter than it was: an older copy of its files.
    ShorterLog {
        /// Where it ended, in bytes.
        known: u64,
        /// Where it ends, in bytes.
        found: u64,
    },
    /// Its epoch is lower than that of an earlier leader, or one that an agent obeyed.
    EarlierEpoch {
        /// The epoch that was known.
        known: u64,
        /// The one in the store.
        found: u64,
    },
    /// An agent has a higher generation than the store ever gave it.
    EarlierGeneration {
        /// The agent's generation.
        known: u64,
        /// The one in the store.
        found: u64,
    },
}

impl fmt::Display for DatabaseRollback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OtherSystem { known, found } => {
                write!(f, "it is another database: its system identifier is {found}, not {known}")
            }
            Self::OtherTimeline { known, found } => {
                write!(f, "it is on timeline {found}, and was on {known}")
            }
            Self::ShorterLog { known, found } => {
                write!(f, "its log ends at byte {found}, and had reached {known}")
            }
            Self::EarlierEpoch { known, found } => {
                write!(f, "its epoch is {found}, but agents have obeyed {known}")
            }
            Self::EarlierGeneration { known, found } => {
                write!(f, "it gave a node generation {found}, but the node holds {known}")
            }
        }
    }
}

/// By how much generations rise after a rollback: more often than any node can have been lost since
/// the restored state.
const GENERATION_LEAP: u64 = 1_000_000;

/// Returns the generation below which every node is lost after a rollback was handled under
/// `epoch`. It is above `highest`, the highest known one, and differs for each epoch, so that a
/// second rollback to the same state doesn't reuse any of them.
pub fn generation_min_after(highest: u64, epoch: u64) -> u64 {
    highest.saturating_add(GENERATION_LEAP).max(epoch.saturating_mul(GENERATION_LEAP))
}

/// By how much an agent's epoch may exceed the store's and be credible. Elections are seconds
/// apart, so a larger difference would take centuries: the agent's state is damaged, and accepting
/// it would use up the numbers.
const CREDIBLE_EPOCHS: u64 = 1_000_000_000;

/// Returns whether leaders of a store whose epoch is `ours` can have given an agent this epoch and
/// generation.
pub fn is_credible(ours: u64, epoch: u64, generation: u64) -> bool {
    let highest = ours.saturating_add(CREDIBLE_EPOCHS);
    epoch <= highest && generation <= generation_min_after(0, highest)
}

impl DatabaseRollback {
    /// The highest known epoch of a leader: a new one must be above it.
    pub const fn highest_epoch(&self) -> u64 {
        match *self {
            Self::EarlierEpoch { known, .. } => known,
            Self::OtherSystem { .. }
            | Self::OtherTimeline { .. }
            | Self::ShorterLog { .. }
            | Self::EarlierGeneration { .. } => 0,
        }
    }

    /// The highest known generation of a node.
    pub const fn highest_generation(&self) -> u64 {
        match *self {
            Self::EarlierGeneration { known, .. } => known,
            Self::OtherSystem { .. }
            | Self::OtherTimeline { .. }
            | Self::ShorterLog { .. }
            | Self::EarlierEpoch { .. } => 0,
        }
    }
}

impl StoreNow {
    /// Returns the rollback since `remembered`, or since the newest leader's election, if there
    /// was one.
    ///
    /// A rollback that was handled under an epoch above the remembered one does not count again,
    /// since the memory is older.
    pub fn rollback_since(&self, remembered: Option<&Remembered>) -> Option<DatabaseRollback> {
        let by_leader = self.led.and_then(|led| self.forked_from(led));
        by_leader.or_else(|| self.behind(remembered?))
    }

    fn forked_from(&self, known: Lineage) -> Option<DatabaseRollback> {
        let found = self.lineage;
        if known.system != found.system {
            return Some(DatabaseRollback::OtherSystem {
                known: known.system,
                found: found.system,
            });
        }
        (known.timeline != found.timeline).then_some(DatabaseRollback::OtherTimeline {
            known: known.timeline,
            found: found.timeline,
        })
    }

    fn behind(&self, known: &Remembered) -> Option<DatabaseRollback> {
        if self.rollback_epoch > known.epoch {
            return None;
        }
        if self.epoch < known.epoch {
            return Some(DatabaseRollback::EarlierEpoch { known: known.epoch, found: self.epoch });
        }
        self.forked_from(known.lineage).or_else(|| {
            (self.log_end < known.log_end).then_some(DatabaseRollback::ShorterLog {
                known: known.log_end,
                found: self.log_end,
            })
        })
    }

    /// Returns the memory to keep under an epoch, after a later commit was answered.
    pub const fn remembered_under(&self, epoch: u64) -> Remembered {
        Remembered { lineage: self.lineage, log_end: self.log_end, epoch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HERE: Lineage = Lineage { system: 7, timeline: 1 };

    fn store(lineage: Lineage, log_end: u64, epoch: u64) -> StoreNow {
        StoreNow { lineage, log_end, epoch, led: Some(lineage), rollback_epoch: 0 }
    }

    #[test]
    fn every_kind_of_rollback_is_detected_by_its_sign() {
        let before = store(HERE, 1_000, 5).remembered_under(5);
        let other = Lineage { system: 8, ..HERE };
        let promoted = Lineage { timeline: 2, ..HERE };
        let cases = [
            (store(other, 9_000, 5), "another database"),
            (store(promoted, 9_000, 5), "timeline 2"),
            (store(HERE, 999, 5), "ends at byte 999"),
            (store(HERE, 9_000, 4), "epoch is 4"),
            // Only the leader's row remembers the earlier state.
            (
                StoreNow { led: Some(HERE), rollback_epoch: 9, ..store(promoted, 0, 9) },
                "timeline 2",
            ),
        ];
        for (now, sign) in cases {
            let told = now.rollback_since(Some(&before)).expect(sign).to_string();

            assert!(told.contains(sign), "{told}");
        }
    }

    #[test]
    fn without_any_memory_no_rollback_is_detected() {
        let fresh = StoreNow { led: None, ..store(HERE, 1, 0) };

        assert_eq!(fresh.rollback_since(None), None);
    }

    #[test]
    fn numbers_that_no_leader_can_have_assigned_are_not_credible() {
        assert!(is_credible(5, 1_000, generation_min_after(7, 1_000)));
        assert!(!is_credible(5, u64::MAX, 1));
        assert!(!is_credible(5, 1, u64::MAX));
    }

    proptest! {
        #[test]
        fn a_store_with_only_later_commits_is_never_a_rollback(
            log_end in 0_u64..1 << 50,
            more in 0_u64..1 << 50,
            epoch in 0_u64..1 << 40,
            elections in 0_u64..100,
        ) {
            let before = store(HERE, log_end, epoch).remembered_under(epoch);
            let after = store(HERE, log_end + more, epoch + elections);

            prop_assert_eq!(after.rollback_since(Some(&before)), None);
        }

        #[test]
        fn a_rollback_is_handled_once_for_all_memories(
            log_end in 1_u64..1 << 50,
            epochs in prop::collection::vec(0_u64..1 << 40, 1..5),
        ) {
            let memories: Vec<_> =
                epochs.iter().map(|epoch| store(HERE, log_end, *epoch).remembered_under(*epoch)).collect();
            let restored = store(HERE, log_end - 1, 0);
            let highest = memories.iter().map(|m| m.epoch).max().unwrap();
            prop_assert!(memories.iter().all(|m| restored.rollback_since(Some(m)).is_some()));

            // The rollback is handled under an epoch above all known ones.
            let epoch = highest + 1;
            let answered = StoreNow { epoch, rollback_epoch: epoch, ..restored };

            for memory in &memories {
                prop_assert_eq!(answered.rollback_since(Some(memory)), None);
            }
            // Memories from then on count again.
            let since = Remembered { log_end, ..answered.remembered_under(epoch) };
            prop_assert!(answered.rollback_since(Some(&since)).is_some());
        }

        #[test]
        fn no_two_rollbacks_assign_the_same_generations(
            highest in 0_u64..1 << 40,
            epoch in 0_u64..1 << 30,
            later in 1_u64..1_000,
        ) {
            let (first, second) = (generation_min_after(0, epoch), generation_min_after(0, epoch + later));

            prop_assert!(first + GENERATION_LEAP <= second);
            prop_assert!(generation_min_after(highest, epoch) > highest);
        }
    }
}
