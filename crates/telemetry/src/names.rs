//! Every name that dashboards and trace queries rely on: change one, and somebody's chart goes
//! blank.

/// Metrics, as Prometheus shows them. Base units, the unit last; no ids of users or jobs in
/// labels, or the number of series has no bound.
pub mod metric {
    /// Gauge: jobs by `state`.
    pub const JOBS: &str = "tessera_jobs";
    /// Counter: jobs accepted.
    pub const JOBS_SUBMITTED: &str = "tessera_jobs_submitted_total";
    /// Histogram: from submit to the program's start.
    pub const JOB_WAIT: &str = "tessera_job_wait_seconds";
    /// Counter: attempts that ended, by `result`.
    pub const JOB_ATTEMPTS: &str = "tessera_job_attempts_total";
    /// Histogram: one round of the placement loop.
    pub const SCHEDULER_CYCLE: &str = "tessera_scheduler_cycle_seconds";
    /// Counter: decisions by `outcome` and `reason`.
    pub const SCHEDULER_DECISIONS: &str = "tessera_scheduler_decisions_total";
    /// Counter: candidates ruled out, by `reason`.
    pub const CANDIDATES_REJECTED: &str = "tessera_scheduler_candidates_rejected_total";
    /// Counter: layout steps by `kind` (`create`, `destroy`) and `result`.
    pub const REPARTITIONS: &str = "tessera_repartitions_total";
    /// Histogram: one layout plan.
    pub const REPARTITION: &str = "tessera_repartition_seconds";
    /// Gauge: instances by `gpu`, `profile` and `state`.
    pub const MIG_INSTANCES: &str = "tessera_mig_instances";
    /// Gauge: full layouts still reachable, of those that the empty GPU has, by `gpu`.
    pub const GPU_REACHABILITY: &str = "tessera_gpu_reachability_ratio";
    /// Gauge: 1 for a node that an operator drains, else 0, by `node`.
    pub const NODE_DRAINED: &str = "tessera_node_drained";
    /// Gauge: 1 for a GPU that is `drained`, `quarantined` or `pinned`, else 0, by `gpu` and
    /// `how`.
    pub const GPU_CLOSED: &str = "tessera_gpu_closed";
    /// Gauge: faults of a GPU that its node still knows, repeated ones counted, by `gpu` and
    /// `cause` (`xid 79`, `nvml CALL code 15`, `silence`).
    pub const GPU_FAULTS: &str = "tessera_gpu_faults";
    /// Counter: what operators changed, by `what` and `how` (`said`, `lifted`).
    pub const OPERATOR_ACTIONS: &str = "tessera_operator_actions_total";
    /// Gauge: 1 for a node whose agent is known, else 0, by `node`.
    pub const AGENT_UP: &str = "tessera_agent_up";
    /// Histogram: one group commit.
    pub const COMMIT: &str = "tessera_commit_seconds";
    /// Histogram: submits that shared one commit.
    pub const COMMIT_JOBS: &str = "tessera_commit_jobs";
    /// Histogram: one HTTP request by `route`, `method` and `status`.
    pub const HTTP_REQUEST: &str = "tessera_http_request_seconds";
    /// Counter: messages that a full mailbox turned away, by `actor`.
    pub const MAILBOX_REFUSED: &str = "tessera_actor_mailbox_refused_total";
    /// Gauge: messages that wait, by `actor`.
    pub const MAILBOX_DEPTH: &str = "tessera_actor_mailbox_depth";
    /// Gauge: 1 while this controller leads.
    pub const LEADER: &str = "tessera_leader";
    /// Gauge: the leader's epoch.
    pub const LEADER_EPOCH: &str = "tessera_leader_epoch";
    /// Gauge: 1 while the database answers.
    pub const DATABASE_UP: &str = "tessera_database_up";
    /// Gauge: GPU memory in use on a whole GPU, by `node` and `gpu`.
    pub const GPU_MEMORY_USED: &str = "tessera_gpu_memory_used_bytes";
    /// Gauge: power of a whole GPU, by `node` and `gpu`.
    pub const GPU_POWER: &str = "tessera_gpu_power_watts";
    /// Gauge: the busy share of a GPU from 0 to 1, by `node` and `gpu`.
    pub const GPU_ACTIVITY: &str = "tessera_gpu_activity_ratio";
    /// Counter: energy by `node`, `gpu` and `bearer` (`jobs`, `other`, `idle`); the parts add up
    /// to what the GPU's counter gained.
    pub const GPU_ENERGY: &str = "tessera_gpu_energy_joules_total";
    /// Counter: samples of a GPU by `node`, `gpu` and `result`.
    pub const GPU_SAMPLES: &str = "tessera_gpu_samples_total";
    /// Gauge: GPU memory of a process, by `node`, `gpu`, `start` and `pid`.
    pub const PROCESS_MEMORY_USED: &str = "tessera_process_memory_used_bytes";
    /// Gauge: GPU memory in use on an instance, by `node`, `gpu` and `start`, its first memory
    /// slice.
    pub const SLICE_MEMORY_USED: &str = "tessera_slice_memory_used_bytes";
    /// Gauge: the share of the whole GPU from 0 to 1 in which an instance's attempts are busy,
    /// by `node`, `gpu` and `start`.
    pub const SLICE_ACTIVITY: &str = "tessera_slice_activity_ratio";
    /// Gauge: processes in a slice's kernel queue, by `node`, `slice` and `role` (`measure`, `free`,
    /// `hold`, `ask`).
    pub const KERNEL_SESSIONS: &str = "tessera_kernel_sessions";
    /// Gauge: launches that wait for a grant, by `node` and `slice`.
    pub const KERNEL_WAITING: &str = "tessera_kernel_waiting_launches";
    /// Gauge: the least progress of a slice's fillers, by `node` and `slice`.
    pub const KERNEL_PROGRESS: &str = "tessera_kernel_progress_ratio";
    /// Counter: launches of a slice's processes, by `node`, `slice` and `how` (`told`, `gap`,
    /// `aged`, `beside`, `late`).
    pub const KERNEL_LAUNCHES: &str = "tessera_kernel_launches_total";
    /// Counter: gaps of a slice's holders, by `node`, `slice` and `what` (`seen`, `filled`,
    /// `stopped_early`).
    pub const KERNEL_GAPS: &str = "tessera_kernel_gaps_total";
    /// Counter: time of a slice's kernels, by `node`, `slice` and `what` (`filled`, `overshoot`,
    /// `waited`).
    pub const KERNEL_TIME: &str = "tessera_kernel_time_seconds_total";
    /// Counter: connections that the kernel queue refused, by `node` and `why` (`refused`,
    /// `nonsense`).
    pub const KERNEL_REFUSED: &str = "tessera_kernel_refused_total";
    /// Gauge: attempts on this node, by `state`.
    pub const AGENT_ATTEMPTS: &str = "tessera_agent_attempts";
    /// Counter: what was asked of the driver, by `node`, `call` (`list`, `read`, `look`, `advice`,
    /// `create`, `destroy`, `set_mig_mode`, `sample`) and `result` (`ok`, `no_answer`, `code N`).
    pub const NVML_CALLS: &str = "tessera_nvml_calls_total";
    /// Gauge: always 1; its labels show what was built.
    pub const BUILD_INFO: &str = "tessera_build_info";
}

