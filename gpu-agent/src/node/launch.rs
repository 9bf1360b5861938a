//! From a launch order to a shepherd.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use tessera_frames::cluster::{GpuHealth, InstanceTrouble, LaunchOrder, MigReport};
use tessera_model::life::Outcome;
use tessera_model::spec::{JobProgram, OutputPaths, RunSpec};

use super::AgentNode;
use crate::shepherd::files;
use crate::shepherd::job::never_ran;
use crate::shepherd::protocol::SpawnOrder;
use tessera_agent_core::attempts::PlacementRefusal;
use tessera_agent_core::environment::environment;
use tessera_agent_core::ledger::AttemptFacts;
use tessera_agent_core::output;

impl AgentNode {
    pub(super) fn launch(&mut self, order: Box<LaunchOrder>) {
        let facts = AttemptFacts {
            attempt: order.attempt,
            job: order.job,
            generation: order.generation,
            gpu: order.gpu.clone(),
            slot: order.slot,
            traceparent: order.traceparent.clone(),
        };
        let placement = self.check_placement(&order).and_then(|()| check_port(&order));
        let effects = self.attempts.launch(order, facts, placement, self.standing());
        self.act(effects);
    }

    /// Checks that the slice is still the one that was meant (G11).
    fn check_placement(&self, order: &LaunchOrder) -> Result<(), PlacementRefusal> {
        let gpu = self.gpus.get(&order.gpu);
        let gpu = gpu.ok_or_else(|| PlacementRefusal::NoGpu(order.gpu.clone()))?;
        match &gpu.health {
            GpuHealth::Healthy => {}
            GpuHealth::Unresponsive => return Err(PlacementRefusal::Unresponsive),
            GpuHealth::Faulty { reason } => {
                return Err(PlacementRefusal::Faulty { reason: reason.clone() });
            }
        }
        if let Some(quarantine) = &gpu.quarantine {
            return Err(PlacementRefusal::Quarantined { reason: quarantine.reason.clone() });
        }
        let Some(slot) = order.slot else {
            return match gpu.mig {
                MigReport::On { .. } => Err(PlacementRefusal::Partitioned),
                MigReport::Off | MigReport::Unsupported
                    if order.slice.as_str() != order.gpu.as_str() =>
                {
                    Err(PlacementRefusal::NotWhole(order.slice.clone()))
                }
                MigReport::Off | MigReport::Unsupported => Ok(()),
            };
        };
        if self.plans.get(&order.gpu).is_some_and(|(_, leaving)| leaving.contains(&slot)) {
            return Err(PlacementRefusal::Leaving);
        }
        let instance = gpu.instances.iter().find(|instance| instance.slot == slot);
        if let Some(InstanceTrouble::Stuck { reason }) = instance.and_then(|i| i.trouble.as_ref()) {
            return Err(PlacementRefusal::Stuck { reason: reason.clone() });
        }
        let instance = instance.ok_or(PlacementRefusal::Gone)?;
        let parts = || instance.parts.iter().filter_map(|part| part.slice.as_ref());
        match &instance.slice {
            Some(slice) if *slice == order.slice => Ok(()),
            Some(slice) => Err(PlacementRefusal::Replaced(slice.clone())),
            None if parts().any(|slice| *slice == order.slice) => Ok(()),
            None if instance.parts.is_empty() => Err(PlacementRefusal::HalfMade),
            None => {
                let there: Vec<_> = parts().map(ToString::to_string).collect();
                Err(PlacementRefusal::Cut { parts: there.join(", ") })
            }
        }
    }

    pub(super) fn spawn(&mut self, order: LaunchOrder) {
        if self.mps_share_of(&order).is_some() {
            self.request_share(order);
        } else {
            self.admit_and_start(order, Vec::new(), Vec::new());
        }
    }

    /// Hands an attempt to a shepherd, with what its share of a slice adds.
    pub(super) fn hand_over(
        &mut self,
        mut order: LaunchOrder,
        more: Vec<(String, String)>,
        before_kill: Vec<String>,
    ) {
        let attempt = order.attempt;
        order.traceparent = self.launches.begin(&order);
        let (mut order, script) = self.spawn_order(order);
        // These override the user's variables, so that no user can widen his share.
        order.run.env.extend(more);
        order.before_kill = before_kill;
        if let Err(error) = self.pool.assign(order, script) {
            self.give_share_back(attempt);
            let record = never_ran(Outcome::NotStarted, error.to_string());
            let effects = self.attempts.end_here(attempt, record);
            self.act(effects);
        }
    }

    fn spawn_order(&self, order: LaunchOrder) -> (SpawnOrder, Option<String>) {
        let own = files::folder(&self.facts.data, order.attempt);
        let base = order.run.work_dir.as_ref().map_or(own, PathBuf::from);
        let name = &self.facts.name;
        let path = |pattern: &Option<String>| {
            pattern.as_ref().map(|pattern| output::expand(pattern, &order, name, &base))
        };
        let output = OutputPaths {
            stdout: path(&order.run.output.stdout),
            stderr: path(&order.run.output.stderr),
        };
        let env = match self.gpus.get(&order.gpu) {
            Some(gpu) => environment(&order, name, gpu, &self.facts.environment),
            None => BTreeMap::new(),
        };
        let (program, script) = match order.run.program {
            JobProgram::Command(command) => (JobProgram::Command(command), None),
            JobProgram::Script(text) => (JobProgram::Script(String::new()), Some(text)),
        };
        let spawn = SpawnOrder {
            attempt: order.attempt,
            job: order.job,
            number: order.number,
            generation: order.generation,
            gpu: order.gpu,
            slot: order.slot,
            run: RunSpec { program, env, output, ..order.run },
            // Tasks of an array may share a file, and so may the members of a gang.
            append: order.number > 1 || order.array.is_some() || order.gang.is_some(),
            before_kill: Vec::new(),
        };
        (spawn, script)
    }
}

/// Makes sure that nobody uses the port at which a gang is to meet on this node. A refused launch
/// costs the gang nothing, and its next try meets at another port.
fn check_port(order: &LaunchOrder) -> Result<(), PlacementRefusal> {
    let Some(gang) = order.gang.as_ref().filter(|gang| gang.rank == 0) else { return Ok(()) };
    match TcpListener::bind((Ipv4Addr::UNSPECIFIED, gang.port)) {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(PlacementRefusal::PortTaken { port: gang.port, cause: error.to_string() })
        }
    }
}
