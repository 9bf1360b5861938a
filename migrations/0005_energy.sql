-- What attempts used of their GPUs, as their nodes measured it; NULL until told, or where no
-- reading covers it. Told apart from the attempt's end, since it takes one more sample of the
-- card: the node repeats it until it is committed.

ALTER TABLE attempts
    -- Energy that it bore of its card's, in millijoules.
    ADD COLUMN energy_mj       bigint CHECK (energy_mj >= 0),
    -- The most GPU memory that it was seen to have, in bytes.
    ADD COLUMN peak_gpu_memory bigint CHECK (peak_gpu_memory >= 0);
