-- Times on a GPU model may follow from runs on another one, and from tasks that ran on both.
ALTER TABLE predictions
    DROP CONSTRAINT predictions_basis_check,
    ADD CONSTRAINT predictions_basis_check CHECK (
        basis IN ('same_slice', 'learned', 'compared_models', 'other_slice', 'other_model', 'time_limit'));
