-- Rounds in which the policy was asked and anything was committed: what it saw and what it said,
-- so that each can be decided again (crates/placement, record.rs).

CREATE TABLE placement_rounds (
    -- In the order of commits. Rounds that failed leave gaps.
    round  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT now(),
    epoch  bigint NOT NULL,
    -- Its place in its chain: 0 has everything, each other adds to the one before.
    number bigint NOT NULL CHECK (number >= 0),
    -- SHA-256 of what was decided, worked out as it was decided.
    digest bytea NOT NULL CHECK (length(digest) = 32),
    -- Length of the body, so that sums need not read it.
    bytes  integer NOT NULL CHECK (bytes = length(body)),
    -- The record as JSON, deflated (zlib).
    body   bytea NOT NULL
);
-- It is compressed already.
ALTER TABLE placement_rounds ALTER COLUMN body SET STORAGE EXTERNAL;
-- Where chains begin: readers start there, and old rounds go a chain at a time.
CREATE INDEX placement_rounds_chains ON placement_rounds (at) WHERE number = 0;
