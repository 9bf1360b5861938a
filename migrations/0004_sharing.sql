-- Slices that several jobs of one user share under NVIDIA's Multi-Process Service.

-- Whether a node has NVIDIA's MPS control program.
ALTER TABLE nodes ADD COLUMN mps boolean NOT NULL DEFAULT false;

-- What a job's user said last of its share; NULL: as its specification has it.
ALTER TABLE jobs ADD COLUMN sm_percent smallint CHECK (sm_percent BETWEEN 1 AND 100);

-- An attempt's part of its slice; NULL for one that has the slice to itself.
ALTER TABLE attempts
    ADD COLUMN sm_percent  smallint CHECK (sm_percent BETWEEN 1 AND 100),
    ADD COLUMN share_bytes bigint CHECK (share_bytes > 0),
    ADD CONSTRAINT attempts_share CHECK ((sm_percent IS NULL) = (share_bytes IS NULL)),
    DROP CONSTRAINT attempts_state_check,
    ADD CONSTRAINT attempts_state_check CHECK (state IN (
        'placing', 'starting', 'running', 'stopping',
        'succeeded', 'failed', 'cancelled', 'timed_out', 'out_of_memory',
        'preempted', 'lost', 'launch_failed', 'not_started', 'collateral'));

-- A memory slice is held by one exclusive attempt, or by one user's tenancy: the sums of what
-- its sharers were given, kept by the statements that give and take, and never above what is
-- there. The primary key (gpu, slot) keeps the two kinds, and two tenancies, apart.
ALTER TABLE attempt_slots
    ALTER COLUMN attempt DROP NOT NULL,
    ADD COLUMN tenant         text,
    -- First memory slice of the instance, and how many it has: its rows are changed together.
    ADD COLUMN start          smallint,
    ADD COLUMN size           smallint,
    ADD COLUMN sharers        integer CHECK (sharers BETWEEN 0 AND 48),
    ADD COLUMN sm_percent     integer CHECK (sm_percent BETWEEN 0 AND 100),
    ADD COLUMN memory_bytes   bigint CHECK (memory_bytes >= 0),
    ADD COLUMN capacity_bytes bigint,
    ADD CONSTRAINT attempt_slots_capacity CHECK (memory_bytes <= capacity_bytes),
    ADD CONSTRAINT attempt_slots_one_kind CHECK (
        num_nonnulls(tenant, start, size, sharers, sm_percent, memory_bytes, capacity_bytes)
        = CASE WHEN attempt IS NULL THEN 7 ELSE 0 END);
