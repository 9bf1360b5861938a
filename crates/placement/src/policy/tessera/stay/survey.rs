//! What a round sees of the jobs that run and wait: how long it takes, and how busy the cluster is.

use super::super::rounding::{float, float_count};
use super::StayRound;
use super::horizon::{StayHorizon, Survey};
use super::order::TimedJob;
use super::sizes;
use super::unknown::BusyCluster;

/// GPUs whose jobs are looked at to estimate what is to come. Chosen as in [`super::horizon`].
const SURVEYED_MAX: usize = 64;

impl StayRound<'_> {
    /// Estimates how long all known work takes, and what is to come. `unseen` jobs are taken for like those that
    /// are seen. Of many GPUs some stand for all.
    pub(super) fn look_ahead(&mut self, timed: &[TimedJob<'_>], unseen: usize) -> StayHorizon {
        let now = float(self.now);
        let step = self.state.gpus.len().div_ceil(SURVEYED_MAX).max(1);
        let (mut gpus, mut running) = (0_usize, 0_usize);
        let mut busy = BusyCluster::default();
        let fastest = sizes::fastest_sms(&self.kinds);
        let mut survey = Survey::default();
        for timed in timed {
            survey.came(float(timed.job.submitted));
            survey.longest = survey.longest.max(timed.least_ms);
        }
        for gpu in (0..self.state.gpus.len()).step_by(step) {
            if !self.state.gpus[gpu].view.available {
                continue;
            }
            gpus += 1;
            busy.gpus += self.kinds[self.kind_of[gpu]].speed(None, fastest);
            for place in 0..self.state.gpus[gpu].instances.len() {
                let slot = self.state.gpus[gpu].instances[place].slot;
                let kind = &self.kinds[self.kind_of[gpu]];
                let profile = slot.and_then(|slot| kind.mig()?.geometry.profile(slot.profile));
                let part = kind.part(profile);
                for job in self.state.gpus[gpu].holders(slot) {
                    running += 1;
                    busy.running += kind.speed(profile, fastest);
                    let end = self.ends.of(job, self.state.gpus[gpu].view, slot);
                    if end.known {
                        survey.running_work += part * (end.at - now).max(0.0);
                        survey.longest = survey.longest.max(end.at - now);
                    }
                    survey.began(end.submitted);
                }
            }
        }
        let scale = float_count(step);
        let mut work: f64 = timed.iter().map(|timed| timed.work_ms).sum();
        work += work / float_count(timed.len().max(1)) * float_count(unseen);
        let all_gpus = float_count(gpus.max(1)) * scale;
        let all = ((work + survey.running_work * scale) / all_gpus).max(survey.longest);
        let running = scale * float_count(running);
        self.busy = BusyCluster {
            running: scale * busy.running,
            waiting: float_count(timed.len() + unseen),
            gpus: scale * busy.gpus,
        };
        StayHorizon::of(&survey, all, now, running)
    }
}
