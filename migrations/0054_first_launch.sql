-- What a job needs at least, as the first kernels of its attempts showed it.

ALTER TABLE jobs
    -- What an attempt of it had allocated before its first kernel, in bytes; the largest of all attempts.
    ADD COLUMN held_before_launch     bigint CHECK (held_before_launch > 0),
    -- Multiprocessors that this kernel needs for as few steps as the whole GPU allows.
    ADD COLUMN launch_multiprocessors integer CHECK (launch_multiprocessors > 0);

ALTER TABLE attempts DROP CONSTRAINT attempts_size_source_check;
ALTER TABLE attempts ADD CONSTRAINT attempts_size_source_check CHECK (size_source IN (
    'out_of_memory', 'predicted', 'declared', 'first_launch', 'learned', 'estimated', 'unknown')) NOT VALID;
ALTER TABLE attempts VALIDATE CONSTRAINT attempts_size_source_check;
