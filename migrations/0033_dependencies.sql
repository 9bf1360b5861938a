-- The jobs that a submission waits for: they are kept as long as a job waits for them. What the dependency
-- requires of them is in the specification.
ALTER TABLE submissions ADD COLUMN depends_on bigint[];

-- Few submissions wait for others, so that the index costs the others nothing.
CREATE INDEX submissions_depends_on ON submissions USING gin (depends_on) WHERE depends_on IS NOT NULL;
