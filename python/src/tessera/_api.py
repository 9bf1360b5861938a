"""The typed client, generated from docs/openapi.json by generate.py. Do not edit."""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Optional, Union

if sys.version_info >= (3, 11):
    from typing import NotRequired, TypedDict
else:
    from typing import TypedDict

    class _NotRequired:
        """Stands for typing.NotRequired, which exists from Python 3.11 on."""

        def __getitem__(self, item: Any) -> Any:
            return item

    NotRequired = _NotRequired()


class AccountUsage(TypedDict):
    """An account, or a user who has none and is treated as one."""

    account: str
    effective_usage: float
    factor: float
    held_slices: int
    named: bool
    norm_shares: float
    quota_slices: NotRequired[Optional[int]]
    recent_slice_secs: float
    running: int
    share: int
    users: List[UserUsage]
    waiting: int


class AccountingReport(TypedDict):
    """What was used in a period."""

    by: List[str]
    lines: List[ReportLine]
    since: str
    total: ReportFigures
    until: str


class AdminOverrideView(TypedDict):
    """An administrative override that is in force."""

    at: str
    by: str
    reason: NotRequired[Optional[str]]


class AlternativeView(TypedDict):
    """A change that would start a waiting job."""

    change: str
    effect: str


class ArrayRange(TypedDict):
    """The indexes of an array's tasks, both ends included."""

    first: int
    last: int


class AttemptMemoryView(TypedDict):
    """The GPU memory of one attempt."""

    band: List[MemoryBandView]
    capacity_bytes: int
    forecast: NotRequired[Optional[GrowthView]]
    id: str
    memory_prediction: NotRequired[Optional[str]]
    moved: bool
    number: int
    outcome: NotRequired[Optional[str]]
    points: List[MemoryPointView]
    preallocated: bool
    unit: str


class AttemptSeries(TypedDict):
    """An attempt's time series."""

    id: str
    number: int
    points: List[SeriesPoint]
    step_secs: int


class AttemptView(TypedDict):
    """One run of a job."""

    colocation_prediction: NotRequired[Optional[ColocationPredictionView]]
    decision: NotRequired[Optional[str]]
    detail: NotRequired[Optional[str]]
    ended_at: NotRequired[Optional[str]]
    exit_code: NotRequired[Optional[str]]
    gpu: str
    gpu_energy_joules: NotRequired[Optional[float]]
    gpu_index: NotRequired[Optional[int]]
    gpu_memory_bytes: NotRequired[Optional[int]]
    gpu_memory_given_bytes: NotRequired[Optional[int]]
    gpu_memory_peak_bytes: NotRequired[Optional[int]]
    id: str
    kernel: NotRequired[Optional[KernelQueueUse]]
    max_rss_bytes: NotRequired[Optional[int]]
    memory_prediction: NotRequired[Optional[MemoryPredictionView]]
    node: str
    number: int
    placed_at: str
    prediction: NotRequired[Optional[PredictionView]]
    profile: str
    share: NotRequired[Optional[str]]
    size_source: NotRequired[Optional[str]]
    slice: NotRequired[Optional[str]]
    sm_percent: NotRequired[Optional[int]]
    start_slice: NotRequired[Optional[int]]
    started_at: NotRequired[Optional[str]]
    state: str
    system_secs: NotRequired[Optional[float]]
    user_secs: NotRequired[Optional[float]]


class AuditEntry(TypedDict):
    """One entry of the audit log."""

    action: str
    at: str
    entry: int
    object: str
    origin: str
    principal: NotRequired[Optional[str]]
    role: NotRequired[Optional[str]]
    status: int


class AuditPage(TypedDict):
    """A page of the audit log."""

    items: List[AuditEntry]
    next_cursor: NotRequired[Optional[str]]


class AuthorityView(TypedDict):
    """The authority of the cluster."""

    certificates: str
    expires_at: str
    fingerprint: str
    former: NotRequired[Optional[FormerAuthorityView]]


class CandidateView(TypedDict):
    """One placement that was considered for a job."""

    chosen: bool
    gpu: str
    gpu_index: int
    memory_bytes: int
    node: str
    profile: str
    reachability_after: NotRequired[Optional[int]]
    start_slice: NotRequired[Optional[int]]
    verdict: str


class ClusterEvent(TypedDict):
    """One action of an operator."""

    at: str
    by: NotRequired[Optional[str]]
    gpu: NotRequired[Optional[str]]
    id: int
    kind: str
    node: NotRequired[Optional[str]]
    text: str


class ClusterEvents(TypedDict):
    """Actions of operators, newest first."""

    items: List[ClusterEvent]
    next_cursor: NotRequired[Optional[str]]


class ClusterInfo(TypedDict):
    """An overview of the cluster."""

    controller: str
    epoch: int
    gpus: int
    isolation_gaps: NotRequired[Dict[str, List[str]]]
    nodes: Dict[str, int]
    partitions: NotRequired[List[PartitionView]]
    policy: str
    share_default: NotRequired[str]
    shared_gpus: NotRequired[List[str]]
    version: str


class ClusterSeries(TypedDict):
    """The time series of all GPUs."""

    items: List[GpuSeries]


class ColocationOutcomes(TypedDict):
    """Outcomes of the newest predictions of speeds with co-runners under MPS."""

    median_error: NotRequired[Optional[float]]
    outcomes: int
    within: int


class ColocationPredictionView(TypedDict):
    """The predicted speed of a run with co-runners under MPS, and the measured speed."""

    co_runners: int
    co_runners_mean: NotRequired[Optional[float]]
    high: float
    low: float
    measured: NotRequired[Optional[float]]
    speed: float


class ComputeView(TypedDict):
    """One of several compute instances of a GPU instance."""

    job_id: NotRequired[Optional[int]]
    job_name: NotRequired[Optional[str]]
    memory_bytes: int
    name: str
    slice: NotRequired[Optional[str]]
    slices: int
    sms: int
    start: int
    user: NotRequired[Optional[str]]


class ContainerRequest(TypedDict):
    """A container that a job's program runs in."""

    image: str
    mounts: NotRequired[List[str]]
    work_dir: NotRequired[Optional[str]]


class DeadlineView(TypedDict):
    """Whether a job's deadline is expected to be met."""

    at: str
    expected_end: NotRequired[Optional[str]]
    probability_percent: NotRequired[Optional[int]]
    text: str


class DecisionPage(TypedDict):
    """Decisions, newest first."""

    items: List[DecisionView]
    next_cursor: NotRequired[Optional[str]]


class DecisionView(TypedDict):
    """One recorded decision."""

    at: str
    candidates: List[CandidateView]
    candidates_left_out: int
    gpu: NotRequired[Optional[str]]
    id: str
    job_id: int
    node: NotRequired[Optional[str]]
    outcome: str
    policy: str
    reason: NotRequired[Optional[str]]
    steps: List[str]
    summary: str
    would_start_if: NotRequired[Optional[str]]


class DoctorFinding(TypedDict):
    """The result of one check."""

    check: str
    gpu: NotRequired[Optional[int]]
    level: str
    remedy: NotRequired[Optional[str]]
    text: str


