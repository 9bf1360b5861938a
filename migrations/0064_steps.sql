-- Steps: what `srun` started in an attempt. Its caller reports the start and the end of each, since the processes of a
-- step belong to it. A step that runs when its attempt ends has ended with it, and gets no end of its own.

CREATE TABLE steps (
    attempt    uuid NOT NULL REFERENCES attempts ON DELETE CASCADE,
    step       integer NOT NULL CHECK (step >= 0),
    name       text NOT NULL,
    tasks      integer NOT NULL CHECK (tasks > 0),
    -- Its nodes, such as n[1-2].
    nodes      text NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at   timestamptz,
    exit_code  text,
    user_ms    bigint CHECK (user_ms >= 0),
    system_ms  bigint CHECK (system_ms >= 0),
    max_rss    bigint CHECK (max_rss >= 0),
    PRIMARY KEY (attempt, step),
    CHECK ((ended_at IS NULL) = (exit_code IS NULL))
);
