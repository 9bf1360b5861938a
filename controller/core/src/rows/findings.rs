//! The results of a round's commit.

use std::collections::HashMap;

use tessera_model::JobId;
use tessera_model::dependency::{DependencyFacts, DependencyQuestion};
use tessera_model::life::JobState;

use super::snapshot::LaunchSpec;

/// The results of a commit, for the cluster state and for the callers.
#[derive(Debug, Default)]
pub struct CommitFindings {
    /// The launch specifications of the reserved jobs.
    pub launch_specs: HashMap<JobId, LaunchSpec>,
    /// The states of the commands' jobs after the commit, in the order of the commands; `None`
    /// where the job did not take the command.
    pub moved: Vec<Option<JobState>>,
    /// The states of the jobs that did not take their command.
    pub unmoved: HashMap<JobId, String>,
    /// The launch specifications of the released jobs.
    pub released: HashMap<JobId, LaunchSpec>,
    /// The answers to queries about jobs that others depend on.
    pub dependencies: Vec<(DependencyQuestion, DependencyFacts)>,
    /// Whether there are new notifications to deliver.
    pub has_notifications: bool,
}