class DoctorReport(TypedDict):
    """A node's report about its own readiness."""

    findings: List[DoctorFinding]
    node: str


class EarlySignalRequest(TypedDict):
    """A signal before the time limit."""

    script_only: NotRequired[bool]
    secs_before_limit: int
    signal: str


class EfficiencyReport(TypedDict):
    """How well tasks used what they requested."""

    since: str
    tasks: List[TaskEfficiency]


class FaultView(TypedDict):
    """A fault of a GPU."""

    action: str
    at: str
    attempts: List[str]
    cause: str
    start: NotRequired[Optional[int]]
    text: str
    times: int


class FormerAuthorityView(TypedDict):
    """An authority that was replaced."""

    fingerprint: str
    trusted_until: str


class GangRequest(TypedDict):
    """Number of GPUs of a gang, with one process each. Every process gets the GPU resources that
    the request names.
    """

    gpus_per_node: int
    nodes: NotRequired[int]


class GangView(TypedDict):
    """One job's rank in its gang, and the gang's shape."""

    in_array: NotRequired[bool]
    nodes: int
    rank: int
    size: int


class GpuAvailabilityView(TypedDict):
    """Which instances can still be created on a GPU, and which jobs must end for further ones."""

    gpu: str
    index: int
    node: str
    profiles: List[ProfileAvailabilityView]


class GpuDetails(TypedDict):
    """One GPU and its layout."""

    changing: bool
    drained: NotRequired[Optional[AdminOverrideView]]
    faults: NotRequired[List[FaultView]]
    health: str
    health_text: NotRequired[Optional[str]]
    id: str
    index: int
    instances: List[InstanceDetails]
    memory_bytes: int
    memory_slices: int
    mig: str
    model: str
    node: str
    pinned: NotRequired[Optional[AdminOverrideView]]
    profiles: List[ProfileView]
    quarantined: NotRequired[Optional[AdminOverrideView]]
    reachability: NotRequired[Optional[int]]


class GpuListing(TypedDict):
    """GPUs, and the node of each."""

    items: List[GpuDetails]


class GpuSeries(TypedDict):
    """A GPU's time series."""

    gpu: str
    index: int
    jobs: List[JobFigures]
    memory_total_bytes: int
    node: str
    points: List[SeriesPoint]
    step_secs: int


class GrowthView(TypedDict):
    """A prediction that an attempt exceeds its memory."""

    after_secs: float
    crossing: int
    earliest: int
    peak: NotRequired[Optional[MemoryBandView]]
    position: int
    used_bytes: int


class InstanceDetails(TypedDict):
    """One instance of a GPU."""

    job_id: NotRequired[Optional[int]]
    job_name: NotRequired[Optional[str]]
    memory_bytes: int
    parts: NotRequired[List[ComputeView]]
    profile: str
    quarantined: NotRequired[Optional[AdminOverrideView]]
    sharers: NotRequired[List[SharerView]]
    size: int
    slice: NotRequired[Optional[str]]
    sms: NotRequired[Optional[int]]
    start: int
    state: str
    trouble: NotRequired[Optional[str]]


class InteractiveRequest(TypedDict):
    """Makes a job interactive: its program's input and output are those of the session `main`,
    and it ends when its client is gone for a minute.
    """

    terminal: NotRequired[Optional[TerminalView]]


class InvitationRequest(TypedDict):
    """The request for an invitation."""

    valid_secs: NotRequired[Optional[int]]


class JobCounts(TypedDict):
    """Number of jobs in each state."""

    by_state: Dict[str, int]
    total: int


JobDetail = TypedDict(
    "JobDetail",
    {
        "array_id": "Optional[int]",
        "array_index": "Optional[int]",
        "attempt_list": "List[AttemptView]",
        "attempts": "int",
        "class": "str",
        "container": "Optional[str]",
        "deadline": "Optional[str]",
        "dependency": "Optional[str]",
        "ended_at": "Optional[str]",
        "env_names": "List[str]",
        "exit_code": "Optional[str]",
        "gang": "Optional[GangView]",
        "gpu": "Optional[str]",
        "gpu_index": "Optional[int]",
        "gpu_request": "str",
        "id": "int",
        "idle_action": "Optional[str]",
        "idle_timeout_secs": "Optional[int]",
        "interactive": "bool",
        "launch_multiprocessors": "Optional[int]",
        "memory_before_launch_bytes": "Optional[int]",
        "memory_estimate_bytes": "Optional[int]",
        "memory_prediction": "Optional[str]",
        "name": "str",
        "name_id": "str",
        "node": "Optional[str]",
        "oom_count": "int",
        "oom_policy": "str",
        "priority": "int",
        "profile": "Optional[str]",
        "program": "str",
        "queue_rank": "RankView",
        "reason": "Optional[str]",
        "reason_text": "Optional[str]",
        "retries_left": "int",
        "slice": "Optional[str]",
        "started_at": "Optional[str]",
        "state": "str",
        "state_short": "str",
        "submitted_at": "str",
        "submitted_by": "str",
        "submitted_from": "Optional[str]",
        "time_limit_secs": "Optional[int]",
        "traceparent": "Optional[str]",
        "user": "str",
        "work_dir": "Optional[str]",
    },
    total=False,
)
JobDetail.__doc__ = "One job with all details."


class JobEventView(TypedDict):
    """One event of a job."""

    at: str
    attempt: NotRequired[Optional[int]]
    state: str
    text: str


class JobEvents(TypedDict):
    """The events of a job, oldest first."""

    items: List[JobEventView]


class JobExplanation(TypedDict):
    """Why a job waits, or why it was placed where it runs."""

    alternatives: NotRequired[List[AlternativeView]]
    candidates: List[CandidateView]
    candidates_left_out: int
    deadline: NotRequired[Optional[DeadlineView]]
    decided_at: NotRequired[Optional[str]]
    decision: NotRequired[Optional[str]]
    expected_start: NotRequired[Optional[str]]
    expected_start_secs: NotRequired[Optional[float]]
    job_id: int
    jobs_ahead: NotRequired[Optional[int]]
    memory_prediction: NotRequired[Optional[MemoryPredictionView]]
    policy: str
    prediction: NotRequired[Optional[PredictionView]]
    reason: NotRequired[Optional[str]]
    size: NotRequired[Optional[SizeView]]
    state: str
    summary: str
    would_start_if: NotRequired[Optional[str]]


class JobFigures(TypedDict):
    """What a running job uses of a GPU now."""

    activity: NotRequired[Optional[float]]
    attempt: str
    energy_joules: NotRequired[Optional[float]]
    job_id: int
    memory_bytes: NotRequired[Optional[int]]


class JobMemory(TypedDict):
    """The GPU memory of a job's attempts."""

    attempts: List[AttemptMemoryView]
    job_id: int
    sizes_bytes: List[int]


class JobPage(TypedDict):
    """Jobs, and where the next page begins."""

    items: List[JobView]
    next_cursor: NotRequired[Optional[str]]