/// Spans. Few names, each of one bounded operation: what differs goes into attributes.
pub mod span {
    /// One submit, over HTTP.
    pub const SUBMIT: &str = "job.submit";
    /// One round of the placement loop.
    pub const CYCLE: &str = "schedule.cycle";
    /// One job's placement: the decision and what was considered.
    pub const PLACE: &str = "job.place";
    /// One layout plan of one GPU.
    pub const REPARTITION: &str = "gpu.repartition";
    /// One instance made.
    pub const INSTANCE_CREATE: &str = "mig.gi.create";
    /// One instance destroyed.
    pub const INSTANCE_DESTROY: &str = "mig.gi.destroy";
    /// The agent makes the compute instances of a GPU instance.
    pub const INSTANCE_CUT: &str = "mig.ci.cut";
    /// One look at what really stands.
    pub const VERIFY: &str = "nvml.verify";
    /// One start of a program.
    pub const LAUNCH: &str = "job.launch";
    /// One attempt, sent when it is over.
    pub const ATTEMPT: &str = "job.attempt";
}

/// Events within spans.
pub mod event {
    /// A place that was considered and ruled out.
    pub const CANDIDATE_REJECTED: &str = "candidate.rejected";
}

/// Attributes of spans and their events. Programs, arguments and environments of jobs never go
/// into any.
pub mod attribute {
    /// The job's number.
    pub const JOB_ID: &str = "tessera.job.id";
    /// The task's index in its array.
    pub const JOB_ARRAY_INDEX: &str = "tessera.job.array.index";
    /// `online` or `offline`.
    pub const JOB_CLASS: &str = "tessera.job.class";
    /// The attempt's number.
    pub const JOB_ATTEMPT: &str = "tessera.job.attempt";
    /// The attempt's id.
    pub const ATTEMPT_ID: &str = "tessera.attempt.id";
    /// How an attempt ended.
    pub const ATTEMPT_OUTCOME: &str = "tessera.attempt.outcome";
    /// The recorded decision.
    pub const DECISION_ID: &str = "tessera.decision.id";
    /// `placed` or `deferred`.
    pub const DECISION_OUTCOME: &str = "tessera.decision.outcome";
    /// The stable word for the reason.
    pub const DECISION_REASON: &str = "tessera.decision.reason";
    /// The policy that decided.
    pub const POLICY: &str = "tessera.policy";
    /// The layout plan.
    pub const PLAN_ID: &str = "tessera.plan.id";
    /// Profile of an instance.
    pub const MIG_PROFILE: &str = "tessera.mig.profile";
    /// First memory slice of an instance.
    pub const MIG_START: &str = "tessera.mig.placement.start";
    /// Memory slices of an instance.
    pub const MIG_SIZE: &str = "tessera.mig.placement.size";
    /// Full layouts that are reachable before.
    pub const REACHABILITY_BEFORE: &str = "tessera.mig.reachability.before";
    /// Full layouts that stay reachable.
    pub const REACHABILITY_AFTER: &str = "tessera.mig.reachability.after";
    /// Places that were considered.
    pub const CANDIDATES_CONSIDERED: &str = "tessera.candidates.considered";
    /// Places that were ruled out.
    pub const CANDIDATES_REJECTED: &str = "tessera.candidates.rejected";
    /// What ruled a place out.
    pub const REASON: &str = "reason";
    /// Jobs that a round looked at.
    pub const JOBS_CONSIDERED: &str = "tessera.jobs.considered";
    /// The node's name.
    pub const HOST_NAME: &str = "host.name";
    /// The GPU's UUID.
    pub const HW_ID: &str = "hw.id";
    /// The stable word for what went wrong.
    pub const ERROR_TYPE: &str = "error.type";
}
