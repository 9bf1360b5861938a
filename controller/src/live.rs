//! Settings that a reload changes, in the form in which each part of the controller uses them.

use std::sync::Arc;
use std::time::Duration;

use tessera_control::ClusterState;
use tessera_control::accounts::Accounts;
use tessera_control::site::Site;
use tessera_model::sizing::MemoryPrediction;
use tessera_model::{Millis, RetentionTime};
use tessera_placement::power::PowerCap;
use tessera_placement::preemption::PreemptionRules;

use crate::clock;
use crate::host_names::HostNames;

/// What requests are compared with.
#[derive(Clone, Debug)]
pub struct LiveSettings {
    /// What users may hold at once.
    pub accounts: Accounts,
    /// What the terms of batch schedulers mean here.
    pub site: Site,
    /// The names by which this controller may be called.
    pub hosts: HostNames,
}

/// How long ended things are kept.
#[derive(Clone, Copy, Debug)]
pub struct RetentionTimes {
    /// Jobs and layout plans.
    pub history: RetentionTime,
    /// Recorded rounds.
    pub rounds: RetentionTime,
    /// The audit log.
    pub audit: RetentionTime,
}

/// The settings of rounds, except the accounts.
#[derive(Clone, Copy, Debug)]
pub struct PlacementSettings {
    /// How long a round may spend on improving placements.
    pub improve_for: Duration,
    /// How long a job runs before it may have to migrate.
    pub migration_cooldown: Millis,
    /// What is done about running jobs whose memory is predicted to exceed their slices.
    pub memory_prediction: MemoryPrediction,
    /// Which online jobs send offline jobs back to the queue.
    pub preemption: PreemptionRules,
    /// The most power that all GPUs may draw together.
    pub power_cap: Option<PowerCap>,
}

impl PlacementSettings {
    /// Lets a cluster state decide under these settings from now on.
    pub fn apply_to(self, cluster: &mut ClusterState) {
        cluster.set_improve_budget(self.improve_for, Arc::new(clock::Running::start()));
        cluster.set_migration_cooldown(self.migration_cooldown);
        cluster.set_memory_prediction(self.memory_prediction);
        cluster.set_preemption_rules(self.preemption);
        cluster.set_power_cap(self.power_cap);
    }
}