class JobRecord(TypedDict):
    """One job."""

    account: str
    array_index: NotRequired[Optional[int]]
    array_limit: NotRequired[Optional[int]]
    attempts: int
    begin: NotRequired[Optional[str]]
    comment: NotRequired[Optional[str]]
    dependency: NotRequired[Optional[str]]
    ended_at: NotRequired[Optional[str]]
    exit_code: NotRequired[Optional[str]]
    gpu_index: NotRequired[Optional[int]]
    id: int
    more: NotRequired[int]
    name: str
    node: NotRequired[Optional[str]]
    outcome: NotRequired[Optional[str]]
    partition: NotRequired[Optional[str]]
    placed_at: NotRequired[Optional[str]]
    queue_rank: NotRequired[RankUpdateView]
    rank: NotRequired[Optional[int]]
    reason: NotRequired[Optional[str]]
    requeue: NotRequired[Optional[bool]]
    runs: NotRequired[List[RunRecord]]
    started_at: NotRequired[Optional[str]]
    state: str
    submission: int
    submitted_at: str
    time_limit_secs: NotRequired[Optional[int]]
    user: str


class JobRecords(TypedDict):
    """Jobs with what was requested, and their runs."""

    jobs: List[JobRecord]
    specs: NotRequired[List[RequestRecord]]
    truncated: bool


class JobScriptView(TypedDict):
    """The script that a job runs, as its user submitted it."""

    script: str


class JobSeries(TypedDict):
    """A job's time series."""

    attempts: List[AttemptSeries]
    job_id: int


JobView = TypedDict(
    "JobView",
    {
        "array_id": "Optional[int]",
        "array_index": "Optional[int]",
        "attempts": "int",
        "class": "str",
        "ended_at": "Optional[str]",
        "exit_code": "Optional[str]",
        "gang": "Optional[GangView]",
        "gpu": "Optional[str]",
        "gpu_index": "Optional[int]",
        "gpu_request": "str",
        "id": "int",
        "name": "str",
        "name_id": "str",
        "node": "Optional[str]",
        "priority": "int",
        "profile": "Optional[str]",
        "reason": "Optional[str]",
        "reason_text": "Optional[str]",
        "slice": "Optional[str]",
        "started_at": "Optional[str]",
        "state": "str",
        "state_short": "str",
        "submitted_at": "str",
        "user": "str",
    },
    total=False,
)
JobView.__doc__ = "One job."


class KernelQueueUse(TypedDict):
    """Counters of one attempt's processes in their slice's kernel queue."""

    aged: int
    colocated: NotRequired[int]
    drifts: int
    early_stops: int
    filled_kernels: int
    filled_secs: float
    gaps_filled: int
    gaps_seen: int
    grants_ahead: NotRequired[Optional[int]]
    grants_ahead_used: NotRequired[Optional[int]]
    launches: int
    launches_unreported: int
    memory_peak_bytes: int
    overshoot_secs_max: float
    overshoots: int
    processes: int
    processes_raised: NotRequired[Optional[int]]
    progress: NotRequired[Optional[float]]
    records_lost: int
    ungranted: int
    waited_secs: float
    waited_secs_max: float
    waits: int


class KernelTask(TypedDict):
    """A task whose kernels were measured."""

    kernels: int
    measured: bool
    reports: int
    task_key: str
    updated_at: str


class KernelTasks(TypedDict):
    """Tasks whose kernels were measured."""

    items: List[KernelTask]


class KernelTime(TypedDict):
    """A measured time."""

    mean_us: float
    samples: int
    tight: bool


class KernelView(TypedDict):
    """One kernel of a task."""

    block: List[int]
    gap: NotRequired[Optional[KernelTime]]
    grid: List[int]
    name: str
    took: NotRequired[Optional[KernelTime]]


class LayoutApplied(TypedDict):
    """The answer to an accepted request for a layout."""

    gpu: str
    plan: NotRequired[Optional[str]]
    state: str


class LayoutPlan(TypedDict):
    """One plan that changes a GPU's layout, and its progress."""

    decision: NotRequired[Optional[str]]
    detail: NotRequired[Optional[str]]
    ended_at: NotRequired[Optional[str]]
    gpu: str
    job_id: NotRequired[Optional[int]]
    node: str
    plan: str
    planned_at: str
    reason: NotRequired[Optional[str]]
    requested_by: NotRequired[Optional[str]]
    state: str
    steps: List[str]


class LayoutPlans(TypedDict):
    """Layout plans, newest first."""

    items: List[LayoutPlan]
    next_cursor: NotRequired[Optional[str]]


class LayoutRequest(TypedDict):
    """The desired layout of a GPU."""

    by: NotRequired[str]
    layout: str
    pin: NotRequired[bool]
    reason: NotRequired[Optional[str]]


class MemoryBandView(TypedDict):
    """The predicted memory of an attempt at a position."""

    high_bytes: int
    low_bytes: int
    position: int
    value_bytes: int


class MemoryOutcomes(TypedDict):
    """Outcomes of the newest memory predictions, for jobs that request no size."""

    low_confidence_tasks: int
    outcomes: int
    short: int
    within: int


class MemoryPointView(TypedDict):
    """The memory of an attempt at a position."""

    position: int
    used_bytes: int


class MemoryPredictionView(TypedDict):
    """The GPU memory that earlier runs of a task predict for a run, and the measured peak."""

    cautious: bool
    estimate_bytes: int
    high_bytes: int
    low_bytes: int
    peak_bytes: NotRequired[Optional[int]]
    ran_out_of_bytes: NotRequired[Optional[int]]
    runs: int


class MigModeRequest(TypedDict):
    """An administrator's explicit switch of MIG mode."""

    on: bool


class NodeCertificateList(TypedDict):
    """Certificates of nodes, newest first; at most 1,000."""

    items: List[NodeCertificateView]


class NodeCertificateView(TypedDict):
    """One certificate that was issued to a node."""

    authority: str
    expires_at: str
    issued_at: str
    node: str
    revoked_at: NotRequired[Optional[str]]
    revoked_by: NotRequired[Optional[str]]
    serial: str


class NodeDetails(TypedDict):
    """One machine."""

    agent_version: str
    cores: int
    drained: NotRequired[Optional[AdminOverrideView]]
    generation: int
    gpus: List[GpuDetails]
    id: str
    isolation_gaps: NotRequired[Optional[List[str]]]
    last_seen_at: NotRequired[Optional[str]]
    memory_bytes: int
    mps: NotRequired[bool]
    name: str
    quarantined: NotRequired[Optional[AdminOverrideView]]
    state: str


class NodeInvitation(TypedDict):
    """An invitation for one machine, with its token, which is shown only here."""

    authority: str
    command: str
    controller: str
    expires_at: str
    node: str
    token: str


class NodeListing(TypedDict):
    """The machines."""

    items: List[NodeDetails]


class NodeRevoked(TypedDict):
    """The result of revoking a node's certificates."""

    certificates: int
    node: str


class OperatorRequest(TypedDict):
    """Sets or clears an administrative override of a node, a GPU or a slice."""

    by: NotRequired[str]
    reason: NotRequired[Optional[str]]
    slice: NotRequired[Optional[str]]


class OperatorResult(TypedDict):
    """The result of an operator's request."""

    changed: bool


class PartitionView(TypedDict):
    """A partition, as batch schedulers call a part of a cluster."""

    gpu_model: NotRequired[Optional[str]]
    name: str
    nodes: NotRequired[Optional[str]]


