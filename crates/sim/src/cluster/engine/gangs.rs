//! Jobs of several processes in the simulator: seated together, started together, ended together,
//! as the controller does it.

use std::collections::BTreeSet;

use tessera_model::spec::GpuAsk;
use tessera_model::{JobId, Member, Millis};
use tessera_placement::gangs::Manner;
use tessera_placement::policy::MOVING;
use tessera_placement::session::LOOK_AT_MAX;
use tessera_placement::{
    ClusterView, Decision, Forecast, GangFeasibility, InstanceState, Policy, QueuedJob, ask,
    gang_could_ever_fit,
};

use super::{Phase, Refused, Run, Spot, forecast, id, index, number};
use crate::cluster::fleet::GPUS_PER_NODE;
use crate::cluster::job::{Job, WHOLE};

/// A policy that moves jobs, beside gangs: it doesn't see GPUs on which their members sit, since
/// nobody can be moved whom others wait for, nor those that are kept for them.
#[derive(Debug)]
struct Beside<'p> {
    policy: &'p dyn Policy,
    members: BTreeSet<JobId>,
}

impl Policy for Beside<'_> {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn manner(&self) -> Manner {
        self.policy.manner()
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        forecast: &dyn Forecast,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let mut seen = cluster.clone();
        seen.gpus.retain(|gpu| {
            let sits = |state: &InstanceState| match state {
                InstanceState::Taken { job } => self.members.contains(job),
                _ => false,
            };
            gpu.available && !gpu.instances.iter().any(|instance| sits(&instance.state))
        });
        self.policy.decide_with(&seen, forecast, queue, now, starts_max)
    }
}

/// Returns a job's place in its gang, if it is in one: members stand beside each other.
pub(super) fn member(job: &Job, task: usize) -> Option<Member> {
    let seat = job.gang?;
    let gang = JobId::from_number(number(task).checked_sub(u64::from(seat.rank))?);
    Some(Member { gang, shape: seat.shape, rank: seat.rank })
}

impl Run<'_> {
    /// Returns the tasks of a job's gang; itself, if it is in none.
    pub(super) fn companions(&self, task: usize) -> Vec<usize> {
        match member(&self.setup.jobs[task], task) {
            Some(member) => member.all().map(index).collect(),
            None => vec![task],
        }
    }

    /// Whether some node group could ever hold the whole gang.
    pub(super) fn check_gang(&self, task: usize, job: &Job) -> Result<(), Refused> {
        let Some(seat) = job.gang.filter(|seat| seat.rank == 0) else { return Ok(()) };
        let asked = GpuAsk::Memory(self.tasks[task].asked);
        match gang_could_ever_fit(&self.view, &asked, seat.shape) {
            GangFeasibility::Yes => Ok(()),
            GangFeasibility::Never { on_one_node, nodes, .. } => Err(Refused::NoPlace {
                job: number(task),
                name: job.name.clone(),
                why: format!(
                    "it wants {}; nodes with as many that hold it: {nodes} (the most on one node: \
                     {on_one_node}); --cluster stands {GPUS_PER_NODE} to a node",
                    seat.shape
                ),
            }),
        }
    }

    /// Decides one round of a workload with gangs.
    pub(super) fn decide_with_gangs(&self) -> Vec<Decision> {
        let policy = self.setup.policy;
        let waiting = self.queue.iter().take(LOOK_AT_MAX);
        let waiting: Vec<QueuedJob> = waiting.map(|(_, job)| self.queued(index(*job))).collect();
        let members = self.setup.jobs.iter().enumerate().filter(|(_, job)| job.gang.is_some());
        let beside = Beside { policy, members: members.map(|(task, _)| id(task)).collect() };
        let moves = policy.moves() || MOVING.contains(&policy.name()) || policy.name() == "tessera";
        let policy: &dyn Policy = if moves { &beside } else { policy };
        let (forecast, now) = (forecast::Seen::new(self), Millis::new(self.now));
        ask(policy, &self.view, &forecast, &mut waiting.iter(), now, usize::MAX)
    }

    /// Every member of a gang has a seat, or none has.
    pub(super) fn check_whole(&self) -> Result<(), Refused> {
        for (task, job) in self.setup.jobs.iter().enumerate() {
            if job.gang.is_none_or(|seat| seat.rank != 0) {
                continue;
            }
            let all = self.companions(task);
            let seated = all.iter().filter(|task| self.tasks[**task].spot.is_some()).count();
            if seated != 0 && seated != all.len() {
                return Err(
                    self.impossible(format!("{seated} of {} start of gang {task}", all.len()))
                );
            }
        }
        Ok(())
    }

    /// Whether the instance of each member stands, so that they can start together.
    pub(super) fn all_stand(&self, task: usize) -> bool {
        let stands = |spot: Spot| spot.phase != Phase::Making || !self.view.gpus[spot.gpu].changing;
        self.companions(task).iter().all(|task| self.tasks[*task].spot.is_some_and(stands))
    }

    /// A job has done its work: it ends, or keeps its place until the last of its gang is done.
    /// Returns whether it ended.
    pub(super) fn done(&mut self, task: usize) -> bool {
        let all = self.companions(task);
        if all.iter().any(|task| self.tasks[*task].left > 0) {
            return false;
        }
        for task in all {
            self.leave(task);
            self.tasks[task].ended = Some(self.now);
            self.ended += 1;
        }
        true
    }

    /// The others of a job that outgrew its instance lose their work too, and ask for as much.
    pub(super) fn set_back_others(&mut self, task: usize) {
        let asked = self.tasks[task].asked;
        for other in self.companions(task).into_iter().filter(|other| *other != task) {
            self.leave(other);
            let entry = &mut self.tasks[other];
            self.record.lost_parts += u128::from(WHOLE - entry.left);
            entry.asked = asked;
            entry.left = WHOLE;
            entry.saved = false;
            self.enqueue(other);
        }
    }
}
