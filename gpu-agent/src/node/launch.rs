//! From a launch order to a shepherd.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use rustix::process::geteuid;
use tessera_agent_core::container::{self, ContainerGround};
use tessera_frames::cluster::{ExitRecord, GpuHealth, InstanceTrouble, LaunchOrder, MigReport};
use tessera_frames::kernel::variables;
use tessera_model::batch::{BatchRules, OpenMode};
use tessera_model::life::Outcome;
use tessera_model::mig::Slot;
use tessera_model::spec::{JobProgram, OutputPaths, RunSpec};
use tessera_model::{AttemptId, GpuId};

use super::AgentNode;
use crate::accounts::JobAccount;
use crate::calls;
use crate::companion;
use crate::container::RUNNER_VARIABLE;
use crate::messages::account::LookupResult;
use crate::messages::gpu::GpuNumbers;
use crate::shepherd::files::{self, NOWHERE};
use crate::shepherd::job::{STEP_HOST, never_ran};
use crate::shepherd::protocol::{AccountNumbers, SpawnOrder};
use crate::sys::clock;
use tessera_agent_core::attempts::PlacementRefusal;
use tessera_agent_core::environment::environment;
use tessera_agent_core::ledger::AttemptFacts;
use tessera_agent_core::output;

impl AgentNode {
    /// Handles a launch. Until its account is known it counts as not arrived: the controller
    /// repeats it, and a request to end the attempt in the meantime ends it permanently.
    pub(super) fn launch(&mut self, order: Box<LaunchOrder>) {
        let now = clock::boot_now();
        let resolved = self.accounts.resolve(&self.facts.accounts, *order, now, &self.inputs);
        if let Some((order, account)) = resolved {
            self.launch_as(Box::new(order), account);
        }
    }

    pub(super) fn on_account(&mut self, name: String, found: LookupResult) {
        for order in self.accounts.found(name, found, clock::boot_now()) {
            if self.obeys(order.epoch) {
                let account = self.accounts.decide(&self.facts.accounts, &order.user);
                self.launch_as(Box::new(order), account);
            }
        }
    }

    /// Refuses what would fail in a less clear way: only root and a launcher with setuid start the daemon of a shared slice
    /// as its user.
    fn check_sharing(
        &self,
        order: &LaunchOrder,
        account: JobAccount,
    ) -> Result<JobAccount, PlacementRefusal> {
        let needs_daemon = self.mps_share_of(order).is_some();
        match needs_daemon && account.confinement.account.is_some() && !self.facts.accounts.serves_mps() {
            false => Ok(account),
            true => Err(PlacementRefusal::Account {
                by_job: true,
                reason:
                    "this node's agent isn't root, and its launcher starts no MPS for other accounts: \
                     submit without --share mps, or install tessera-launch as docs/launching.md describes"
                        .to_owned(),
            }),
        }
    }

    fn launch_as(
        &mut self,
        order: Box<LaunchOrder>,
        account: Result<JobAccount, PlacementRefusal>,
    ) {
        let facts = AttemptFacts {
            attempt: order.attempt,
            job: order.job,
            generation: order.generation,
            gpu: order.gpu.clone(),
            slot: order.slot,
            traceparent: order.traceparent.clone(),
        };
        let attempt = order.attempt;
        let known =
            account.and_then(|account| self.check_sharing(&order, account)).map(|account| {
                // An attempt that is alive has its account already.
                if !self.attempts.is_alive(attempt) {
                    self.job_accounts.insert(attempt, account);
                }
            });
        let placement =
            known.and_then(|()| self.check_placement(&order)).and_then(|()| check_port(&order));
        if placement.is_err() {
            self.job_accounts.remove(&attempt);
        }
        let effects = self.attempts.launch(order, facts, placement, self.standing());
        self.act(effects);
    }

    /// Checks that the slice is still the intended one (G11).
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

    /// Returns the account of an attempt that has no shepherd yet; `None` for the agent's own.
    pub(super) fn account_of(&self, attempt: AttemptId) -> Option<&AccountNumbers> {
        self.job_accounts.get(&attempt)?.confinement.account.as_ref()
    }

    pub(super) fn spawn(&mut self, order: LaunchOrder) {
        if self.mps_share_of(&order).is_some() {
            self.request_share(order);
        } else {
            self.admit_and_start(order, Vec::new(), Vec::new());
        }
    }

