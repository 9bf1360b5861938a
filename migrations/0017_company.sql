-- How attempts that share a slice under MPS did beside the others there: what the forest of speeds
-- learns from, what it foretold, and what came of that.

CREATE TABLE companies (
    attempt    uuid PRIMARY KEY REFERENCES attempts (attempt) ON DELETE CASCADE,
    task       text NOT NULL,
    gpu_model  text NOT NULL,
    profile    text NOT NULL,
    -- Its slice's part of the card's compute, in thousandths.
    part       smallint NOT NULL CHECK (part BETWEEN 0 AND 1000),
    sm_percent smallint NOT NULL CHECK (sm_percent BETWEEN 1 AND 100),
    -- Whether somebody waits for its answers.
    online     boolean NOT NULL,
    -- The part of its time alone in which its kernels run, in thousandths, as far as that was known.
    busy       smallint CHECK (busy BETWEEN 0 AND 1000),
    -- How many were on the slice as it came.
    others     smallint NOT NULL CHECK (others >= 0),
    -- Its speed beside them, in thousandths of that alone on such a slice; NULL where no model said.
    low        integer CHECK (low >= 0),
    speed      integer,
    high       integer,
    model      bigint,
    -- What came: its speed over its whole run, and how many others were there on average, in
    -- thousandths. NULL until that is worked out.
    came       integer CHECK (came >= 0),
    beside     integer CHECK (beside >= 0),
    came_at    timestamptz,
    CHECK (low <= speed AND speed <= high),
    CHECK (num_nulls(low, speed, high, model) IN (0, 4)),
    CHECK (num_nulls(came, beside, came_at) IN (0, 3))
);
CREATE INDEX companies_came ON companies (came_at) WHERE came_at IS NOT NULL;

-- What a model tells: the trees how slices compare, the forest how fast a job is beside others.
ALTER TABLE predictors ADD COLUMN about text NOT NULL DEFAULT 'slices' CHECK (about IN ('slices', 'company'));
