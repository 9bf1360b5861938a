-- The kernel plane: slices whose sharers take turns kernel by kernel, and what is known of tasks.

-- Whether a node's agent has the kernel plane's shim.
ALTER TABLE nodes ADD COLUMN kernel boolean NOT NULL DEFAULT false;

-- A sharer that takes turns has memory and no percentage.
ALTER TABLE attempts
    DROP CONSTRAINT attempts_share,
    ADD CONSTRAINT attempts_share CHECK (sm_percent IS NULL OR share_bytes IS NOT NULL);

-- Sharers are of one kind: every job on a slice that takes turns stands in its queue.
ALTER TABLE attempt_slots
    ADD COLUMN kernel boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT attempt_slots_kernel CHECK (NOT kernel OR (tenant IS NOT NULL AND sm_percent = 0));

-- What is known of each task's kernels: exact sums, so that reports add up in any order.
CREATE TABLE kernel_profiles (
    task_key   text PRIMARY KEY CHECK (octet_length(task_key) BETWEEN 1 AND 4096),
    -- A TaskProfile as JSON. Bytes, because jsonb may not keep integers of 128 bits as they are.
    profile    bytea NOT NULL,
    kernels    integer NOT NULL CHECK (kernels >= 0),
    measured   boolean NOT NULL,
    reports    bigint NOT NULL DEFAULT 1 CHECK (reports >= 1),
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- The last report of each node that is in the profiles: a report that is repeated counts once.
CREATE TABLE kernel_reports (
    node   uuid PRIMARY KEY,
    number numeric(20) NOT NULL
);

-- What an attempt's processes did in their slice's queue, as last reported.
CREATE TABLE kernel_usage (
    attempt    uuid PRIMARY KEY REFERENCES attempts (attempt) ON DELETE CASCADE,
    figures    jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
