//! Every name that dashboards and trace queries rely on. A dashboard that uses a name shows nothing
//! after the name has changed.

/// Metrics, as Prometheus shows them: in base units, with the unit last. Labels have no ids of users or
/// jobs, because the number of series must have a bound.
pub mod metric {
    /// Gauge: jobs by `state`.
    pub const JOBS: &str = "tessera_jobs";
    /// Counter: submits accepted; an array counts once.
    pub const SUBMITS: &str = "tessera_submits_total";
    /// Counter: jobs accepted.
    pub const JOBS_SUBMITTED: &str = "tessera_jobs_submitted_total";
    /// Gauge: instances by `gpu`, `profile` and `state`.
    pub const MIG_INSTANCES: &str = "tessera_mig_instances";
    /// Gauge: the share of an empty GPU's full layouts that are still reachable, by `gpu`.
    pub const GPU_REACHABILITY: &str = "tessera_gpu_reachability_ratio";
    /// Gauge: 1 for a node that an operator drained, else 0, by `node`.
    pub const NODE_DRAINED: &str = "tessera_node_drained";
    /// Gauge: 1 for a GPU with an administrative override, else 0, by `gpu` and `how` (`drained`,
    /// `quarantined`, `pinned`).
    pub const GPU_CLOSED: &str = "tessera_gpu_closed";
    /// Gauge: bounds on the power of all GPUs in watts, by `what` (`expected`, `idle`, `full`, and `cap` if one is set).
    pub const POWER: &str = "tessera_power_watts";
    /// Gauge: faults of a GPU that were not cleared, each counted as often as it occurred, by `gpu` and
    /// `cause`.
    pub const GPU_FAULTS: &str = "tessera_gpu_faults";
    /// Counter: what operators changed, by `what` (`drained`, `quarantined`, `pinned`, `layout`) and `how`
    /// (`set`, `cleared`, `requested`).
    pub const OPERATOR_ACTIONS: &str = "tessera_operator_actions_total";
    /// Gauge: nodes by `state` (`available`, `connecting`, `silent`, `lost`).
    pub const NODES: &str = "tessera_nodes";
    /// Gauge: 1 while a layout plan of the GPU is under way, else 0, by `gpu`.
    pub const GPU_CHANGING: &str = "tessera_gpu_changing";
    /// Gauge: 1 while the controller leads and serves requests, else 0.
    pub const READY: &str = "tessera_ready";
    /// Histogram: one renewal of the leader's lease in the database, by `result` (`ok`, `failed`).
    pub const LEADER_RENEWAL: &str = "tessera_leader_renewal_seconds";
    /// Histogram: time from a job's submit to its first placement.
    pub const JOB_WAIT: &str = "tessera_job_wait_seconds";
    /// Gauge: when a certificate expires in seconds since 1970, by `certificate` (`own`, `authority`).
    pub const CERTIFICATE_EXPIRY: &str = "tessera_certificate_expiry_timestamp_seconds";
    /// Gauge: when the certificate of a connected node expires in seconds since 1970, by `node`.
    pub const NODE_CERTIFICATE_EXPIRY: &str = "tessera_node_certificate_expiry_timestamp_seconds";
    /// Counter: nodes' requests for certificates, by `outcome` (`issued`, `refused`).
    pub const NODE_CERTIFICATES: &str = "tessera_node_certificates_total";
    /// Counter: connections closed unserved because their source or all sources have too many, by `listener`
    /// (`api`, `agents`).
    pub const CONNECTIONS_REFUSED: &str = "tessera_connections_refused_total";
    /// Gauge: free space of the disk with the data folder.
    pub const DATA_FREE: &str = "tessera_data_free_bytes";
    /// Gauge: size of the disk with the data folder.
    pub const DATA_SIZE: &str = "tessera_data_size_bytes";
    /// Counter: faults of MPS daemons and servers that ended their sharers, by `node`.
    pub const MPS_FAULTS: &str = "tessera_mps_faults_total";
    /// Gauge: 1 for a node whose agent is connected, else 0, by `node`.
    pub const AGENT_UP: &str = "tessera_agent_up";
    /// Counter: HTTP requests answered, by `route`, `method` and `status`.
    pub const HTTP_REQUESTS: &str = "tessera_http_requests_total";
    /// Histogram: one HTTP request by `route`, `method` and `status`.
    pub const HTTP_REQUEST: &str = "tessera_http_request_seconds";
    /// Counter: time in which callers of HTTP requests were established, with all rules for them.
    pub const HTTP_ADMISSION: &str = "tessera_http_admission_seconds_total";
    /// Histogram: the error of predicted run times as a ratio of the prediction, by `basis`.
    pub const PREDICTION_ERROR: &str = "tessera_prediction_error_ratio";
    /// Counter: predicted run times with an outcome, by `basis` and whether it lay `within` the interval.
    pub const PREDICTIONS: &str = "tessera_predictions_total";
    /// Counter: jobs with a deadline that ended, by `outcome`: `met` or `missed`.
    pub const DEADLINES: &str = "tessera_job_deadlines_total";
    /// Counter: predicted memory with an outcome, by whether it lay `within` the interval.
    pub const MEMORY_PREDICTIONS: &str = "tessera_memory_predictions_total";
    /// Counter: predictions that a running job exceeds its slice, by `outcome`: `true`, `false`, `missed` or `late`.
    pub const MEMORY_GROWTHS: &str = "tessera_memory_growth_predictions_total";
    /// Counter: running jobs that were reported to exceed their slices, and those that were moved for it, by `what`.
    pub const MEMORY_GROWTH_EVENTS: &str = "tessera_memory_growth_events_total";
    /// Jobs whose GPUs did nothing for their idle timeout, or half of it.
    pub const IDLE_JOBS: &str = "tessera_idle_jobs_total";
    /// Counter: offline jobs that are sent back to the queue for online jobs, by `outcome`.
    pub const PREEMPTIONS: &str = "tessera_preemptions_total";
    /// Counter: predicted speeds of co-located jobs with an outcome, by whether it lay `within` the
    /// interval.
    pub const COLOCATION_PREDICTIONS: &str = "tessera_colocation_predictions_total";
    /// Gauge: whether a model is trusted, by its `subject`. It is 0 where the model's error is too large
    /// or its predictions stopped to be accurate; there is no series before there is a model.
    pub const PREDICTOR_TRUSTED: &str = "tessera_predictor_trusted";
    /// Gauge: tasks whose memory predictions stopped to be accurate; they get cautious estimates.
    pub const LOW_CONFIDENCE_TASKS: &str = "tessera_low_confidence_tasks";
    /// Counter: rows that were removed because of their age, by `what` (`jobs`, `layout_plans`,
    /// `rounds`, `audit_entries`).
    pub const HISTORY_REMOVED: &str = "tessera_history_removed_total";
    /// Counter: tries to deliver mail and webhooks, by `channel` (`mail`, `webhook`) and `result` (`delivered`,
    /// `failed`, `given_up`).
    pub const NOTIFICATIONS: &str = "tessera_notifications_total";
    /// Gauge: mail and webhooks that are to be delivered, by `channel`.
    pub const NOTIFICATIONS_WAITING: &str = "tessera_notifications_waiting";
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
    /// `hold`, `fill`).
    pub const KERNEL_SESSIONS: &str = "tessera_kernel_sessions";
    /// Gauge: launches that wait for a grant, by `node` and `slice`.
    pub const KERNEL_WAITING: &str = "tessera_kernel_waiting_launches";
    /// Gauge: the least progress of a slice's fillers, by `node` and `slice`.
    pub const KERNEL_PROGRESS: &str = "tessera_kernel_progress_ratio";
    /// Counter: launches of a slice's processes, by `node`, `slice` and `how` (`reported`, `gap`, `aged`,
    /// `colocated`, `late`).
    pub const KERNEL_LAUNCHES: &str = "tessera_kernel_launches_total";
    /// Counter: gaps of a slice's holders, by `node`, `slice` and `what` (`seen`, `filled`,
    /// `filled_ahead`, `stopped_early`).
    pub const KERNEL_GAPS: &str = "tessera_kernel_gaps_total";
    /// Counter: time of a slice's kernels, by `node`, `slice` and `what` (`filled`, `overshoot`,
    /// `waited`).
    pub const KERNEL_TIME: &str = "tessera_kernel_time_seconds_total";
    /// Counter: connections that the kernel queue refused, by `node` and `why` (`refused`,
    /// `nonsense`).
    pub const KERNEL_REFUSED: &str = "tessera_kernel_refused_total";
    /// Gauge: attempts in kernel queues, by `node` and `intercepted` (`yes`, `no`).
    pub const KERNEL_ATTEMPTS: &str = "tessera_kernel_attempts";
    /// Counter: kernel queues that were started again after a bug ended them, by `node` and `gpu`.
    pub const KERNEL_RESTARTS: &str = "tessera_kernel_restarts_total";
    /// Gauge: attempts that have a GPU, by `node` and `state`.
    pub const AGENT_ATTEMPTS: &str = "tessera_agent_attempts";
    /// Counter: requests to the driver, by `node`, `call` (`sample`, `read`, `list`, `look`, `advice`,
    /// `create`, `cut`, `destroy`, `set_mig_mode`) and `result` (`ok`, `no_answer`, `code N`).
    pub const NVML_CALLS: &str = "tessera_nvml_calls_total";
    /// Gauge: always 1; its labels show what was built.
    pub const BUILD_INFO: &str = "tessera_build_info";
}

