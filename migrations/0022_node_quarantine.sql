-- A node that claims what the controller never gave it is quarantined as a whole, until an operator clears it.
ALTER TABLE admin_overrides
    DROP CONSTRAINT admin_overrides_of_nodes,
    ADD CONSTRAINT admin_overrides_of_nodes CHECK (node IS NULL OR kind IN ('drained', 'quarantined'));
