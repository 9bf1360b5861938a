-- GPU instances that are cut into several compute instances, each with a job of its own.

-- Which compute instance an attempt has; NULL for one that has its GPU instance, or a share of it.
ALTER TABLE attempts
    ADD COLUMN compute_start  smallint CHECK (compute_start BETWEEN 0 AND 7),
    ADD COLUMN compute_slices smallint CHECK (compute_slices BETWEEN 1 AND 8),
    ADD CONSTRAINT attempts_compute CHECK (
        num_nonnulls(compute_start, compute_slices) = 0
        OR (num_nonnulls(compute_start, compute_slices, start, share_bytes) = 4
            AND sm_percent IS NULL));

-- One live attempt a compute instance.
CREATE UNIQUE INDEX attempts_one_a_compute_instance ON attempts (gpu, start, compute_start)
    WHERE live AND compute_start IS NOT NULL;

-- They hold their GPU instance's memory together, as sharers do, and nobody else is among them.
ALTER TABLE attempt_slots
    ADD COLUMN compute boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT attempt_slots_compute CHECK (
        NOT compute OR (tenant IS NOT NULL AND sm_percent = 0 AND NOT kernel));
