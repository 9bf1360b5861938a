//! The facts about kernels that were reported to each shim.

use tessera_frames::kernel::ToShim;
use tessera_kernel_queue::{KernelIndex, Nanos, SessionId, TaskProfile};

use super::{SliceEffect, SliceQueue};

/// A mean is reported again if it changed by more than this, in thousandths. Budgets depend on it.
const UPDATE_THOUSANDTHS: u64 = 20;

/// The reported facts by kernel index; `None` for kernels that this shim never defined.
#[derive(Debug, Default)]
pub(super) struct ReportedFacts(Vec<Option<KernelFacts>>);

/// The facts about a kernel that a shim needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelFacts {
    pub sk: Option<Nanos>,
    pub measure: bool,
}

impl KernelFacts {
    /// Returns the facts about a kernel.
    pub fn of(profile: &TaskProfile, kernel: KernelIndex) -> Self {
        Self { sk: profile.cost(kernel), measure: profile.needs_samples(kernel) }
    }

    fn differs_from(self, reported: Self) -> bool {
        let far = match (self.sk, reported.sk) {
            (None, None) => false,
            (Some(_), None) | (None, Some(_)) => true,
            (Some(now), Some(then)) => {
                let apart = now.minus(then).max(then.minus(now));
                apart > then.thousandths(UPDATE_THOUSANDTHS)
            }
        };
        far || self.measure != reported.measure
    }
}

impl ReportedFacts {
    /// Stores the facts that were reported with a kernel's definition.
    pub fn define(&mut self, kernel: KernelIndex, facts: KernelFacts) {
        let at = usize::from(kernel.get());
        if self.0.len() <= at {
            self.0.resize(at + 1, None);
        }
        self.0[at] = Some(facts);
    }

    /// Stores and returns the facts if the kernel is defined and they differ enough.
    fn update(&mut self, kernel: KernelIndex, facts: KernelFacts) -> Option<KernelFacts> {
        let reported = self.0.get_mut(usize::from(kernel.get()))?.as_mut()?;
        facts.differs_from(*reported).then(|| {
            *reported = facts;
            facts
        })
    }

    fn kernels(&self) -> impl Iterator<Item = KernelIndex> {
        let known = self.0.iter().enumerate().filter(|(_, reported)| reported.is_some());
        known.filter_map(|(at, _)| u16::try_from(at).ok().map(KernelIndex::new))
    }
}

impl SliceQueue {
    /// Reports all changed facts to a session.
    pub(super) fn report_all_facts(&mut self, session: SessionId) {
        let Some(session_state) = self.sessions.get(&session) else { return };
        let kernels: Vec<_> = session_state.reported.kernels().collect();
        for kernel in kernels {
            self.report_facts(session, kernel);
        }
    }

    /// Reports changed facts about one kernel to all sessions of a session's task.
    pub(super) fn report_to_task(&mut self, session: SessionId, kernel: KernelIndex) {
        let Some(session_state) = self.sessions.get(&session) else { return };
        let task = session_state.task.clone();
        let mates: Vec<_> = self.sessions_of_task(&task).collect();
        for mate in mates {
            self.report_facts(mate, kernel);
        }
    }

    /// Reports the facts about one kernel to a session, if they changed enough.
    pub(super) fn report_facts(&mut self, session: SessionId, kernel: KernelIndex) {
        let Some(session_state) = self.sessions.get_mut(&session) else { return };
        let Some(profile) = self.queue.profile(&session_state.task) else { return };
        let facts = KernelFacts::of(profile, kernel);
        if let Some(KernelFacts { sk, measure }) = session_state.reported.update(kernel, facts) {
            self.out.push(SliceEffect::Send(session, ToShim::Known { kernel, sk, measure }));
        }
    }
}
