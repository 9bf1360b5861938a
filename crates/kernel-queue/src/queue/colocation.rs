//! Co-located launches: MMK's Listing 1 over all waiting launches.
//!
//! Where it had to choose:
//!
//! * A kernel that fitted may be too much for a later kernel of the holder. From then on its time
//!   counts against the budget of fills, and with an empty budget nothing is admitted.
//! * While a holder is measured nothing is admitted, since the times would be those of both.
//! * While a holder is only expected, nothing is admitted, so that it finds few kernels.

use super::KernelQueue;
use super::delays::AgeingPrice;
use super::gaps::may_get_grant;
use super::grants::GrantTerms;
use super::launches::{EndReport, KernelLoss, RunningKernel};
use crate::action::Role;
use crate::admission::{
    AdmissionVerdict, Occupancy, ResourceNeed, decide_offline_launch, waiting_threshold,
};
use crate::ids::KernelIndex;
use crate::lease::GrantKind;
use crate::rules::KernelSharing;
use crate::time::Nanos;
use crate::waiting::LaunchRequest;
use tessera_model::spec::Class;

impl KernelQueue {
    /// Grants every offline launch that fits next to the running kernels, highest priority first.
    ///
    /// A kernel whose needs or time are unknown is not admitted here. It may still fill a gap.
    pub(super) fn grant_colocated_launches(&mut self) {
        let KernelSharing::Colocated { capacity } = self.rules.sharing else { return };
        if !self.may_colocate() {
            return;
        }
        while let Some((request, need)) = self.take_admitted(capacity) {
            let Ok(at) = self.index_of(request.session) else { return };
            self.counters.colocated += 1;
            self.sessions[at].counters.colocated += 1;
            let terms = GrantTerms {
                kind: GrantKind::Colocated,
                from: self.now,
                until: self.now.plus(self.rules.grant_max),
                budget: request.predicted.unwrap_or(Nanos::MAX),
                launches: 1,
                reserved: Some(need),
                opening: None,
                paid: AgeingPrice::NOTHING,
            };
            self.grant_launch(request, terms);
        }
    }

    /// Stores what a session reported about a kernel.
    pub(super) fn on_need(&mut self, at: usize, kernel: KernelIndex, need: ResourceNeed) {
        let need =
            need.min_of_each(ResourceNeed::WHOLE).of_share(self.sessions[at].share_thousandths);
        let profile = &mut self.tasks[self.sessions[at].task].profile;
        if let Some(kernel) = profile.kernel_mut(kernel) {
            kernel.need = ResourceNeed::larger(kernel.need, Some(need));
        }
    }

    /// Returns what a kernel of a session needs of the slice, if known.
    pub(super) fn need_of(&self, at: usize, kernel: KernelIndex) -> Option<ResourceNeed> {
        self.tasks[self.sessions[at].task].profile.kernel(kernel)?.need
    }

    /// Counts the time of co-located kernels from now on if they and the holder's need too much.
    pub(super) fn note_crowding(&mut self) {
        let KernelSharing::Colocated { capacity } = self.rules.sharing else { return };
        let is_in_flight =
            |run: &RunningKernel| run.loss == KernelLoss::Colocated && run.has_place();
        if !self.running.iter().any(is_in_flight) || self.occupancy(capacity).is_within_capacity() {
            return;
        }
        for run in self.running.iter_mut().filter(|run| run.loss == KernelLoss::Colocated) {
            run.holder_returned_at.get_or_insert(self.now);
        }
    }

    fn may_colocate(&self) -> bool {
        let is_measured = self.sessions.iter().all(|session| session.role != Role::Measure);
        is_measured
            && self.owner.is_none()
            && !self.is_holder_absent()
            && self.fills.saved() > Nanos::ZERO
    }

    fn take_admitted(&mut self, capacity: ResourceNeed) -> Option<(LaunchRequest, ResourceNeed)> {
        let occupancy = self.occupancy(capacity);
        let (schedule, left) = (occupancy.is_within_capacity(), occupancy.left());
        let Self { waiting, sessions, tasks, rules, served, .. } = self;
        let mut admitted = None;
        let request = waiting.take_first(|request| {
            if !may_get_grant(sessions, request) {
                return false;
            }
            let session = sessions.iter().find(|session| session.id == request.session);
            let Some(session) = session else { return false };
            // Without a predicted time the client would not launch under the grant.
            if session.class != Class::Offline || request.predicted.is_none() {
                return false;
            }
            let profile = &tasks[session.task].profile;
            let need = profile.kernel(request.kernel).and_then(|kernel| kernel.need);
            let waited = served.minus(request.wait.served);
            let duration = rules.ageing.map_or(Nanos::MAX, |ageing| ageing.duration);
            let thres = waiting_threshold(duration, session.share_thousandths);
            admitted = need;
            // Ageing serves launches that waited beyond the threshold, and bounds their cost.
            match decide_offline_launch(schedule, need, &left, waited, thres) {
                AdmissionVerdict::Launch => true,
                AdmissionVerdict::LaunchAged | AdmissionVerdict::Wait => false,
            }
        });
        request.zip(admitted)
    }

    /// Returns what all kernels that are in flight, or have a grant next to them, occupy.
    fn occupancy(&self, capacity: ResourceNeed) -> Occupancy {
        let mut occupancy = Occupancy::new(capacity);
        for session in &self.sessions {
            let is_its =
                |run: &&RunningKernel| run.session == session.id && run.end == EndReport::Expected;
            let running = self.running.iter().filter(is_its);
            let needs = running.map(|run| run.need).chain(session.basis.reserved);
            occupancy.take(needs.fold(ResourceNeed::NONE, |all, need| {
                if session.streams > 1 { all.plus(need) } else { all.max_of_each(need) }
            }));
        }
        occupancy
    }
}
