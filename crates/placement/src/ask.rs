//! One round, as a controller has it decided: first who names a compute instance, then gangs, around
//! the policy.

use tessera_model::Millis;

use crate::decision::Decision;
use crate::forecast::Forecast;
use crate::gangs;
use crate::parts;
use crate::policy::Policy;
use crate::view::{ClusterView, QueuedJob};

/// Decides one round about the jobs of a queue, in service order; at most `starts_max` start.
pub fn ask(
    policy: &dyn Policy,
    cluster: &ClusterView,
    forecast: &dyn Forecast,
    queue: &mut dyn Iterator<Item = &QueuedJob>,
    now: Millis,
    starts_max: usize,
) -> Vec<Decision> {
    let mut seated = parts::seat(cluster, queue, starts_max);
    let mut decisions = std::mem::take(&mut seated.decisions);
    let left = starts_max.saturating_sub(seated.started);
    decisions.extend(gangs::decide(policy, cluster, forecast, seated.others, now, left));
    decisions
}
