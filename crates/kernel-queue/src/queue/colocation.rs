//! Co-located launches: MMK's Listing 1 over all waiting launches.

use super::KernelQueue;
use super::grants::GrantTerms;
use crate::admission::{AdmissionVerdict, decide_offline_launch, waiting_threshold};
use crate::lease::GrantKind;
use crate::rules::KernelSharing;
use crate::time::Nanos;
use crate::waiting::LaunchRequest;
use tessera_model::spec::Class;

impl KernelQueue {
    /// Grants every offline launch that fits next to the running kernels, highest priority first.
    ///
    /// A kernel whose needs are unknown is not admitted here. It may still fill a gap.
    pub(super) fn grant_colocated_launches(&mut self) {
        if !matches!(self.rules.sharing, KernelSharing::Colocated { .. }) {
            return;
        }
        while let Some(request) = self.take_admitted() {
            let Ok(at) = self.index_of(request.session) else { return };
            let profile = &self.tasks[self.sessions[at].task].profile;
            let need = profile.kernel(request.kernel).and_then(|kernel| kernel.need);
            let reserved = Some(self.occupancy.reserve(need));
            self.counters.colocated += 1;
            self.sessions[at].counters.colocated += 1;
            let terms = GrantTerms {
                kind: GrantKind::Colocated,
                from: self.now,
                until: self.now.plus(self.rules.grant_max),
                budget: request.predicted.unwrap_or(Nanos::MAX),
                launches: 1,
                reserved,
                paid: Nanos::ZERO,
            };
            self.grant_launch(request, terms);
        }
    }

    fn take_admitted(&mut self) -> Option<LaunchRequest> {
        let Self { waiting, sessions, tasks, occupancy, rules, served, .. } = self;
        let (schedule, left) = (occupancy.is_within_capacity(), occupancy.left());
        waiting.take_first(|request| {
            let session = sessions.iter().find(|session| session.id == request.session);
            let Some(session) = session.filter(|s| s.lease.is_none()) else { return false };
            if session.class != Class::Offline {
                return false;
            }
            let profile = &tasks[session.task].profile;
            let need = profile.kernel(request.kernel).and_then(|kernel| kernel.need);
            let waited = session.wait_start.map_or(Nanos::ZERO, |h| served.minus(h.served));
            let duration = rules.ageing.map_or(Nanos::MAX, |ageing| ageing.duration);
            let thres = waiting_threshold(duration, session.share_thousandths);
            // Ageing serves launches that waited beyond the threshold, and bounds their cost.
            match decide_offline_launch(schedule, need, &left, waited, thres) {
                AdmissionVerdict::Launch => true,
                AdmissionVerdict::LaunchAged | AdmissionVerdict::Wait => false,
            }
        })
    }
}
