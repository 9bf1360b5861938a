//! Launching beside what runs: MMK's Listing 1 over all launches that wait.

use super::Queue;
use super::grants::Terms;
use crate::admission::{Verdict, offline, threshold};
use crate::lease::Kind;
use crate::rules::Sharing;
use crate::time::Nanos;
use crate::waiting::Request;
use tessera_model::spec::Class;

impl Queue {
    /// Grants every offline launch that fits beside what runs, highest priority first.
    ///
    /// A kernel whose needs are unknown is not admitted here; it may still fill a gap.
    pub(super) fn give_beside(&mut self) {
        if !matches!(self.rules.sharing, Sharing::Beside { .. }) {
            return;
        }
        while let Some(request) = self.take_admitted() {
            let Ok(at) = self.find(request.session) else { return };
            let profile = &self.tasks[self.sessions[at].task].profile;
            let need = profile.kernel(request.kernel).and_then(|kernel| kernel.need);
            let reserved = Some(self.occupancy.take(need));
            self.counters.beside += 1;
            self.sessions[at].counters.beside += 1;
            let terms = Terms {
                kind: Kind::Beside,
                from: self.now,
                until: self.now.plus(self.rules.grant_max),
                budget: request.predicted.unwrap_or(Nanos::MAX),
                launches: 1,
                reserved,
            };
            self.grant(request, terms);
        }
    }

    fn take_admitted(&mut self) -> Option<Request> {
        let Self { waiting, sessions, tasks, occupancy, rules, served, .. } = self;
        let (schedule, left) = (occupancy.schedule(), occupancy.left());
        waiting.first(|request| {
            let session = sessions.iter().find(|session| session.id == request.session);
            let Some(session) = session.filter(|s| s.lease.is_none()) else { return false };
            if session.class != Class::Offline {
                return false;
            }
            let profile = &tasks[session.task].profile;
            let need = profile.kernel(request.kernel).and_then(|kernel| kernel.need);
            let waited = session.hunger.map_or(Nanos::ZERO, |h| served.minus(h.served));
            let duration = rules.ageing.map_or(Nanos::MAX, |ageing| ageing.duration);
            let thres = threshold(duration, session.share_thousandths);
            // What waited beyond its threshold goes through the valve, which bounds its cost.
            match offline(schedule, need, &left, waited, thres) {
                Verdict::Launch => true,
                Verdict::LaunchAged | Verdict::Wait => false,
            }
        })
    }
}