class PastAttempt(TypedDict):
    """An attempt of a recorded job."""

    ended_at: NotRequired[Optional[str]]
    gpu: str
    gpu_energy_millijoules: NotRequired[Optional[int]]
    gpu_index: int
    gpu_memory_peak_bytes: NotRequired[Optional[int]]
    gpu_model: NotRequired[Optional[str]]
    node: str
    placed_at: str
    profile: str
    shared: bool
    start_slice: NotRequired[Optional[int]]
    started_at: NotRequired[Optional[str]]
    state: str


class PastGang(TypedDict):
    """The gang of a recorded job."""

    gpus_per_node: int
    id: int
    nodes: int


PastJob = TypedDict(
    "PastJob",
    {
        "attempts": "List[PastAttempt]",
        "class": "str",
        "deadline": "Optional[str]",
        "ended_at": "Optional[str]",
        "gang": "Optional[PastGang]",
        "gpu_memory_bytes": "Optional[int]",
        "gpu_profile": "Optional[str]",
        "gpu_whole": "bool",
        "id": "int",
        "movable": "bool",
        "name": "str",
        "priority": "int",
        "share": "str",
        "state": "str",
        "submitted_at": "str",
        "task": "Optional[str]",
        "time_limit_secs": "Optional[int]",
        "user": "str",
    },
    total=False,
)
PastJob.__doc__ = "A recorded job with the fields that simulations need."


class PastJobs(TypedDict):
    """Recorded jobs, oldest first."""

    items: List[PastJob]
    next_cursor: NotRequired[Optional[str]]
    oldest_at: NotRequired[Optional[str]]


class PlanPreviewView(TypedDict):
    """A preview of the plan for a desired layout; nothing is changed."""

    gpu: str
    index: int
    kept: List[str]
    layout: List[str]
    node: str
    predicted_secs: float
    reachability_after: NotRequired[Optional[int]]
    steps: List[str]


class PowerReport(TypedDict):
    """The power cap, and what the GPUs are expected to draw. Expected power is an upper bound by
    the limits of the boards, not a measurement.
    """

    cap_watts: NotRequired[Optional[int]]
    expected_watts: int
    full_watts: int
    idle_watts: int
    unknown_models: NotRequired[List[str]]


class PredictionOutcomes(TypedDict):
    """Outcomes of the newest predictions with one basis."""

    basis: str
    median_error: float
    outcomes: int
    within: int


class PredictionReport(TypedDict):
    """The accuracy of predictions, and the models in use."""

    colocation: NotRequired[ColocationOutcomes]
    colocation_model: NotRequired[Optional[PredictorView]]
    memory: NotRequired[MemoryOutcomes]
    model: NotRequired[Optional[PredictorView]]
    outcomes: List[PredictionOutcomes]


class PredictionView(TypedDict):
    """A predicted run time, and the outcome."""

    basis: str
    expected_secs: float
    high_secs: float
    low_secs: float
    ran_secs: NotRequired[Optional[float]]
    runs: int


class PredictorView(TypedDict):
    """A model that was trained on finished runs."""

    held_out_covered: float
    held_out_error: float
    held_out_rows: int
    learner: str
    rows: int
    trained_at: str
    trusted: bool
    version: str


class ProblemDetails(TypedDict):
    """An error in the format of RFC 9457."""

    detail: str
    expected: NotRequired[Optional[str]]
    field: NotRequired[Optional[str]]
    status: int
    title: str
    trace_id: NotRequired[Optional[str]]
    type: str


class ProfileAvailabilityView(TypedDict):
    """How many instances of one profile can be created."""

    after_idle: int
    busy: List[str]
    first: str
    idle: List[str]
    job_ids: List[int]
    now: int
    profile: str
    ready_at: NotRequired[Optional[str]]
    stuck: List[str]
    text: str


class ProfileView(TypedDict):
    """One profile of a GPU."""

    compute_slices: int
    fits_now: NotRequired[int]
    memory_bytes: int
    memory_slices: int
    name: str
    starts: List[int]


class RankUpdateView(TypedDict):
    """What updates changed of a job's order in the queue; absent fields are as submitted."""

    nice: NotRequired[Optional[int]]
    priority: NotRequired[Optional[int]]


class RankView(TypedDict):
    """What orders a job in the queue before its number."""

    nice: NotRequired[int]
    priority: int


class RecordedRound(TypedDict):
    """A recorded scheduling round."""

    at: str
    digest: str
    epoch: int
    number: int
    record: Dict[str, Any]
    round: int


class RecordedRounds(TypedDict):
    """Recorded rounds, oldest first."""

    items: List[RecordedRound]
    next_cursor: NotRequired[Optional[str]]
    oldest_at: NotRequired[Optional[str]]


class ReportFigures(TypedDict):
    """What attempts used. All numbers are whole, so that lines add up exactly to their total,
    however they are grouped. An attempt over several months counts in each by its part of the
    time.
    """

    attempts: int
    energy_mj: int
    failed: int
    gpu_ms: int
    memory_held_mib_s: int
    memory_used_mib_s: int
    requested_ms: int
    run_ms: int
    slice_ms: int
    succeeded: int
    used_of_requested_ms: int
    waiting_ms: int
    wasted_slice_ms: int


class ReportLine(TypedDict):
    """One line of a report. Keys that were not requested are absent."""

    account: NotRequired[Optional[str]]
    attempts: int
    energy_mj: int
    failed: int
    gpu_ms: int
    memory_held_mib_s: int
    memory_used_mib_s: int
    month: NotRequired[Optional[str]]
    node: NotRequired[Optional[str]]
    profile: NotRequired[Optional[str]]
    requested_ms: int
    run_ms: int
    slice_ms: int
    succeeded: int
    used_of_requested_ms: int
    user: NotRequired[Optional[str]]
    waiting_ms: int
    wasted_slice_ms: int


RequestRecord = TypedDict(
    "RequestRecord",
    {
        "begin": "Optional[str]",
        "class": "str",
        "comment": "Optional[str]",
        "cpus": "Optional[int]",
        "cpus_per_task": "Optional[int]",
        "deadline": "Optional[str]",
        "dependency": "Optional[str]",
        "exclude": "List[str]",
        "gpu": "str",
        "gpu_model": "Optional[str]",
        "gpus": "int",
        "host_memory_bytes": "Optional[int]",
        "nodelist": "List[str]",
        "nodes": "int",
        "ntasks": "Optional[int]",
        "partition": "Optional[str]",
        "processes": "Optional[int]",
        "qos": "Optional[str]",
        "queue_rank": "RankView",
        "requeue": "bool",
        "stderr": "Optional[str]",
        "stdout": "Optional[str]",
        "submission": "int",
        "tasks": "int",
        "time_limit_secs": "Optional[int]",
        "work_dir": "Optional[str]",
    },
    total=False,
)
RequestRecord.__doc__ = "What a submission requested."


class RotationRequest(TypedDict):
    """The request to replace the authority."""

    trust_former_secs: NotRequired[Optional[int]]


