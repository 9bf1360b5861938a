//! The output of MPS ([`daemon_output`]), and what its faults mean for the attempts that share a slice. Pure.

pub mod daemon_output;

use std::collections::{BTreeMap, BTreeSet};

use tessera_frames::cluster::ExitRecord;
use tessera_model::AttemptId;
use tessera_model::life::Outcome;
use tessera_model::share::{MpsShare, SHARERS_MAX};
use tessera_model::spec::Class;

/// Maximum number of client processes whose attempts are remembered: 48 contexts, and their
/// successors.
const CLIENTS_MAX: usize = 4096;

/// What orders the kernels of an attempt among those of its co-runners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharerOrder {
    /// Nothing: the percentages divide the multiprocessors.
    Percentages,
    /// The kernel queue: the percentages may overlap.
    KernelQueue(Class),
}

/// Why the sharing jobs of a slice can't continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpsFault {
    /// The reason, as one sentence.
    pub why: String,
    /// The attempts that caused it, as far as known: their ends count as their own.
    pub culprits: BTreeSet<AttemptId>,
}

/// Why an attempt can't join a slice. The controller never sends such an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinRefused {
    /// Too few multiprocessors are left.
    #[error("other attempts already have {given} % of the slice's multiprocessors")]
    Multiprocessors {
        /// Percent of the slice that the others have.
        given: u32,
    },
    /// Too many attempts share the slice.
    #[error("{SHARERS_MAX} attempts share the slice already")]
    TooMany,
}

/// The attempts that share a slice.
#[derive(Clone, Debug, Default)]
pub struct Sharers {
    members: BTreeMap<AttemptId, MpsShare>,
    /// The attempts of all client processes that were ever seen.
    owners: BTreeMap<u32, AttemptId>,
    fault: Option<MpsFault>,
}

impl Sharers {
    /// Adds an attempt.
    ///
    /// # Errors
    ///
    /// If it doesn't fit. The controller never mixes attempts of both orders on a slice.
    pub fn join(
        &mut self,
        attempt: AttemptId,
        share: MpsShare,
        order: SharerOrder,
    ) -> Result<(), JoinRefused> {
        let given: u32 = self.members.values().map(|share| u32::from(share.sm.get())).sum();
        let is_divided = order == SharerOrder::Percentages;
        if is_divided && given + u32::from(share.sm.get()) > 100 {
            return Err(JoinRefused::Multiprocessors { given });
        }
        if self.members.len() >= SHARERS_MAX as usize {
            return Err(JoinRefused::TooMany);
        }
        self.members.insert(attempt, share);
        Ok(())
    }

    /// Adds an attempt that joined under an earlier agent.
    pub fn adopt(&mut self, attempt: AttemptId, share: MpsShare) {
        self.members.insert(attempt, share);
    }

    /// Removes an ended attempt.
    pub fn leave(&mut self, attempt: AttemptId) {
        self.members.remove(&attempt);
        if self.members.is_empty() {
            self.fault = None;
            self.owners.clear();
        }
    }

    /// Returns whether an attempt is among them.
    pub fn has(&self, attempt: AttemptId) -> bool {
        self.members.contains_key(&attempt)
    }

    /// Returns whether no attempt shares the slice.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the attempts with their shares.
    pub const fn members(&self) -> &BTreeMap<AttemptId, MpsShare> {
        &self.members
    }

    /// Returns the problem of the slice, if it has one.
    pub const fn fault(&self) -> Option<&MpsFault> {
        self.fault.as_ref()
    }

    /// Records the attempt that a client process belongs to.
    pub fn set_owner(&mut self, pid: u32, attempt: AttemptId) {
        if self.owners.len() < CLIENTS_MAX || self.owners.contains_key(&pid) {
            self.owners.insert(pid, attempt);
        }
    }

    /// Returns whether a process is known.
    pub fn knows(&self, pid: u32) -> bool {
        self.owners.contains_key(&pid)
    }

    /// Records a fault; returns the attempts to kill. The first fault counts, since later ones
    /// follow from it. Attempts that are found later to have caused it are still recorded.
    pub fn fail(&mut self, why: &str, culprits: &BTreeSet<u32>) -> Vec<AttemptId> {
        let owners: BTreeSet<_> =
            culprits.iter().filter_map(|pid| self.owners.get(pid)).copied().collect();
        if let Some(fault) = &mut self.fault {
            fault.culprits.extend(owners);
            return Vec::new();
        }
        self.fault = Some(MpsFault { why: why.to_owned(), culprits: owners });
        self.members.keys().copied().collect()
    }

    /// Records which attempt caused the fault.
    pub fn blame(&mut self, attempt: AttemptId) {
        if let Some(fault) = &mut self.fault {
            fault.culprits.insert(attempt);
        }
    }

    /// Returns how an end counts, given the faults of the slice. An end by another attempt's fault
    /// is collateral, whatever the program returned. An end that was requested, or that a time
    /// limit caused, stays the same.
    pub fn judge(&self, attempt: AttemptId, record: ExitRecord) -> ExitRecord {
        let Some(fault) = &self.fault else { return record };
        if fault.culprits.contains(&attempt) {
            return match record.outcome {
                // The culprit was killed together with the others.
                Outcome::Collateral => ExitRecord {
                    outcome: Outcome::Failed,
                    detail: "its own fault stopped the slice's MPS server".to_owned(),
                    ..record
                },
                _ => record,
            };
        }
        match record.outcome {
            Outcome::Failed | Outcome::OutOfMemory | Outcome::Lost | Outcome::Collateral => {
                ExitRecord { outcome: Outcome::Collateral, detail: fault.why.clone(), ..record }
            }
            Outcome::Succeeded
            | Outcome::Cancelled
            | Outcome::TimedOut
            | Outcome::Preempted
            | Outcome::LaunchFailed
            | Outcome::NotStarted => record,
        }
    }
}

