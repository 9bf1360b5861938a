-- A database that was set back to an earlier state (a restored backup, a failover to a replica that
-- lagged behind) must be noticed, and what was granted since must run out before anything is placed
-- (rule F14). Both are remembered here, so that restarts and takeovers neither forget nor repeat it.
ALTER TABLE leader
    -- The server that the newest leader found: pg_control_system() and the WAL's timeline.
    ADD COLUMN system           bigint,
    ADD COLUMN timeline         bigint,
    -- Nothing is placed before this moment on this database's clock.
    ADD COLUMN hold_until       timestamptz NOT NULL DEFAULT 'epoch',
    -- Nodes of lower generations are lost: what was granted to them is not known.
    ADD COLUMN generation_floor bigint NOT NULL DEFAULT 0,
    -- The epoch under which a set-back was last taken stock of: what is remembered elsewhere under
    -- lower epochs has been answered by it.
    ADD COLUMN set_back_epoch   bigint NOT NULL DEFAULT 0;
