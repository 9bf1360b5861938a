-- Names that the field uses: administrative overrides, layout plans, co-locations, memory estimates,
-- checkpoints, migrations and rollbacks. Only names and enumerated values change; no row is lost.

-- Administrative overrides of nodes, GPUs and slices.
ALTER TABLE operator_words RENAME TO admin_overrides;
ALTER TABLE admin_overrides RENAME COLUMN word TO kind;
ALTER TABLE admin_overrides RENAME COLUMN said_at TO set_at;
ALTER TABLE admin_overrides RENAME CONSTRAINT operator_words_word_check TO admin_overrides_kind_check;
ALTER TABLE admin_overrides RENAME CONSTRAINT operator_words_start_check TO admin_overrides_start_check;
ALTER TABLE admin_overrides RENAME CONSTRAINT operator_words_node_fkey TO admin_overrides_node_fkey;
ALTER TABLE admin_overrides RENAME CONSTRAINT operator_words_check TO admin_overrides_one_target;
ALTER TABLE admin_overrides RENAME CONSTRAINT operator_words_check1 TO admin_overrides_of_nodes;
ALTER TABLE admin_overrides RENAME CONSTRAINT operator_words_check2 TO admin_overrides_slice_is_whole;
ALTER TABLE admin_overrides RENAME CONSTRAINT operator_words_check3 TO admin_overrides_of_slices;
ALTER INDEX operator_words_once RENAME TO admin_overrides_once;

-- Layout plans; one that an administrator requested has the desired layout beside it.
ALTER TABLE layout_changes RENAME TO layout_plans;
ALTER TABLE layout_plans RENAME COLUMN wanted TO desired_layout;
ALTER TABLE layout_plans RENAME CONSTRAINT layout_changes_pkey TO layout_plans_pkey;
ALTER TABLE layout_plans RENAME CONSTRAINT layout_changes_node_fkey TO layout_plans_node_fkey;
ALTER TABLE layout_plans RENAME CONSTRAINT layout_changes_gpu_layout_gen_key TO layout_plans_gpu_layout_gen_key;
ALTER TABLE layout_plans RENAME CONSTRAINT layout_changes_state_check TO layout_plans_state_check;
ALTER TABLE layout_plans RENAME CONSTRAINT layout_changes_check TO layout_plans_open_has_no_end;
ALTER TABLE layout_plans RENAME CONSTRAINT layout_changes_check1 TO layout_plans_request_has_layout;
ALTER INDEX layout_changes_one_open RENAME TO layout_plans_one_open;
ALTER INDEX layout_changes_by_time RENAME TO layout_plans_by_time;

-- A rollback of the database to an earlier state (rule F14).
ALTER TABLE leader RENAME COLUMN generation_floor TO generation_min;
ALTER TABLE leader RENAME COLUMN set_back_epoch TO rollback_epoch;

-- A decision has a placement and an explanation; a running job is asked to migrate.
ALTER TABLE decisions RENAME COLUMN place TO placement;
ALTER TABLE decisions RENAME COLUMN why TO explanation;
ALTER TABLE decisions DROP CONSTRAINT decisions_outcome_check;
UPDATE decisions SET outcome = 'migrate' WHERE outcome = 'move';
ALTER TABLE decisions
    ADD CONSTRAINT decisions_outcome_check CHECK (outcome IN ('start', 'wait', 'migrate'));

-- Predictions of run times and of memory.
ALTER TABLE predictions RENAME COLUMN part TO compute_permille;
ALTER TABLE predictions RENAME COLUMN aside_ms TO checkpoint_ms;
ALTER TABLE predictions RENAME COLUMN moved_ms TO migration_ms;
ALTER TABLE predictions RENAME COLUMN memory_floor TO memory_estimate;
ALTER TABLE predictions RENAME COLUMN memory_at TO memory_outcome_at;
ALTER TABLE predictions RENAME CONSTRAINT predictions_part_check TO predictions_compute_permille_check;
ALTER TABLE predictions RENAME CONSTRAINT predictions_aside_ms_check TO predictions_checkpoint_ms_check;
ALTER TABLE predictions RENAME CONSTRAINT predictions_moved_ms_check TO predictions_migration_ms_check;
ALTER INDEX predictions_aside RENAME TO predictions_checkpoint;
ALTER INDEX predictions_moved RENAME TO predictions_migration;
ALTER INDEX predictions_learned RENAME TO predictions_outcome;
ALTER INDEX predictions_memory_known RENAME TO predictions_memory_outcome;

-- Co-locations: attempts that share a slice under MPS, with their predicted and measured speeds.
ALTER TABLE companies RENAME TO colocations;
ALTER TABLE colocations RENAME COLUMN part TO compute_permille;
ALTER TABLE colocations RENAME COLUMN busy TO busy_permille;
ALTER TABLE colocations RENAME COLUMN others TO corunners;
ALTER TABLE colocations RENAME COLUMN low TO speed_low;
ALTER TABLE colocations RENAME COLUMN speed TO speed_predicted;
ALTER TABLE colocations RENAME COLUMN high TO speed_high;
ALTER TABLE colocations RENAME COLUMN came TO speed_outcome;
ALTER TABLE colocations RENAME COLUMN beside TO corunners_outcome;
ALTER TABLE colocations RENAME COLUMN came_at TO outcome_at;
ALTER TABLE colocations RENAME CONSTRAINT companies_pkey TO colocations_pkey;
ALTER TABLE colocations RENAME CONSTRAINT companies_attempt_fkey TO colocations_attempt_fkey;
ALTER TABLE colocations RENAME CONSTRAINT companies_part_check TO colocations_compute_permille_check;
ALTER TABLE colocations RENAME CONSTRAINT companies_busy_check TO colocations_busy_permille_check;
ALTER TABLE colocations RENAME CONSTRAINT companies_others_check TO colocations_corunners_check;
ALTER TABLE colocations RENAME CONSTRAINT companies_low_check TO colocations_speed_low_check;
ALTER TABLE colocations RENAME CONSTRAINT companies_sm_percent_check TO colocations_sm_percent_check;
ALTER TABLE colocations RENAME CONSTRAINT companies_came_check TO colocations_speed_outcome_check;
ALTER TABLE colocations RENAME CONSTRAINT companies_beside_check TO colocations_corunners_outcome_check;
ALTER TABLE colocations RENAME CONSTRAINT companies_check TO colocations_interval;
ALTER TABLE colocations RENAME CONSTRAINT companies_check1 TO colocations_prediction_is_whole;
ALTER TABLE colocations RENAME CONSTRAINT companies_check2 TO colocations_outcome_is_whole;
ALTER INDEX companies_came RENAME TO colocations_outcome;

-- What a predictor is trained for.
ALTER TABLE predictors RENAME COLUMN about TO subject;
ALTER TABLE predictors DROP CONSTRAINT predictors_about_check;
UPDATE predictors SET subject = 'colocation' WHERE subject = 'company';
ALTER TABLE predictors
    ADD CONSTRAINT predictors_subject_check CHECK (subject IN ('slices', 'colocation'));
