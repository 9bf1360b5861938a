-- What was foretold of the memory of attempts whose jobs name none, and what came of it.

ALTER TABLE predictions
    -- By how many runs, between what, what was asked for, and whether that was a cautious figure.
    ADD COLUMN memory_runs     integer CHECK (memory_runs >= 0),
    ADD COLUMN memory_low      bigint CHECK (memory_low >= 0),
    ADD COLUMN memory_floor    bigint,
    ADD COLUMN memory_high     bigint,
    ADD COLUMN memory_cautious boolean,
    -- The memory of its slice, if the attempt ran out of that. What one that ended well had stands with
    -- the attempt itself.
    ADD COLUMN ran_out_of      bigint CHECK (ran_out_of >= 0),
    -- When either was known: then it is learned from. NULL until then.
    ADD COLUMN memory_at       timestamptz,
    ADD CONSTRAINT predictions_memory CHECK (memory_low <= memory_floor AND memory_floor <= memory_high),
    ADD CONSTRAINT predictions_memory_whole CHECK (
        num_nulls(memory_runs, memory_low, memory_floor, memory_high, memory_cautious) IN (0, 5));

UPDATE predictions AS p
   SET memory_at = p.ended_at
  FROM attempts AS a
 WHERE a.attempt = p.attempt AND p.ended_at IS NOT NULL AND a.peak_gpu_memory > 0;

CREATE INDEX predictions_memory_known ON predictions (memory_at) WHERE memory_at IS NOT NULL;
