-- The partition stands beside the specification, since lists of many jobs show it: reading it from the
-- specifications would parse each of them, with all of its environment.
ALTER TABLE submissions ADD COLUMN partition text;
UPDATE submissions SET partition = spec ->> 'partition' WHERE spec ->> 'partition' IS NOT NULL;
