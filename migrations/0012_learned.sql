-- What is learned of jobs that were moved, what of that outlives a controller, and terms of jobs that
-- their users change.

ALTER TABLE predictions
    -- How long an attempt ran that put its work aside: its job goes on elsewhere.
    ADD COLUMN aside_ms  bigint CHECK (aside_ms >= 0),
    -- How long the whole job would have taken on this slice, as far as its end told.
    ADD COLUMN useful_ms bigint CHECK (useful_ms >= 0),
    -- How long its job took from being asked to put its work aside to running here.
    ADD COLUMN moved_ms  bigint CHECK (moved_ms >= 0);

CREATE INDEX predictions_aside ON predictions (attempt) WHERE aside_ms IS NOT NULL;
CREATE INDEX predictions_moved ON predictions (attempt) WHERE moved_ms IS NOT NULL;
DROP INDEX predictions_learned;
CREATE INDEX predictions_learned ON predictions (ended_at) WHERE ended_at IS NOT NULL;

-- Times may follow from a model that learned from other tasks.
ALTER TABLE predictions
    DROP CONSTRAINT predictions_basis_check,
    ADD CONSTRAINT predictions_basis_check CHECK (
        basis IN ('same_slice', 'learned', 'other_slice', 'other_model', 'time_limit'));

-- What a job's user said last, where that is not what its specification says. No limit is 0.
ALTER TABLE jobs
    ADD COLUMN priority      smallint CHECK (priority BETWEEN 0 AND 9),
    ADD COLUMN time_limit_ms bigint CHECK (time_limit_ms >= 0);

-- Models that were trained, with their errors on tasks that they had not seen.
CREATE TABLE predictors (
    fingerprint    bigint PRIMARY KEY,
    learner        text NOT NULL,
    -- Pairs of slices that it learned from.
    rows           bigint NOT NULL CHECK (rows >= 0),
    -- Pairs that it was tested with; how far off it was, as a part, and how many lay in its interval.
    held_out_rows  bigint NOT NULL CHECK (held_out_rows >= 0),
    held_out_error double precision NOT NULL,
    covered        double precision NOT NULL,
    trained_at     timestamptz NOT NULL DEFAULT now()
);

-- Which model foretold an attempt; NULL where none did.
ALTER TABLE predictions ADD COLUMN model bigint;
