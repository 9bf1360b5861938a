-- The size of a job: what its own attempts showed of its memory, and what each attempt was given.

ALTER TABLE jobs
    -- How often it ran out of GPU memory. Such an end is neither charged nor counted as uncharged.
    ADD COLUMN out_of_memory   integer NOT NULL DEFAULT 0 CHECK (out_of_memory >= 0),
    -- What it requests at least since then; no leader gives it less.
    ADD COLUMN memory_estimate bigint CHECK (memory_estimate > 0);

ALTER TABLE attempts
    -- The GPU memory that it may use: that of its slice, or its limit on a shared one. NULL for attempts of
    -- earlier versions, from which no size is learned.
    ADD COLUMN gpu_memory  bigint CHECK (gpu_memory >= 0),
    -- Where the size of its job came from.
    ADD COLUMN size_source text CHECK (
        size_source IN ('out_of_memory', 'declared', 'learned', 'estimated', 'unknown'));