class RunRecord(TypedDict):
    """One run of a job."""

    ended_at: NotRequired[Optional[str]]
    exit_code: NotRequired[Optional[str]]
    gpu_energy_millijoules: NotRequired[Optional[int]]
    gpu_index: int
    gpu_memory_peak_bytes: NotRequired[Optional[int]]
    max_rss_bytes: NotRequired[Optional[int]]
    node: str
    number: int
    placed_at: str
    profile: str
    started_at: NotRequired[Optional[str]]
    state: str
    steps: NotRequired[List[StepRecord]]
    system_ms: NotRequired[Optional[int]]
    user_ms: NotRequired[Optional[int]]


class SeriesPoint(TypedDict):
    """The measurements of one step. Values that could not be read are absent, never zero."""

    activity: NotRequired[Optional[float]]
    activity_max: NotRequired[Optional[float]]
    at: str
    energy_joules: NotRequired[Optional[float]]
    memory_bytes: NotRequired[Optional[int]]
    memory_max_bytes: NotRequired[Optional[int]]
    power_watts: NotRequired[Optional[float]]


SessionCommand = Dict[str, Any]


SessionEvent = Dict[str, Any]


class SessionOpening(TypedDict):
    """The first message of a client, as text: which program the session is started with, if it
    does not exist yet.
    """

    env: NotRequired[Dict[str, str]]
    offset: NotRequired[Optional[int]]
    port: NotRequired[Optional[int]]
    program: NotRequired[List[str]]
    terminal: NotRequired[Optional[TerminalView]]


class SharerView(TypedDict):
    """One job that shares an instance."""

    job_id: int
    job_name: NotRequired[Optional[str]]
    memory_bytes: int
    sm_percent: NotRequired[Optional[int]]
    user: str


class SizeView(TypedDict):
    """The size that a job requests, and why."""

    memory_bytes: NotRequired[Optional[int]]
    source: str
    text: str


class StepReceipt(TypedDict):
    """The answer to a report."""

    recorded: bool


class StepRecord(TypedDict):
    """What `srun` started once in a run of a job."""

    ended_at: NotRequired[Optional[str]]
    exit_code: NotRequired[Optional[str]]
    max_rss_bytes: NotRequired[Optional[int]]
    name: str
    nodes: str
    started_at: str
    step: int
    system_ms: NotRequired[Optional[int]]
    tasks: int
    user_ms: NotRequired[Optional[int]]


class StepReport(TypedDict):
    """What `srun` reports about a step: once when it starts its processes, and again when they
    have ended.
    """

    attempt: str
    exit_code: NotRequired[Optional[str]]
    max_rss_bytes: NotRequired[Optional[int]]
    name: str
    nodes: str
    ran_ms: NotRequired[int]
    step: int
    system_ms: NotRequired[Optional[int]]
    tasks: int
    user_ms: NotRequired[Optional[int]]


SubmitRequest = TypedDict(
    "SubmitRequest",
    {
        "allow_pending": "bool",
        "arguments": "List[str]",
        "array": "Optional[ArrayRange]",
        "array_indexes": "List[int]",
        "array_limit": "Optional[int]",
        "begin": "Optional[str]",
        "checkpoint_signal": "Optional[str]",
        "class": "Optional[str]",
        "command": "Optional[List[str]]",
        "comment": "Optional[str]",
        "constraint": "Optional[str]",
        "container": "Optional[ContainerRequest]",
        "cpus": "Optional[int]",
        "deadline": "Optional[str]",
        "dependency": "Optional[str]",
        "env": "Dict[str, str]",
        "exclude": "Optional[str]",
        "exclusive": "bool",
        "gang": "Optional[GangRequest]",
        "gpu_memory_bytes": "Optional[int]",
        "gpu_memory_estimate_bytes": "Optional[int]",
        "gpu_model": "Optional[str]",
        "gpu_profile": "Optional[str]",
        "gpu_whole": "bool",
        "grace_secs": "Optional[int]",
        "hold": "bool",
        "host_memory_bytes": "Optional[int]",
        "idle_action": "Optional[str]",
        "idle_timeout_secs": "Optional[int]",
        "ignore_unknown_jobs": "bool",
        "input": "Optional[str]",
        "interactive": "Optional[InteractiveRequest]",
        "kill_on_invalid_dep": "bool",
        "late": "Optional[str]",
        "launch": "Optional[str]",
        "mail_types": "List[str]",
        "mail_user": "Optional[str]",
        "max_retries": "Optional[int]",
        "memory_prediction": "Optional[str]",
        "name": "Optional[str]",
        "nice": "Optional[int]",
        "nodelist": "Optional[str]",
        "on_lost": "Optional[str]",
        "oom_policy": "Optional[str]",
        "open_mode": "Optional[str]",
        "partition": "Optional[str]",
        "priority": "Optional[int]",
        "qos": "Optional[str]",
        "script": "Optional[str]",
        "share": "Optional[str]",
        "signal": "Optional[EarlySignalRequest]",
        "sm_percent": "Optional[int]",
        "stderr": "Optional[str]",
        "stdout": "Optional[str]",
        "task_key": "Optional[str]",
        "test_only": "bool",
        "time_limit_secs": "Optional[int]",
        "user": "Optional[str]",
        "work_dir": "Optional[str]",
    },
    total=False,
)
SubmitRequest.__doc__ = "A job to run, or an array of them. Give either `script` or `command`. Everything else has a default."


class SubmitResponse(TypedDict):
    """An accepted submit; it was committed before this response."""

    deadline: NotRequired[Optional[DeadlineView]]
    job_id: int
    remarks: NotRequired[List[str]]
    state: str
    tasks: int


class TaskEfficiency(TypedDict):
    """How well the runs of one task used what they requested. Only runs that succeeded count."""

    given_bytes: int
    limit_secs: NotRequired[Optional[int]]
    measured: int
    name: str
    ran_secs: int
    request_bytes: NotRequired[Optional[int]]
    request_limit_secs: NotRequired[Optional[int]]
    runs: int
    unused_gib_hours: float
    used_bytes: NotRequired[Optional[int]]
    user: str


class TaskKernels(TypedDict):
    """The measured kernels of one task."""

    kernels: List[KernelView]
    measured: bool
    task_key: str


class TerminalView(TypedDict):
    """The size of a terminal in characters, 1 to 4096 of each."""

    columns: int
    rows: int


class TokenCreated(TypedDict):
    """A new token with its secret, which is shown only here."""

    secret: str
    token: TokenView


class TokenList(TypedDict):
    """Personal tokens, newest first; at most 1,000."""

    items: List[TokenView]


class TokenRequest(TypedDict):
    """A personal token to be created."""

    name: str
    role: NotRequired[Optional[str]]
    user: NotRequired[Optional[str]]
    valid_secs: NotRequired[Optional[int]]


class TokenView(TypedDict):
    """A personal token. Its secret is not kept."""

    created_at: str
    created_by: str
    expires_at: str
    id: str
    last_used_at: NotRequired[Optional[str]]
    name: str
    revoked_at: NotRequired[Optional[str]]
    role: str
    user: str


