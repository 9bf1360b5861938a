-- A size may come from a prediction: the job was moved before it ran out of memory.
ALTER TABLE attempts DROP CONSTRAINT attempts_size_source_check;
ALTER TABLE attempts ADD CONSTRAINT attempts_size_source_check CHECK (size_source IN (
    'out_of_memory', 'predicted', 'declared', 'learned', 'estimated', 'unknown')) NOT VALID;
ALTER TABLE attempts VALIDATE CONSTRAINT attempts_size_source_check;
