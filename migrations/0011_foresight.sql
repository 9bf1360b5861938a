-- What is foretold of jobs, and what came of it.

-- What placement weighs of a submission besides its ask: its task's key, its time limit, whether it
-- can put its work aside, its class. Apart from the specification, so that the queue is read without
-- reading scripts. NULL for what was submitted before there was anything to weigh.
ALTER TABLE submissions ADD COLUMN facts jsonb;

-- How much of a job's work its earlier attempts put aside, in millionths, as far as is known.
ALTER TABLE jobs ADD COLUMN done_ppm integer NOT NULL DEFAULT 0 CHECK (done_ppm BETWEEN 0 AND 1000000);

-- Running jobs may be asked to move.
ALTER TABLE decisions
    DROP CONSTRAINT decisions_outcome_check,
    ADD CONSTRAINT decisions_outcome_check CHECK (outcome IN ('start', 'wait', 'move'));

-- What was foretold of each attempt that has a slice to itself, and what came of it.
CREATE TABLE predictions (
    attempt     uuid PRIMARY KEY REFERENCES attempts (attempt) ON DELETE CASCADE,
    task        text NOT NULL,
    gpu_model   text NOT NULL,
    profile     text NOT NULL,
    -- Its slice's part of the card's compute, in thousandths.
    part        smallint NOT NULL CHECK (part BETWEEN 0 AND 1000),
    -- Whether the attempt has the whole job before it: then its time is learned.
    whole       boolean NOT NULL,
    -- Nothing was known where there is no basis.
    basis       text CHECK (basis IN ('same_slice', 'other_slice', 'other_model', 'time_limit')),
    runs        integer,
    low_ms      bigint,
    expected_ms bigint,
    high_ms     bigint,
    -- NULL until the attempt has come to its job's end.
    ran_ms      bigint CHECK (ran_ms >= 0),
    ended_at    timestamptz,
    CHECK ((basis IS NULL) = (expected_ms IS NULL)),
    CHECK (low_ms <= expected_ms AND expected_ms <= high_ms),
    CHECK ((ran_ms IS NULL) = (ended_at IS NULL))
);
CREATE INDEX predictions_learned ON predictions (ended_at) WHERE whole AND ended_at IS NOT NULL;
