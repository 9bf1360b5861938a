//! Tests of whole clusters: real daemons, PostgreSQL, sockets and jobs on simulated GPUs.
//!
//! They are one program, because each program has to be linked with every crate of the workspace. Tests that need the
//! machine for themselves, such as those of kernels' times, are separate programs.

mod admin_overrides;
mod agents;
mod backfill;
mod browser;
mod compute_instances;
mod control;
mod corpus;
mod database_rollback;
mod deadlines;
mod dependencies;
mod disk;
mod energy;
mod gangs;
mod hardware;
mod history;
mod idle_timeout;
mod job_updates;
mod layouts;
mod life;
mod lying_agent;
mod main_job;
mod memory;
mod migration;
mod model_training;
mod node_certificates;
mod notifications;
mod oidc;
mod options;
mod power;
mod predictions;
mod preemption;
mod quotas;
mod requests;
mod runbooks;
mod scheme_b;
mod sessions;
mod slurm_commands;
mod srun;
mod steps;
mod trace;
mod wait_reasons;
