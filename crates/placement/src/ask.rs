//! One round, as a controller has it decided: first who names a compute instance, then gangs, around
//! the policy. All stand in one order, and draw on the same quotas.

use std::borrow::Cow;

use tessera_model::Millis;

use crate::decision::Decision;
use crate::fair::{Quotas, in_turn};
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
    let turns = in_turn(queue, forecast, policy.shares_fairly());
    let names_parts = |job: &QueuedJob| matches!(job.gpu, tessera_model::spec::GpuAsk::Compute(_));
    let special = turns.iter().any(|turn| turn.job.gang.is_some() || names_parts(turn.job));
    // Where there is nobody else, the policy sees to it alone.
    let mut quotas = match special {
        true => Quotas::of(cluster, forecast, turns.iter().map(|turn| turn.job)),
        false => None,
    };
    let parts::Table { mut decisions, started, others, benches } =
        parts::seat_in_turn(cluster, turns, quotas.as_mut(), starts_max);
    let left = starts_max.saturating_sub(started);
    let cluster = match quotas.is_some() && started > 0 {
        true => Cow::Owned(parts::laid_over(cluster, &benches)),
        false => Cow::Borrowed(cluster),
    };
    let asked = gangs::Asked { policy, cluster: &cluster, forecast, now, starts_max: left };
    decisions.extend(gangs::decide(asked, others, quotas));
    decisions
}
