-- What operators say of nodes, GPUs and slices, and the layouts that they ask for.

-- In force until it is taken back: it outlives restarts, takeovers, and the instances themselves.
CREATE TABLE operator_words (
    word       text NOT NULL CHECK (word IN ('drained', 'quarantined', 'pinned')),
    -- Exactly one of them is named.
    node       uuid REFERENCES nodes,
    gpu        text,
    -- One instance of the GPU: its first memory slice and its profile.
    start      smallint CHECK (start BETWEEN 0 AND 63),
    profile_id integer,
    by_user    text NOT NULL,
    reason     text,
    said_at    timestamptz NOT NULL DEFAULT now(),
    CHECK ((node IS NULL) <> (gpu IS NULL)),
    CHECK (node IS NULL OR word = 'drained'),
    CHECK ((start IS NULL) = (profile_id IS NULL)),
    CHECK (start IS NULL OR (gpu IS NOT NULL AND word = 'quarantined'))
);
CREATE UNIQUE INDEX operator_words_once
    ON operator_words (word, node, gpu, start, profile_id) NULLS NOT DISTINCT;

-- What happened to the cluster's machines on somebody's word: who, what, why. Never changed.
CREATE TABLE cluster_events (
    event   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT now(),
    kind    text NOT NULL,
    node    text,
    gpu     text,
    by_user text,
    text    text NOT NULL
);

-- A layout that an operator asked for is a plan like any other, with its asker; it is carried
-- out to its end over restarts, so its goal is kept too: model::mig::Slot, all that shall stand.
ALTER TABLE layout_changes
    ADD COLUMN requested_by text,
    ADD COLUMN reason text,
    ADD COLUMN wanted jsonb,
    ADD COLUMN pin boolean NOT NULL DEFAULT false,
    ADD CHECK ((requested_by IS NULL) = (wanted IS NULL));