    /// Gives an attempt to a shepherd, with what its share of a slice adds.
    pub(super) fn hand_over(
        &mut self,
        mut order: LaunchOrder,
        more: Vec<(String, String)>,
        before_kill: Vec<String>,
    ) {
        let attempt = order.attempt;
        order.traceparent = self.launches.begin(&order);
        // Looked up before the attempt was journalled.
        let Some(account) = self.job_accounts.remove(&attempt) else {
            self.give_share_back(attempt);
            let record = never_ran(Outcome::NotStarted, "its account is not known".to_owned());
            let effects = self.attempts.end_here(attempt, record);
            self.act(effects);
            return;
        };
        let held = held_numbers(&order, &self.gpu_numbers);
        let (mut order, script) = self.spawn_order(order, account);
        // These override the user's variables, so that no user can enlarge their share.
        order.run.env.extend(more);
        order.before_kill = before_kill;
        if let Err(record) = self.plan_container(&mut order, &held) {
            self.give_share_back(attempt);
            let effects = self.attempts.end_here(attempt, *record);
            self.act(effects);
            return;
        }
        if let Err(error) = self.pool.assign(order, script) {
            self.give_share_back(attempt);
            let record = never_ran(Outcome::NotStarted, error.to_string());
            let effects = self.attempts.end_here(attempt, record);
            self.act(effects);
        }
    }

    /// Plans the attempt's container, if it has one, and describes its slice for it.
    fn plan_container(
        &mut self,
        order: &mut SpawnOrder,
        held: &[(GpuNumbers, Option<Slot>)],
    ) -> Result<(), Box<ExitRecord>> {
        let Some(rules) = &order.run.container else { return Ok(()) };
        let by_job = |detail: String| Box::new(never_ran(Outcome::LaunchFailed, detail));
        let held: Vec<_> = held.iter().map(|(gpu, slot)| (gpu, *slot)).collect();
        let visible = order.run.env.get("CUDA_VISIBLE_DEVICES").map_or("", String::as_str);
        let containers = &self.facts.containers;
        let account = &order.confinement.account;
        let own_uid = geteuid().as_raw();
        let is_root = account.as_ref().map_or(own_uid, |account| account.uid) == 0;
        let is_foreign = account.is_some();
        let own = files::work_folder(&self.facts.data, order.attempt, is_foreign);
        let ground = ContainerGround {
            own: &own.display().to_string(),
            work_dir: order.run.work_dir.as_deref(),
            env: &order.run.env,
            companion: order.companion.as_deref(),
            device: None,
            private_tmp: order.confinement.private_tmp,
        };
        // Checked before anything is written.
        container::plan(rules, &containers.runtimes, is_root, ground.clone())
            .map_err(|refused| by_job(refused.to_string()))?;
        let device = containers.describe(order.attempt, &held, visible).map_err(|error| {
            let folder = containers.cdi_folder().display();
            let detail = format!("the node could not describe the slice in {folder}: {error}");
            Box::new(never_ran(Outcome::NotStarted, detail))
        })?;
        if device.is_some() {
            self.described.insert(order.attempt);
        }
        let ground = ContainerGround { device, ..ground };
        let planned = container::plan(rules, &containers.runtimes, is_root, ground);
        order.container = Some(planned.map_err(|refused| by_job(refused.to_string()))?);
        Ok(())
    }

    /// Removes the descriptions of slices whose attempts are over.
    pub(super) fn forget_described(&mut self) {
        let (attempts, containers) = (&self.attempts, &self.facts.containers);
        self.described.retain(|attempt| {
            let alive = attempts.is_alive(*attempt);
            if !alive {
                containers.forget(*attempt);
            }
            alive
        });
    }

