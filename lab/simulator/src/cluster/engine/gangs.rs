//! Jobs of several processes in the simulator: they are placed, started and ended together, as in
//! the controller.

use std::collections::BTreeSet;

use tessera_lab_policies::COMPARISON_NAMES;
use tessera_model::spec::GpuRequest;
use tessera_model::{GangMember, JobId, Millis};
use tessera_placement::policy::SliceManner;
use tessera_placement::policy::session::LOOK_AT_MAX;
use tessera_placement::{
    ClusterView, Decision, GangFeasibility, InstanceState, Knowledge, Policy, QueuedJob,
    decide_round, gang_could_ever_fit,
};

use super::{
    SimulationError, SimulationRun, TaskPhase, TaskPlacement, forecast, id, index, number,
};
use crate::cluster::fleet::GPUS_PER_NODE;
use crate::cluster::job::{SimulatedJob, WHOLE};

/// A policy that moves jobs, combined with gangs. Its view has neither GPUs on which members of
/// gangs run, since these can't be moved, nor GPUs that are reserved for gangs.
#[derive(Debug)]
struct WithoutMembers<'p> {
    policy: &'p dyn Policy,
    members: BTreeSet<JobId>,
}

impl Policy for WithoutMembers<'_> {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn moves(&self) -> bool {
        self.policy.moves()
    }

    fn shares_fairly(&self) -> bool {
        self.policy.shares_fairly()
    }

    fn honours_places(&self) -> bool {
        self.policy.honours_places()
    }

    fn slice_manner(&self) -> SliceManner {
        self.policy.slice_manner()
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
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
        self.policy.decide_with(&seen, knowledge, queue, now, starts_max)
    }
}

/// Returns a job's membership in its gang, if it has one: members are adjacent in the workload.
pub(super) fn member(job: &SimulatedJob, task: usize) -> Option<GangMember> {
    let member = job.gang?;
    let gang = JobId::from_number(number(task).checked_sub(u64::from(member.rank))?);
    Some(GangMember { gang, shape: member.shape, rank: member.rank })
}

impl SimulationRun<'_> {
    /// Returns the tasks of a job's gang; itself, if it is in none.
    pub(super) fn companions(&self, task: usize) -> Vec<usize> {
        match member(&self.setup.jobs[task], task) {
            Some(member) => member.all().map(index).collect(),
            None => vec![task],
        }
    }

    /// Returns whether some node group could ever hold the whole gang.
    pub(super) fn check_gang(
        &self,
        task: usize,
        job: &SimulatedJob,
    ) -> Result<(), SimulationError> {
        let Some(member) = job.gang.filter(|member| member.rank == 0) else { return Ok(()) };
        let requested = GpuRequest::Memory(self.tasks[task].requested);
        match gang_could_ever_fit(&self.view, &requested, member.shape) {
            GangFeasibility::Yes => Ok(()),
            GangFeasibility::Never { on_one_node, nodes, .. } => Err(SimulationError::NoPlace {
                job: number(task),
                name: job.name.clone(),
                why: format!(
                    "it requests {}; nodes with as many that hold it: {nodes} (the most on one \
                     node: {on_one_node}); --cluster puts {GPUS_PER_NODE} on a node",
                    member.shape
                ),
            }),
        }
    }

    /// Decides one round of a workload with gangs or restricted jobs.
    pub(super) fn decide_with_gangs(&self) -> Vec<Decision> {
        let policy = self.setup.policy;
        let waiting = self.queue.iter().take(LOOK_AT_MAX);
        let waiting: Vec<QueuedJob> = waiting.map(|(_, job)| self.queued(index(*job))).collect();
        let members = self.setup.jobs.iter().enumerate().filter(|(_, job)| job.gang.is_some());
        let with_movers =
            WithoutMembers { policy, members: members.map(|(task, _)| id(task)).collect() };
        let moves = policy.moves()
            || COMPARISON_NAMES.contains(&policy.name())
            || policy.name() == "tessera";
        let policy: &dyn Policy = if moves { &with_movers } else { policy };
        let (forecast, now) = (forecast::RunPredictions::new(self), Millis::new(self.now));
        decide_round(policy, &self.view, forecast.knowledge(), &mut waiting.iter(), now, usize::MAX)
    }

    /// Every member of a gang has a placement, or none has.
    pub(super) fn check_whole(&self) -> Result<(), SimulationError> {
        for (task, job) in self.setup.jobs.iter().enumerate() {
            if job.gang.is_none_or(|member| member.rank != 0) {
                continue;
            }
            let all = self.companions(task);
            let placed = all.iter().filter(|task| self.tasks[**task].spot.is_some()).count();
            if placed != 0 && placed != all.len() {
                return Err(
                    self.impossible(format!("{placed} of {} start of gang {task}", all.len()))
                );
            }
        }
        Ok(())
    }

    /// Returns whether the instance of each member exists, so that they can start together.
    pub(super) fn all_stand(&self, task: usize) -> bool {
        let stands = |spot: TaskPlacement| {
            spot.phase != TaskPhase::Making || !self.view.gpus[spot.gpu].changing
        };
        self.companions(task).iter().all(|task| self.tasks[*task].spot.is_some_and(stands))
    }

    /// Handles the end of a job's work: it ends, or keeps its slice until the last member of its
    /// gang has finished. Returns whether it ended.
    pub(super) fn done(&mut self, task: usize) -> bool {
        let all = self.companions(task);
        if all.iter().any(|task| self.tasks[*task].left > 0) {
            return false;
        }
        for task in all {
            self.learn(task);
            self.leave(task);
            self.tasks[task].ended = Some(self.now);
            self.ended += 1;
        }
        true
    }

    /// The other members of a gang whose member outgrew its instance also lose their work, and
    /// request the same memory.
    pub(super) fn restart_others(&mut self, task: usize) {
        let requested = self.tasks[task].requested;
        for other in self.companions(task).into_iter().filter(|other| *other != task) {
            self.leave(other);
            let entry = &mut self.tasks[other];
            self.record.lost_parts += u128::from(WHOLE - entry.left);
            entry.requested = requested;
            entry.left = WHOLE;
            entry.saved = false;
            self.enqueue(other);
        }
    }
}
