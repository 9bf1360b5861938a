-- Jobs, attempts, nodes, GPUs, layouts and decisions.
--
-- States are words with a CHECK, so that a dump reads by itself. The invariants that no bug may
-- break are constraints: one live attempt a job, one live attempt a memory slice, one instance
-- a memory slice.

-- One row: which controller leads, until when on this database's clock. Every move of the
-- tables below happens in a transaction that holds the advisory lock 'tessera' shared and has
-- read its own epoch here; a takeover holds it exclusively.
CREATE TABLE leader (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch      bigint NOT NULL,
    controller uuid NOT NULL,
    expires_at timestamptz NOT NULL
);
INSERT INTO leader (epoch, controller, expires_at)
VALUES (0, '00000000-0000-0000-0000-000000000000', 'epoch');

CREATE TABLE nodes (
    node          uuid PRIMARY KEY,
    name          text NOT NULL UNIQUE,
    -- Rises whenever the node is declared lost: launches and leases of older generations are void.
    generation    bigint NOT NULL DEFAULT 1 CHECK (generation >= 1),
    lost          boolean NOT NULL DEFAULT false,
    boot          uuid NOT NULL,
    agent_version text NOT NULL,
    cores         integer NOT NULL,
    memory_bytes  bigint NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT now(),
    last_seen_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE gpus (
    gpu          text PRIMARY KEY,
    node         uuid NOT NULL REFERENCES nodes,
    gpu_index    integer NOT NULL,
    -- The newest plan ordered for this GPU.
    layout_gen   bigint NOT NULL DEFAULT 0,
    -- As the agent last reported it, whole.
    report       jsonb NOT NULL,
    reported_at  timestamptz NOT NULL DEFAULT now()
);

-- The memory slices that instances stand on, as last reported.
CREATE TABLE instance_slots (
    gpu        text NOT NULL REFERENCES gpus ON DELETE CASCADE,
    slot       smallint NOT NULL CHECK (slot BETWEEN 0 AND 63),
    start      smallint NOT NULL CHECK (start <= slot),
    profile_id integer NOT NULL,
    PRIMARY KEY (gpu, slot)
);

CREATE SEQUENCE job_number AS bigint;

-- One accepted submit: a job, or an array of jobs with one specification.
CREATE TABLE submissions (
    -- Number of its first (or only) job.
    first_job       bigint PRIMARY KEY CHECK (first_job > 0),
    tasks           integer NOT NULL CHECK (tasks > 0),
    -- Index of the first task; NULL for a single job.
    array_first     integer,
    job_name        text NOT NULL,
    user_name       text NOT NULL,
    -- Kept as it was written: nothing searches inside, and each job is stored once, read once.
    spec            json NOT NULL,
    traceparent     text,
    idempotency_key text,
    -- SHA-256 of the request, to tell a repeated submit from another one under its key.
    body_hash       bytea,
    accepted_at     timestamptz NOT NULL DEFAULT now(),
    CHECK ((idempotency_key IS NULL) = (body_hash IS NULL))
);
CREATE UNIQUE INDEX submissions_idempotency ON submissions (user_name, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

CREATE TABLE jobs (
    job            bigint PRIMARY KEY,
    -- Its submission, written by the very statement that writes the job; a foreign key would be
    -- checked row by row, and cost a tenth of all submits.
    submission     bigint NOT NULL,
    state          text NOT NULL CHECK (state IN (
                       'queued', 'held', 'placing', 'starting', 'running', 'stopping',
                       'succeeded', 'failed', 'cancelled', 'timed_out')),
    -- The live attempt; results that name another one don't move the job.
    attempt        uuid,
    -- The newest attempt, live or not.
    last_attempt   uuid,
    attempts       integer NOT NULL DEFAULT 0,
    -- Ends that used up one of the job's retries, and ends that were not its fault.
    charged        integer NOT NULL DEFAULT 0,
    uncharged      integer NOT NULL DEFAULT 0,
    restart_reason text,
    ended_at       timestamptz,
    CHECK ((attempt IS NOT NULL) = (state IN ('placing', 'starting', 'running', 'stopping'))),
    CHECK ((ended_at IS NOT NULL)
           = (state IN ('succeeded', 'failed', 'cancelled', 'timed_out')))
) WITH (fillfactor = 80);
CREATE INDEX jobs_unfinished ON jobs (job) WHERE ended_at IS NULL;
CREATE INDEX jobs_of_array ON jobs (submission) WHERE submission <> job;

CREATE TABLE decisions (
    decision uuid PRIMARY KEY,
    job      bigint NOT NULL,
    at       timestamptz NOT NULL DEFAULT now(),
    outcome  text NOT NULL CHECK (outcome IN ('start', 'wait')),
    reason   text,
    policy   text NOT NULL,
    epoch    bigint NOT NULL,
    -- Where it goes (NULL for a wait) and why: placement::Place and placement::Explanation.
    place    json,
    why      json NOT NULL
);
CREATE INDEX decisions_of_job ON decisions (job, at);

-- Begins a move: takes the guard for the transaction, then reads the epoch. A function, since
-- each of its statements sees the database as it is after the wait for the lock.
CREATE FUNCTION guarded_epoch(guard bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(guard);
    RETURN (SELECT epoch FROM leader);
END
$$;

CREATE TABLE attempts (
    attempt     uuid PRIMARY KEY,
    job         bigint NOT NULL,
    number      integer NOT NULL CHECK (number > 0),
    live        boolean NOT NULL DEFAULT true,
    state       text NOT NULL CHECK (state IN (
                    'placing', 'starting', 'running', 'stopping',
                    'succeeded', 'failed', 'cancelled', 'timed_out', 'out_of_memory',
                    'preempted', 'lost', 'launch_failed', 'not_started')),
    node        uuid NOT NULL REFERENCES nodes,
    generation  bigint NOT NULL,
    gpu         text NOT NULL,
    gpu_index   integer NOT NULL,
    -- First memory slice and profile; NULL for a whole GPU with MIG off.
    start       smallint,
    profile_id  integer,
    profile     text NOT NULL,
    -- The slice that it was launched on; NULL until the slice stands.
    slice       text,
    decision    uuid NOT NULL,
    placed_at   timestamptz NOT NULL DEFAULT now(),
    started_at  timestamptz,
    ended_at    timestamptz,
    exit_code   text,
    detail      text,
    user_ms     bigint,
    system_ms   bigint,
    max_rss     bigint,
    UNIQUE (job, number),
    CHECK (live = (state IN ('placing', 'starting', 'running', 'stopping'))),
    CHECK (live = (ended_at IS NULL))
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX attempts_one_live_per_job ON attempts (job) WHERE live;
CREATE INDEX attempts_live_on_node ON attempts (node) WHERE live;

-- The memory slices that live attempts hold; slot 0 stands for a whole GPU with MIG off.
CREATE TABLE attempt_slots (
    gpu     text NOT NULL,
    slot    smallint NOT NULL CHECK (slot BETWEEN 0 AND 63),
    attempt uuid NOT NULL,
    PRIMARY KEY (gpu, slot)
);
CREATE INDEX attempt_slots_of_attempt ON attempt_slots (attempt);

CREATE TABLE layout_changes (
    plan       uuid PRIMARY KEY,
    gpu        text NOT NULL,
    node       uuid NOT NULL REFERENCES nodes,
    layout_gen bigint NOT NULL,
    state      text NOT NULL CHECK (state IN ('ordered', 'done', 'failed', 'refused')),
    -- model::mig::Step, in order; and the same in words.
    steps      jsonb NOT NULL,
    steps_text text[] NOT NULL,
    job        bigint,
    attempt    uuid,
    decision   uuid,
    ordered_at timestamptz NOT NULL DEFAULT now(),
    ended_at   timestamptz,
    detail     text,
    UNIQUE (gpu, layout_gen),
    CHECK ((state = 'ordered') = (ended_at IS NULL))
);
-- One plan at a time on a GPU.
CREATE UNIQUE INDEX layout_changes_one_open ON layout_changes (gpu) WHERE state = 'ordered';
CREATE INDEX layout_changes_by_time ON layout_changes (ordered_at);

-- What people did to a job, and what is unusual; starts and ends stand with the attempts.
CREATE TABLE job_events (
    event bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job   bigint NOT NULL,
    at    timestamptz NOT NULL DEFAULT now(),
    state text NOT NULL,
    text  text NOT NULL
);
CREATE INDEX job_events_of_job ON job_events (job, event);