class UpdateRequest(TypedDict):
    """The fields of a job to update; absent fields stay as they are."""

    array_limit: NotRequired[Optional[int]]
    begin: NotRequired[Optional[str]]
    comment: NotRequired[Optional[str]]
    deadline: NotRequired[Optional[str]]
    dependency: NotRequired[Optional[str]]
    name: NotRequired[Optional[str]]
    nice: NotRequired[Optional[int]]
    no_deadline: NotRequired[bool]
    on_lost: NotRequired[Optional[str]]
    priority: NotRequired[Optional[int]]
    sm_percent: NotRequired[Optional[int]]
    time_limit_secs: NotRequired[Optional[int]]


class UsageReport(TypedDict):
    """The recent usage of accounts, and their fair-share factors."""

    accounts: List[AccountUsage]
    fair_share: bool
    half_life_secs: NotRequired[Optional[float]]


class UserUsage(TypedDict):
    """One user of an account."""

    held_slices: int
    quota_slices: NotRequired[Optional[int]]
    recent_slice_secs: float
    running: int
    user: str
    waiting: int


class WhoAmI(TypedDict):
    """The caller, as the controller knows it."""

    coordinates: NotRequired[List[str]]
    proof: str
    role: str
    user: str


class Api:
    """The calls of the API. Answers are dictionaries as the API writes them."""

    def _call(self, method: str, path: str, **given: Any) -> Any:
        raise NotImplementedError

    @staticmethod
    def _segment(name: Union[str, int]) -> str:
        raise NotImplementedError

    def list_audit_entries(self, *, principal: Optional[str] = None, limit: Optional[int] = None, cursor: Optional[str] = None) -> AuditPage:
        """Lists what callers changed, and what was refused to them, newest first. What one caller
        submitted at once is one entry with the numbers of its jobs.
        """
        return self._call("GET", "/v1/audit", query={"principal": principal, "limit": limit, "cursor": cursor})

    def show_authority(self) -> AuthorityView:
        """Shows the authority that signs certificates, with what clients need to trust it."""
        return self._call("GET", "/v1/authority")

    def rotate_authority(self, body: RotationRequest) -> AuthorityView:
        """Replaces the authority by a new one. Both are trusted for some time. Meanwhile,
        connected nodes get certificates of the new one by themselves, and jobs continue to
        run.
        """
        return self._call("POST", "/v1/authority/rotate", body=body)

    def list_cluster_events(self, *, node: Optional[str] = None, limit: Optional[int] = None, cursor: Optional[int] = None) -> ClusterEvents:
        """Lists what administrators did, newest first."""
        return self._call("GET", "/v1/cluster-events", query={"node": node, "limit": limit, "cursor": cursor})

    def list_decisions(self, *, job: Optional[int] = None, limit: Optional[int] = None, cursor: Optional[str] = None) -> DecisionPage:
        """Lists recorded decisions, newest first."""
        return self._call("GET", "/v1/decisions", query={"job": job, "limit": limit, "cursor": cursor})

    def get_decision(self, decision: Union[str, int]) -> DecisionView:
        """Returns one recorded decision."""
        return self._call("GET", f"/v1/decisions/{self._segment(decision)}")

    def show_efficiency(self, *, since: Optional[str] = None, user: Optional[str] = None) -> EfficiencyReport:
        """Compares what the runs of tasks requested with what they used, and advises what to
        request. A user gets their own tasks, and a coordinator those of the account's members.
        """
        return self._call("GET", "/v1/efficiency", query={"since": since, "user": user})

    def list_gpus(self) -> GpuListing:
        """Lists the GPUs with their layouts, by node and index."""
        return self._call("GET", "/v1/gpus")

    def get_gpu(self, gpu: Union[str, int]) -> GpuDetails:
        """Returns one GPU with its layout."""
        return self._call("GET", f"/v1/gpus/{self._segment(gpu)}")

    def clear_gpu(self, gpu: Union[str, int], body: OperatorRequest) -> OperatorResult:
        """Clears a quarantine. The node forgets the faults and stuck instances of the GPU or
        slice, and examines it again.
        """
        return self._call("POST", f"/v1/gpus/{self._segment(gpu)}/clear", body=body)

    def drain_gpu(self, gpu: Union[str, int], body: OperatorRequest) -> OperatorResult:
        """Drains a GPU: no new attempt starts there, and running ones finish."""
        return self._call("POST", f"/v1/gpus/{self._segment(gpu)}/drain", body=body)

    def show_layout(self, gpu: Union[str, int]) -> GpuDetails:
        """Returns a GPU with its layout: its instances, and the jobs on them."""
        return self._call("GET", f"/v1/gpus/{self._segment(gpu)}/layout")

    def apply_layout(self, gpu: Union[str, int], body: LayoutRequest) -> LayoutApplied:
        """Applies a layout to a GPU: starts the plan that creates it. Instances in use are never
        changed. The layout stays until jobs need another one, unless it is pinned. A request
        for a layout that exists, or is being created, changes nothing.
        """
        return self._call("POST", f"/v1/gpus/{self._segment(gpu)}/layout", body=body)

    def layout_availability(self, gpu: Union[str, int]) -> GpuAvailabilityView:
        """Returns which instances a GPU still has capacity for, and what must end first for
        others.
        """
        return self._call("GET", f"/v1/gpus/{self._segment(gpu)}/layout/availability")

    def plan_layout(self, gpu: Union[str, int], *, layout: str) -> PlanPreviewView:
        """Returns the plan for a layout without carrying it out. Instances without a first memory
        slice are placed where they leave the most full layouts reachable. Refused if something
        in use has no place in the layout.
        """
        return self._call("GET", f"/v1/gpus/{self._segment(gpu)}/layout/plan", query={"layout": layout})

    def set_mig_mode(self, gpu: Union[str, int], body: MigModeRequest) -> None:
        """Switches a GPU's MIG mode, at an administrator's explicit request. Many GPUs have to be
        reset for this, so nothing may run on the GPU.
        """
        return self._call("POST", f"/v1/gpus/{self._segment(gpu)}/mig-mode", body=body)

    def pin_layout(self, gpu: Union[str, int], body: OperatorRequest) -> OperatorResult:
        """Pins a GPU's layout: jobs use its slices, and no policy changes them."""
        return self._call("POST", f"/v1/gpus/{self._segment(gpu)}/pin", body=body)

    def quarantine_gpu(self, gpu: Union[str, int], body: OperatorRequest) -> OperatorResult:
        """Quarantines a GPU, or one of its slices, until it is cleared: no attempt starts there,
        and no instance is created or destroyed there for a job.
        """
        return self._call("POST", f"/v1/gpus/{self._segment(gpu)}/quarantine", body=body)

    def get_gpu_series(self, gpu: Union[str, int], *, since_secs: Optional[int] = None, points: Optional[int] = None) -> GpuSeries:
        """Returns one GPU's figures over time."""
        return self._call("GET", f"/v1/gpus/{self._segment(gpu)}/series", query={"since_secs": since_secs, "points": points})

    def undrain_gpu(self, gpu: Union[str, int], body: OperatorRequest) -> OperatorResult:
        """Ends the drain of a GPU: attempts may start there again."""
        return self._call("POST", f"/v1/gpus/{self._segment(gpu)}/undrain", body=body)

    def unpin_layout(self, gpu: Union[str, int], body: OperatorRequest) -> OperatorResult:
        """Unpins a GPU's layout: policies may change it for jobs again."""
        return self._call("POST", f"/v1/gpus/{self._segment(gpu)}/unpin", body=body)

    def list_past_jobs(self, *, since: str, until: Optional[str] = None, user: Optional[str] = None, limit: Optional[int] = None, cursor: Optional[str] = None) -> PastJobs:
        """Lists the jobs of a period with their runs, oldest first: what simulations replay."""
        return self._call("GET", "/v1/history", query={"since": since, "until": until, "user": user, "limit": limit, "cursor": cursor})

    def get_info(self) -> ClusterInfo:
        """Returns an overview of the cluster."""
        return self._call("GET", "/v1/info")

    def list_jobs(self, *, state: Optional[str] = None, user: Optional[str] = None, name: Optional[str] = None, array: Optional[int] = None, node: Optional[str] = None, limit: Optional[int] = None, cursor: Optional[str] = None) -> JobPage:
        """Lists jobs, newest first. A user gets the jobs of others, too, as in other batch
        systems, but without exit codes and the texts about their ends.
        """
        return self._call("GET", "/v1/jobs", query={"state": state, "user": user, "name": name, "array": array, "node": node, "limit": limit, "cursor": cursor})

    def submit_job(self, body: SubmitRequest, *, idempotency_key: Optional[str] = None) -> SubmitResponse:
        """Submits a job, or an array of jobs. The response follows the commit: an accepted job is
        not lost. With an `Idempotency-Key`, repeating a submit is harmless: the same key and
        body of the same caller return the same job. The job belongs to the caller; operators
        may name another `user`.
        """
        return self._call("POST", "/v1/jobs", body=body, idempotency_key=idempotency_key)

    def count_jobs(self) -> JobCounts:
        """Counts the jobs by state."""
        return self._call("GET", "/v1/jobs/summary")

    def delete_job(self, job: Union[str, int]) -> JobView:
        """Ends a job, as `POST /v1/jobs/{job}/cancel` does. Its record stays."""
        return self._call("DELETE", f"/v1/jobs/{self._segment(job)}")

    def get_job(self, job: Union[str, int]) -> JobDetail:
        """Returns one job with everything that is known about it. An array's number alone names
        its first task.
        """
        return self._call("GET", f"/v1/jobs/{self._segment(job)}")

    def update_job(self, job: Union[str, int], body: UpdateRequest) -> JobView:
        """Updates a job: its priority, its time limit, its deadline, what it waits for, its names
        and rules, or its share of a slice. - `priority`: a waiting job moves in the queue at
        once; a running job uses it when it waits again. - `time_limit_secs`: counted from the
        start of the attempt; 0 for none. It applies to a running job at once, which ends if it
        has run for longer. - `deadline`: by when it has to be done; placement plans for it at
        once. `no_deadline` removes it. - `dependency`: the jobs that it waits for from now on,
        or none. It stays one that is cancelled if that can never be met, or one that is not. A
        job that has started is refused, and so is one that would wait for itself. - `begin`:
        before this time it does not start. A job that has started is refused. - `array_limit`:
        how many tasks of its array may run at a time, given with the array's number. Those
        that run go on. - `name`, `comment` and `on_lost` take effect at once. A running
        program keeps its variables. - `sm_percent`: a running job gets its checkpoint signal,
        ends, and is started again with its new share, which uses none of its retries. It must
        have been submitted with a `checkpoint_signal`. An array's number alone addresses all
        of its unfinished tasks.
        """
        return self._call("PATCH", f"/v1/jobs/{self._segment(job)}", body=body)

    def cancel_job(self, job: Union[str, int]) -> JobView:
        """Cancels a job: at once if it is waiting, else by `SIGTERM` and, after its grace period,
        `SIGKILL`. An array's number alone addresses all of its unfinished tasks. Cancelling a
        cancelled job changes nothing and succeeds.
        """
        return self._call("POST", f"/v1/jobs/{self._segment(job)}/cancel")

    def list_job_events(self, job: Union[str, int]) -> JobEvents:
        """Lists what happened to a job, oldest first."""
        return self._call("GET", f"/v1/jobs/{self._segment(job)}/events")

    def explain_job(self, job: Union[str, int]) -> JobExplanation:
        """Explains why a job waits, or why it was placed where it is. For a waiting job the
        answer is computed now; for any other job it is the recorded decision about its newest
        attempt.
        """
        return self._call("GET", f"/v1/jobs/{self._segment(job)}/explain")

    def hold_job(self, job: Union[str, int]) -> JobView:
        """Holds a waiting job: it does not start until it is released. An array's number alone
        addresses all of its unfinished tasks.
        """
        return self._call("POST", f"/v1/jobs/{self._segment(job)}/hold")

    def show_job_memory(self, job: Union[str, int]) -> JobMemory:
        """Returns the GPU memory of a job's attempts over time, with the predicted band while it
        runs, and the sizes of slices around it.
        """
        return self._call("GET", f"/v1/jobs/{self._segment(job)}/memory")

    def release_job(self, job: Union[str, int]) -> JobView:
        """Releases a held job. An array's number alone addresses all of its unfinished tasks."""
        return self._call("POST", f"/v1/jobs/{self._segment(job)}/release")

    def requeue_job(self, job: Union[str, int]) -> JobView:
        """Ends a running job's attempt, and puts the job back into the queue: `SIGTERM` and,
        after its grace period, `SIGKILL`. A job that has ended is put back into the queue,
        too. It keeps its number, and uses none of its retries. An array's number alone
        addresses all of its unfinished tasks, or, if there are none, all that have ended.
        """
        return self._call("POST", f"/v1/jobs/{self._segment(job)}/requeue")

    def get_job_script(self, job: Union[str, int]) -> JobScriptView:
        """Returns the script of a job as it was submitted, so that it can be run again as it was."""
        return self._call("GET", f"/v1/jobs/{self._segment(job)}/script")

    def get_job_series(self, job: Union[str, int], *, since_secs: Optional[int] = None, points: Optional[int] = None) -> JobSeries:
        """Returns a job's figures over time, attempt by attempt. They are kept until an hour
        after an attempt's end, and not over restarts of the controller.
        """
        return self._call("GET", f"/v1/jobs/{self._segment(job)}/series", query={"since_secs": since_secs, "points": points})

    def join_session(self, job: Union[str, int], session: Union[str, int], *, wait: Optional[bool] = None) -> None:
        """Joins an interactive session in a running job, over a WebSocket connection. The first
        message of the client is a `SessionOpening` as text, further ones are `SessionCommand`
        as text, and its input is binary. It gets `SessionEvent` as text, and output as binary:
        one byte that is 1 for standard output or 2 for standard error, and then the output. A
        program runs as the job's user, within the limits of the job. A client that closes the
        connection ends the session. After any other break it may come back for a minute.
        """
        return self._call("GET", f"/v1/jobs/{self._segment(job)}/sessions/{self._segment(session)}", query={"wait": wait})

    def report_step(self, job: Union[str, int], body: StepReport) -> StepReceipt:
        """Records that `srun` starts a step of a job, or that the step has ended. The same report
        may be sent again. Reports about an attempt that has ended change nothing: what ran
        then has ended with it. A process of the job needs no token.
        """
        return self._call("POST", f"/v1/jobs/{self._segment(job)}/steps", body=body)

    def wait_for_job(self, job: Union[str, int], *, timeout_secs: Optional[int] = None) -> JobView:
        """Waits for a job's end, and returns the job as it is then, or when the time is up. An
        array's number alone waits for all of its tasks, and returns one that has not ended, or
        else the first.
        """
        return self._call("GET", f"/v1/jobs/{self._segment(job)}/wait", query={"timeout_secs": timeout_secs})

    def list_kernel_tasks(self) -> KernelTasks:
        """Lists the tasks whose kernels were measured, latest first; at most 1,000. Users get
        only their own tasks.
        """
        return self._call("GET", "/v1/kernels")

    def show_task_kernels(self, *, task_key: str) -> TaskKernels:
        """Returns the kernels of one task, those with the most device time first."""
        return self._call("GET", "/v1/kernels/task", query={"task_key": task_key})

    def list_layout_changes(self, *, gpu: Optional[str] = None, limit: Optional[int] = None, cursor: Optional[str] = None) -> LayoutPlans:
        """Lists layout plans, newest first."""
        return self._call("GET", "/v1/layouts", query={"gpu": gpu, "limit": limit, "cursor": cursor})

    def get_layout_plan(self, plan: Union[str, int]) -> LayoutPlan:
        """Returns one layout plan."""
        return self._call("GET", f"/v1/layouts/{self._segment(plan)}")

    def list_node_certificates(self, *, node: Optional[str] = None) -> NodeCertificateList:
        """Lists nodes' certificates, newest first."""
        return self._call("GET", "/v1/node-certificates", query={"node": node})

    def list_nodes(self) -> NodeListing:
        """Lists the machines, by name."""
        return self._call("GET", "/v1/nodes")

    def get_node(self, name: Union[str, int]) -> NodeDetails:
        """Returns one machine."""
        return self._call("GET", f"/v1/nodes/{self._segment(name)}")

    def clear_node(self, name: Union[str, int], body: OperatorRequest) -> OperatorResult:
        """Clears the quarantine of a node that claimed numbers that the controller never
        assigned. Its agent has to be started again, with its own state.
        """
        return self._call("POST", f"/v1/nodes/{self._segment(name)}/clear", body=body)

    def doctor(self, name: Union[str, int]) -> DoctorReport:
        """Runs a node's checks: they find what keeps it from running jobs and partitioning its
        GPUs, and how to fix that.
        """
        return self._call("GET", f"/v1/nodes/{self._segment(name)}/doctor")

    def drain_node(self, name: Union[str, int], body: OperatorRequest) -> OperatorResult:
        """Drains a node: no new attempt starts there, and running ones finish. Draining it again
        is harmless.
        """
        return self._call("POST", f"/v1/nodes/{self._segment(name)}/drain", body=body)

    def invite_node(self, name: Union[str, int], body: InvitationRequest) -> NodeInvitation:
        """Invites a machine to join the cluster as a node. The token is returned only here, and
        is accepted once. A name that a node had before may be invited again: it keeps its
        history, and gets a new certificate.
        """
        return self._call("POST", f"/v1/nodes/{self._segment(name)}/invite", body=body)

    def revoke_node(self, name: Union[str, int]) -> NodeRevoked:
        """Revokes all certificates of a node: it is disconnected at once, and can join again only
        with another invitation. Its jobs end with its lease.
        """
        return self._call("POST", f"/v1/nodes/{self._segment(name)}/revoke")

    def undrain_node(self, name: Union[str, int], body: OperatorRequest) -> OperatorResult:
        """Ends the drain of a node: attempts may start there again."""
        return self._call("POST", f"/v1/nodes/{self._segment(name)}/undrain", body=body)

    def list_placement_rounds(self, *, since: Optional[str] = None, limit: Optional[int] = None, cursor: Optional[str] = None) -> RecordedRounds:
        """Lists recorded rounds of the placement, oldest first: what the policy saw, and what it
        decided.
        """
        return self._call("GET", "/v1/placement-rounds", query={"since": since, "limit": limit, "cursor": cursor})

    def show_power(self) -> PowerReport:
        """Returns the power cap, and what the GPUs are expected to draw at most."""
        return self._call("GET", "/v1/power")

    def show_predictions(self) -> PredictionReport:
        """Returns how accurate predictions of run times and of memory are, by their basis. Also
        returns which model of how slices compare is in use, with its error on tasks that it
        had not seen.
        """
        return self._call("GET", "/v1/predictions")

    def list_records(self, *, jobs: Optional[str] = None, user: Optional[str] = None, name: Optional[str] = None, recent_secs: Optional[int] = None, since: Optional[str] = None, until: Optional[str] = None, reasons: Optional[bool] = None, fold: Optional[bool] = None, specs: Optional[bool] = None, runs: Optional[bool] = None) -> JobRecords:
        """Lists jobs by number, many at once, with what they requested and their runs. A user
        gets the jobs of others, too, as in other batch systems, but without exit codes, runs
        and paths.
        """
        return self._call("GET", "/v1/records", query={"jobs": jobs, "user": user, "name": name, "recent_secs": recent_secs, "since": since, "until": until, "reasons": reasons, "fold": fold, "specs": specs, "runs": runs})

    def show_report(self, *, since: Optional[str] = None, until: Optional[str] = None, by: Optional[str] = None, user: Optional[str] = None) -> AccountingReport:
        """Adds up what attempts used in a period: time, slices, energy, waiting, and what was
        requested. A user gets the figures of their own jobs, and a coordinator those of the
        account's members.
        """
        return self._call("GET", "/v1/report", query={"since": since, "until": until, "by": by, "user": user})

    def list_series(self, *, since_secs: Optional[int] = None, points: Optional[int] = None) -> ClusterSeries:
        """Returns the figures of all GPUs over time."""
        return self._call("GET", "/v1/series", query={"since_secs": since_secs, "points": points})

    def list_tokens(self, *, user: Optional[str] = None, all: Optional[bool] = None) -> TokenList:
        """Lists personal tokens, newest first."""
        return self._call("GET", "/v1/tokens", query={"user": user, "all": all})

    def create_token(self, body: TokenRequest) -> TokenCreated:
        """Creates a personal token. Its secret is returned only here. A token can't create other
        tokens, unless it is an administrator's: access with a token that was found must end
        with its revocation.
        """
        return self._call("POST", "/v1/tokens", body=body)

    def revoke_token(self, token: Union[str, int]) -> TokenView:
        """Revokes a personal token: requests with it are refused from now on."""
        return self._call("DELETE", f"/v1/tokens/{self._segment(token)}")

    def show_usage(self) -> UsageReport:
        """Returns the recent usage of accounts and their users, what they hold now and may hold
        at once, and what that means for the order of the queue.
        """
        return self._call("GET", "/v1/usage")

    def who_am_i(self) -> WhoAmI:
        """Returns the caller's name and role."""
        return self._call("GET", "/v1/whoami")