/// Spans. There are few names, each of one bounded operation. What differs is in attributes.
pub mod span {
    /// One submit over REST, until its commit.
    pub const SUBMIT: &str = "job.submit";
    /// The time from a job's submit to its first placement.
    pub const WAIT: &str = "job.wait";
    /// One placement, with the rejected candidates as events.
    pub const PLACE: &str = "job.place";
    /// One layout plan of one GPU.
    pub const REPARTITION: &str = "gpu.repartition";
    /// The creation of one instance.
    pub const INSTANCE_CREATE: &str = "mig.gi.create";
    /// The destruction of one instance.
    pub const INSTANCE_DESTROY: &str = "mig.gi.destroy";
    /// The cut of a GPU instance into compute instances.
    pub const INSTANCE_CUT: &str = "mig.ci.cut";
    /// One start of a program.
    pub const LAUNCH: &str = "job.launch";
    /// One attempt, from its start to its end.
    pub const ATTEMPT: &str = "job.attempt";
}

/// Events within spans.
pub mod event {
    /// A placement candidate that was rejected.
    pub const CANDIDATE_REJECTED: &str = "candidate.rejected";
}

/// Attributes of spans and their events. Programs, arguments and environments of jobs are in
/// none of them.
pub mod attribute {
    /// The job's number.
    pub const JOB_ID: &str = "tessera.job.id";
    /// The attempt's number.
    pub const JOB_ATTEMPT: &str = "tessera.job.attempt";
    /// UUID of an attempt.
    pub const ATTEMPT_ID: &str = "tessera.attempt.id";
    /// How the attempt ended: `succeeded`, `failed`, `lost`, ….
    pub const ATTEMPT_OUTCOME: &str = "tessera.attempt.outcome";
    /// The recorded decision, for `tessera decisions ID`.
    pub const DECISION_ID: &str = "tessera.decision.id";
    /// The outcome of a decision: `placed`.
    pub const DECISION_OUTCOME: &str = "tessera.decision.outcome";
    /// Why a job waited: the words of `tessera explain`, separated by commas.
    pub const WAIT_REASONS: &str = "tessera.wait.reasons";
    /// The layout plan.
    pub const PLAN_ID: &str = "tessera.plan.id";
    /// Profile of an instance, such as `2g.10gb`.
    pub const MIG_PROFILE: &str = "tessera.mig.profile";
    /// First memory slice of an instance.
    pub const MIG_START: &str = "tessera.mig.placement.start";
    /// The number of placement candidates in the explanation.
    pub const CANDIDATES_CONSIDERED: &str = "tessera.candidates.considered";
    /// Why a candidate was rejected, in `candidate.rejected`.
    pub const REASON: &str = "reason";
    /// The GPU's UUID, as in OpenTelemetry's hardware conventions.
    pub const HW_ID: &str = "hw.id";
}