    fn spawn_order(
        &self,
        mut order: LaunchOrder,
        mut account: JobAccount,
    ) -> (SpawnOrder, Option<String>) {
        let held = order.gang.as_ref().filter(|gang| gang.is_held_for_another());
        let has_steps = held.map(|gang| gang.local_rank == 0);
        if let Some(has_steps) = has_steps {
            hold_slice(&mut order.run, has_steps);
        }
        let held: Vec<_> = held_gpus(&order)
            .filter_map(|(gpu, slot)| Some((self.gpu_numbers.get(gpu)?, slot)))
            .collect();
        if !held.is_empty() {
            self.facts.accounts.guard_devices(&mut account, &held);
        }
        let is_foreign = account.confinement.account.is_some();
        let own = files::work_folder(&self.facts.data, order.attempt, is_foreign);
        let base = order.run.work_dir.as_ref().map_or(own, PathBuf::from);
        let name = &self.facts.name;
        let path = |pattern: &Option<String>| {
            pattern.as_ref().map(|pattern| output::expand(pattern, &order, name, &base))
        };
        let output = OutputPaths {
            stdout: path(&order.run.output.stdout),
            stderr: path(&order.run.output.stderr),
        };
        let input = path(&order.run.input);
        let mut around = self.facts.environment.clone();
        let variables = account.variables.into_iter();
        around.base.extend(variables.map(|(name, value)| (name.to_owned(), value)));
        let mut env = match self.gpus.get(&order.gpu) {
            Some(gpu) => environment(&order, name, gpu, &around),
            None => BTreeMap::new(),
        };
        let is_off = env.get("TESSERA_COMPANION").is_some_and(|value| companion::is_off(value));
        let companion = self.facts.companion.clone().filter(|_| !is_off);
        let watch = self.watch_of(&env);
        let indexes = held_gpus(&order).filter_map(|(gpu, _)| self.gpus.get(gpu));
        let indexes: Vec<String> = indexes.map(|gpu| gpu.index.to_string()).collect();
        env.insert("SLURM_JOB_GPUS".to_owned(), indexes.join(","));
        let calls = calls::socket_path(&self.facts.data).display().to_string();
        env.insert("TESSERA_CALLS".to_owned(), calls);
        env.insert(RUNNER_VARIABLE.to_owned(), self.facts.containers.runner.clone());
        if has_steps == Some(true) {
            env.insert(STEP_HOST.to_owned(), "1".to_owned());
        }
        // Tasks of an array may share a file, and so may the members of a gang.
        let shares_files = order.array.is_some() || order.gang.is_some();
        let append = match order.run.batch.open_mode {
            Some(OpenMode::Append) => true,
            Some(OpenMode::Truncate) => false,
            None => order.number > 1 || shares_files,
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
            run: RunSpec { program, env, output, input, ..order.run },
            append,
            before_kill: Vec::new(),
            confinement: account.confinement,
            companion,
            container: None,
            watch,
        };
        (spawn, script)
    }
}

impl AgentNode {
    /// Returns the shim that watches an attempt, as its user or the node's settings request it.
    fn watch_of(&self, env: &BTreeMap<String, String>) -> Option<String> {
        let is_on = match env.get(variables::WATCH) {
            Some(value) => value == variables::WATCH_ON,
            None => self.facts.watch,
        };
        let endpoint = self.kernel_endpoint.as_ref().filter(|_| is_on)?;
        Some(endpoint.shim().display().to_string())
    }
}

/// Returns the GPUs and instances that an attempt may use.
fn held_gpus(order: &LaunchOrder) -> impl Iterator<Item = (&GpuId, Option<Slot>)> {
    let of_node = order.gang.as_ref().map_or(&[][..], |gang| &gang.devices);
    let own = of_node.is_empty().then_some((&order.gpu, order.slot));
    own.into_iter().chain(of_node.iter().map(|device| (&device.gpu, device.slot)))
}

/// Returns the driver's numbers of what an attempt may use.
fn held_numbers(
    order: &LaunchOrder,
    numbers: &BTreeMap<GpuId, GpuNumbers>,
) -> Vec<(GpuNumbers, Option<Slot>)> {
    held_gpus(order).filter_map(|(gpu, slot)| Some((numbers.get(gpu)?.clone(), slot))).collect()
}

/// Makes an attempt hold its slice until it is stopped: another process of its job uses it. The first one on a node
/// also has the node's part of steps, and so the limits of the job on each node.
fn hold_slice(run: &mut RunSpec, has_steps: bool) {
    run.program = JobProgram::Command(HOLDER.map(str::to_owned).into());
    run.work_dir = None;
    run.output = OutputPaths { stdout: Some(NOWHERE.to_owned()), stderr: None };
    run.input = None;
    run.container = None;
    if !has_steps {
        run.host_memory = None;
        run.cpus = None;
    }
    run.time_limit = None;
    run.batch = BatchRules::default();
}

/// A program that does nothing until it is stopped.
const HOLDER: [&str; 2] = ["/bin/sleep", "infinity"];

/// Makes sure that the port of the gang's rendezvous on this node is free. A refused launch costs
/// the gang nothing, and its next try uses another port.
fn check_port(order: &LaunchOrder) -> Result<(), PlacementRefusal> {
    let Some(gang) = order.gang.as_ref().filter(|gang| gang.rank == 0) else { return Ok(()) };
    match TcpListener::bind((Ipv4Addr::UNSPECIFIED, gang.port)) {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(PlacementRefusal::PortTaken { port: gang.port, cause: error.to_string() })
        }
    }
}
