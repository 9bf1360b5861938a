//! What a shim was told of its task's kernels.

use tessera_kernel_queue::{KernelIndex, Nanos, SessionId, TaskProfile};
use tessera_wire::kernel::ToShim;

use super::{Effect, SliceQueue};

/// A mean is told again when it moved by more than this, in thousandths: purses spend by it.
const MOVED_THOUSANDTHS: u64 = 20;

/// What was told, by index; `None` for kernels that this shim never defined.
#[derive(Debug, Default)]
pub(super) struct Told(Vec<Option<Facts>>);

/// What a shim is told of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub sk: Option<Nanos>,
    pub measure: bool,
}

impl Facts {
    /// Returns what there is to tell of a kernel.
    pub fn of(profile: &TaskProfile, kernel: KernelIndex) -> Self {
        match profile.kernel(kernel) {
            Some(kernel) => Self { sk: kernel.took.known(), measure: !kernel.took.is_measured() },
            None => Self { sk: None, measure: false },
        }
    }

    fn has_moved(self, told: Self) -> bool {
        let far = match (self.sk, told.sk) {
            (None, None) => false,
            (Some(_), None) | (None, Some(_)) => true,
            (Some(now), Some(then)) => {
                let apart = now.minus(then).max(then.minus(now));
                apart > then.thousandths(MOVED_THOUSANDTHS)
            }
        };
        far || self.measure != told.measure
    }
}

impl Told {
    /// Notes that a kernel's index and facts were told.
    pub fn define(&mut self, kernel: KernelIndex, facts: Facts) {
        let at = usize::from(kernel.get());
        if self.0.len() <= at {
            self.0.resize(at + 1, None);
        }
        self.0[at] = Some(facts);
    }

    /// Returns the facts to tell, if the kernel was told of and they differ enough.
    fn update(&mut self, kernel: KernelIndex, facts: Facts) -> Option<Facts> {
        let told = self.0.get_mut(usize::from(kernel.get()))?.as_mut()?;
        facts.has_moved(*told).then(|| {
            *told = facts;
            facts
        })
    }

    fn kernels(&self) -> impl Iterator<Item = KernelIndex> {
        let known = self.0.iter().enumerate().filter(|(_, told)| told.is_some());
        known.filter_map(|(at, _)| u16::try_from(at).ok().map(KernelIndex::new))
    }
}

impl SliceQueue {
    /// Tells a session of everything that changed.
    pub(super) fn tell_known(&mut self, session: SessionId) {
        let Some(member) = self.members.get(&session) else { return };
        let kernels: Vec<_> = member.told.kernels().collect();
        for kernel in kernels {
            self.tell_kernel(session, kernel);
        }
    }

    /// Tells the sessions of a session's task of one kernel, if that changed.
    pub(super) fn tell_task(&mut self, session: SessionId, kernel: KernelIndex) {
        let Some(member) = self.members.get(&session) else { return };
        let task = member.task.clone();
        let mates: Vec<_> = self.members_of(&task).collect();
        for mate in mates {
            self.tell_kernel(mate, kernel);
        }
    }

    fn tell_kernel(&mut self, session: SessionId, kernel: KernelIndex) {
        let Some(member) = self.members.get_mut(&session) else { return };
        let Some(profile) = self.queue.profile(&member.task) else { return };
        let facts = Facts::of(profile, kernel);
        if let Some(Facts { sk, measure }) = member.told.update(kernel, facts) {
            self.out.push(Effect::Send(session, ToShim::Known { kernel, sk, measure }));
        }
    }
}
