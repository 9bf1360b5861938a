-- Jobs that ended in a period. Each row of the index of ranges before it cost each submitted job a tenth of its
-- insert; jobs that have not ended cost this one nothing.
DROP INDEX jobs_ended;
CREATE INDEX jobs_ended ON jobs (ended_at) WHERE ended_at IS NOT NULL;
