-- What was predicted of the memory of running attempts, and what came of it.

CREATE TABLE memory_growths (
    attempt     uuid PRIMARY KEY REFERENCES attempts ON DELETE CASCADE,
    job         bigint NOT NULL,
    -- The GPU memory that the attempt may use.
    capacity    bigint NOT NULL CHECK (capacity >= 0),
    -- The prediction as it was first reported; NULL if no growth beyond the capacity was predicted.
    forecast    jsonb,
    forecast_at timestamptz,
    -- When its job was requested to go on with more memory.
    moved_at    timestamptz,
    outcome     text CHECK (outcome IN ('true', 'false', 'missed', 'late')),
    -- Its memory over time, at its end.
    curve       jsonb,
    CHECK ((forecast IS NULL) = (forecast_at IS NULL)),
    CHECK (moved_at IS NULL OR forecast IS NOT NULL)
);

CREATE INDEX memory_growths_job ON memory_growths (job);

-- A new leader reads those whose outcome is open.
CREATE INDEX memory_growths_open ON memory_growths (job)
    WHERE outcome IS NULL AND forecast IS NOT NULL;
