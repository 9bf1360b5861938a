-- Offline jobs that are sent back to the queue for online jobs.

CREATE TABLE preemptions (
    attempt      uuid PRIMARY KEY REFERENCES attempts ON DELETE CASCADE,
    job          bigint NOT NULL,
    -- The job that gets the place.
    by_job       bigint NOT NULL,
    -- Whether the attempt's work is kept in a checkpoint.
    saves        boolean NOT NULL,
    -- The place that is kept for the other job.
    placement    jsonb NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT now(),
    ended_at     timestamptz,
    outcome      text CHECK (outcome IN ('sent_back', 'ended')),
    CHECK ((ended_at IS NULL) = (outcome IS NULL))
);

CREATE INDEX preemptions_job ON preemptions (job);

-- A new leader repeats the requests whose attempts have not ended.
CREATE INDEX preemptions_open ON preemptions (attempt) WHERE outcome IS NULL;

ALTER TABLE attempts
    -- Time at its start and at its end that no account is charged for, in milliseconds.
    ADD COLUMN uncharged_start_ms bigint NOT NULL DEFAULT 0 CHECK (uncharged_start_ms >= 0),
    ADD COLUMN uncharged_end_ms   bigint NOT NULL DEFAULT 0 CHECK (uncharged_end_ms >= 0);

ALTER TABLE decisions DROP CONSTRAINT decisions_outcome_check;
ALTER TABLE decisions ADD CONSTRAINT decisions_outcome_check
    CHECK (outcome IN ('start', 'wait', 'migrate', 'preempt')) NOT VALID;
ALTER TABLE decisions VALIDATE CONSTRAINT decisions_outcome_check;
