-- What users changed of a job since its submit, with the keys of its specification. One column for all
-- fields, so that a field that can be updated needs no column of its own.

ALTER TABLE jobs ADD COLUMN updates jsonb CHECK (jsonb_typeof(updates) = 'object');

UPDATE jobs
   SET updates = jsonb_strip_nulls(jsonb_build_object('priority', priority))
              || CASE WHEN time_limit_ms IS NULL THEN '{}'
                      ELSE jsonb_build_object('time_limit', NULLIF(time_limit_ms, 0)) END
 WHERE priority IS NOT NULL OR time_limit_ms IS NOT NULL;

ALTER TABLE jobs DROP COLUMN priority, DROP COLUMN time_limit_ms;
