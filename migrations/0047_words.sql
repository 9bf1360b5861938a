-- A layout plan that has not ended is open, as everywhere else in the code. Whose jobs share a slice is
-- their user.
DROP INDEX layout_plans_one_open;
ALTER TABLE layout_plans
    DROP CONSTRAINT layout_plans_state_check,
    DROP CONSTRAINT layout_plans_open_has_no_end;
UPDATE layout_plans SET state = 'open' WHERE state = 'ordered';
ALTER TABLE layout_plans
    ADD CONSTRAINT layout_plans_state_check CHECK (state IN ('open', 'done', 'failed', 'refused')),
    ADD CONSTRAINT layout_plans_open_has_no_end CHECK ((state = 'open') = (ended_at IS NULL));
CREATE UNIQUE INDEX layout_plans_one_open ON layout_plans (gpu) WHERE state = 'open';
ALTER TABLE layout_plans RENAME COLUMN ordered_at TO planned_at;
UPDATE cluster_events SET kind = 'layout_planned' WHERE kind = 'layout_ordered';
ALTER TABLE attempt_slots RENAME COLUMN tenant TO sharer;
-- Launches without a grant have that name in the totals, too.
UPDATE kernel_usage
   SET figures = (figures - 'unasked') || jsonb_build_object('ungranted', figures -> 'unasked')
 WHERE figures ? 'unasked';