/// Returns whether the server's state is uncertain after an end: a client that died without
/// disconnecting may have damaged it (NVIDIA calls that undefined).
pub fn doubtful(record: &ExitRecord) -> bool {
    record.exit.is_some_and(|exit| exit != tessera_model::life::ProgramExit::Code(0))
}

/// Returns the variables of a client.
///
/// Under the kernel queue, a client of the offline class has the lower of MPS' two priorities: its blocks that wait
/// on the device start after those of the others. It ends no block that runs.
pub fn client_environment(
    share: MpsShare,
    order: SharerOrder,
    pipes: &str,
    logs: &str,
) -> Vec<(&'static str, String)> {
    // In whole mebibytes, rounded down: the limit is never more than was reserved.
    let limit = share.memory.mib().max(1);
    let mut variables = vec![
        ("CUDA_MPS_PIPE_DIRECTORY", pipes.to_owned()),
        ("CUDA_MPS_LOG_DIRECTORY", logs.to_owned()),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", share.sm.get().to_string()),
        // A client sees one device, which it calls 0.
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", format!("0={limit}M")),
    ];
    let priority = match order {
        SharerOrder::Percentages => None,
        SharerOrder::KernelQueue(Class::Online) => Some("0"),
        SharerOrder::KernelQueue(Class::Offline) => Some("1"),
    };
    variables.extend(priority.map(|level| ("CUDA_MPS_CLIENT_PRIORITY", level.to_owned())));
    variables
}

#[cfg(test)]
mod tests {
    use tessera_model::life::ProgramExit;
    use tessera_model::{Bytes, Millis};

    use super::*;

    fn attempt(number: u128) -> AttemptId {
        AttemptId::from_uuid(uuid::Uuid::from_u128(number))
    }

    fn share(sm: u8) -> MpsShare {
        MpsShare { sm: sm.try_into().unwrap(), memory: Bytes::from_mib(2_000) }
    }

    fn ended(outcome: Outcome, exit: ProgramExit) -> ExitRecord {
        ExitRecord {
            outcome,
            exit: Some(exit),
            detail: String::new(),
            started_unix: Millis::new(1),
            ended_unix: Millis::new(2),
            user_time: Millis::ZERO,
            system_time: Millis::ZERO,
            max_rss: Bytes::ZERO,
        }
    }

    fn two() -> Sharers {
        let mut sharers = Sharers::default();
        sharers.join(attempt(1), share(50), SharerOrder::Percentages).unwrap();
        sharers.join(attempt(2), share(50), SharerOrder::Percentages).unwrap();
        sharers.set_owner(11, attempt(1));
        sharers.set_owner(12, attempt(2));
        sharers
    }

    #[test]
    fn a_co_runners_failure_is_collateral_and_the_culprits_is_its_own() {
        let mut sharers = two();

        let killed = sharers.fail("a fault", &[12].into());

        assert_eq!(killed, [attempt(1), attempt(2)]);
        let judge = |who, outcome| {
            sharers.judge(attempt(who), ended(outcome, ProgramExit::Code(1))).outcome
        };
        assert_eq!(judge(1, Outcome::Failed), Outcome::Collateral);
        assert_eq!(judge(2, Outcome::Failed), Outcome::Failed);
        assert_eq!(judge(2, Outcome::Collateral), Outcome::Failed);
        assert_eq!(judge(1, Outcome::Cancelled), Outcome::Cancelled);
        assert_eq!(judge(1, Outcome::Succeeded), Outcome::Succeeded);
    }

    #[test]
    fn a_fault_lasts_until_all_attempts_have_ended() {
        let mut sharers = two();
        sharers.fail("a fault", &BTreeSet::new());

        assert!(sharers.fail("another", &BTreeSet::new()).is_empty());
        sharers.leave(attempt(1));
        assert_eq!(sharers.fault().unwrap().why, "a fault");
        sharers.leave(attempt(2));
        assert!(sharers.fault().is_none());
    }

    #[test]
    fn the_sum_of_shares_never_exceeds_the_slice() {
        let mut sharers = two();

        assert!(sharers.join(attempt(3), share(1), SharerOrder::Percentages).is_err());
    }

    #[test]
    fn shares_overlap_where_the_kernel_queue_orders_kernels() {
        let mut sharers = Sharers::default();
        for (number, sm) in [(1, 100), (2, 50), (3, 100)] {
            let order = SharerOrder::KernelQueue(Class::Offline);
            sharers.join(attempt(number), share(sm), order).unwrap();
        }

        assert_eq!(sharers.members().len(), 3);
    }

    #[test]
    fn only_offline_clients_of_the_kernel_queue_have_the_lower_priority() {
        let priority = |order| {
            let variables = client_environment(share(50), order, "pipes", "logs");
            let found = variables.into_iter().find(|(name, _)| *name == "CUDA_MPS_CLIENT_PRIORITY");
            found.map(|(_, level)| level)
        };

        assert_eq!(priority(SharerOrder::Percentages), None, "the program's own counts");
        assert_eq!(priority(SharerOrder::KernelQueue(Class::Online)).as_deref(), Some("0"));
        assert_eq!(priority(SharerOrder::KernelQueue(Class::Offline)).as_deref(), Some("1"));
    }

    #[test]
    fn only_a_clean_end_leaves_the_server_certain() {
        assert!(!doubtful(&ended(Outcome::Succeeded, ProgramExit::Code(0))));
        assert!(doubtful(&ended(Outcome::Failed, ProgramExit::Signal(11))));
        assert!(doubtful(&ended(Outcome::Cancelled, ProgramExit::Signal(9))));
    }
}
