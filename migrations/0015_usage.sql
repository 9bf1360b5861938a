-- What users had of late is read from the newest attempts as a leader begins. They end nearly in the
-- order of the table, so that an index of ranges is enough; it costs next to nothing to keep.
CREATE INDEX attempts_ended ON attempts USING brin (ended_at) WITH (pages_per_range = 16);
