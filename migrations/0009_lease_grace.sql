-- A controller that starts with a shorter lease must wait for what its forerunners granted: a node
-- that heard nothing since may run its attempts until then (rule F4).
ALTER TABLE leader
    -- How long after a renewal the newest leader gives a node up: its lease and the drift.
    ADD COLUMN lease_ms      bigint NOT NULL DEFAULT 0,
    -- What earlier leaders granted has run out by this moment of this database's clock.
    ADD COLUMN granted_until timestamptz NOT NULL DEFAULT 'epoch';
