//! Chooses the next event at random; the probabilities of the classes of faults vary from run to
//! run.

use tessera_frames::cluster::{
    AttemptMemory, AttemptNeeds, InstanceTrouble, MigReport, ToController,
};
use tessera_model::life::Outcome;
use tessera_model::readings::{MemoryReading, MemoryReadings, ReadingUnit};
use tessera_model::share::{CheckpointSignal, KernelTerms, MpsShare, SharingMode, SmPercent};
use tessera_model::sizing::MemoryPrediction;
use tessera_model::spec::{Class, GpuRequest, JobSpec, Priority, RawJobSpec};
use tessera_model::{AttemptId, Bytes, GangShape, GpuId, JobId, Millis};

use super::leader::Commit;
use super::world::World;
use crate::commands::JobCommand;
use crate::commands::operator::InstanceName;
use crate::commands::operator::LayoutCommand;
use crate::commands::operator::OperatorCommand;
use crate::commands::operator::OverrideKind;
use crate::commands::operator::OverrideScope;
use crate::input::Input;
use crate::rows::overrides::OverrideTarget;
use tessera_model::spec::{JobUpdate, TimeUpdate};

/// Everything that can happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Submit,
    HearFresh,
    Command,
    Pass,
    Sleep,
    Connect,
    Up,
    Down,
    Begin,
    End,
    EndReload,
    Spawn,
    Exit,
    Plan,
    Grow,
    Need,
    CommitFault,
    Break,
    Notice,
    CrashAgent,
    StartAgent,
    Reboot,
    CrashController,
    FailPlan,
    Foreign,
    HalfMade,
    Vanish,
    SwitchMode,
    Operate,
}

/// The weights of events that happen without any fault.
const ORDINARY: [(Event, u64); 16] = [
    (Event::Submit, 30),
    (Event::HearFresh, 60),
    (Event::Command, 14),
    (Event::Pass, 60),
    (Event::Connect, 30),
    (Event::Up, 300),
    (Event::Down, 300),
    (Event::Begin, 160),
    (Event::End, 200),
    (Event::EndReload, 40),
    (Event::Spawn, 100),
    (Event::Exit, 15),
    (Event::Plan, 80),
    (Event::Grow, 10),
    (Event::Need, 10),
    (Event::StartAgent, 20),
];
const FAULTS: [(Event, u64); 13] = [
    (Event::Operate, 10),
    (Event::Sleep, 6),
    (Event::CommitFault, 12),
    (Event::Break, 8),
    (Event::Notice, 30),
    (Event::CrashAgent, 8),
    (Event::Reboot, 1),
    (Event::CrashController, 3),
    (Event::FailPlan, 12),
    (Event::Foreign, 6),
    (Event::HalfMade, 3),
    (Event::Vanish, 1),
    (Event::SwitchMode, 1),
];

/// The weights of one run.
#[derive(Debug)]
pub(super) struct Lots(Vec<(Event, u64)>);

/// A task that keeps its slice idle for most of the time.
pub(super) const LIGHT_TASK: &str = "light";

impl Lots {
    /// Chooses the faults of a run. A run doesn't have all of them, since one can hide another.
    pub(super) fn new(world: &mut World) -> Self {
        let mut lots = ORDINARY.to_vec();
        for (event, weight) in FAULTS {
            let scale = [0, 1, 1, 4][world.random.index(4)];
            // A broken connection is noticed eventually.
            let least = if matches!(event, Event::Notice) { weight } else { 0 };
            lots.push((event, (weight * scale).max(least)));
        }
        Self(lots)
    }

    /// Chooses the next event.
    pub(super) fn draw(&self, world: &mut World) -> Event {
        let all = self.0.iter().map(|(_, weight)| weight).sum();
        let mut lot = world.random.below(all);
        for (event, weight) in &self.0 {
            match lot.checked_sub(*weight) {
                Some(rest) => lot = rest,
                None => return *event,
            }
        }
        unreachable!("a random number is below the sum of the weights")
    }
}

impl World {
    /// Carries out an event.
    pub(super) fn happen(&mut self, event: Event) {
        match event {
            Event::Submit => self.submit(),
            Event::HearFresh => self.announce_submitted(),
            Event::Command => self.some_command(),
            Event::Pass => self.pass_some(400),
            Event::Sleep => self.sleep(),
            Event::Connect => self.some_node(Self::connect),
            Event::Up => self.some_link(Self::deliver_up),
            Event::Down => self.some_link(Self::deliver_down),
            Event::Begin => self.begin_round(),
            Event::End => self.end_round(Commit::Done),
            Event::EndReload => self.end_reload(),
            Event::Spawn => self.some_spawn(),
            Event::Exit => self.some_exit(),
            Event::Plan => self.some_plan(false),
            Event::Grow => self.some_growth(),
            Event::Need => self.some_need(),
            Event::CommitFault => {
                let lost = self.random.happens(50);
                self.end_round(if lost { Commit::AnswerLost } else { Commit::FailsBefore });
            }
            Event::Break => self.some_link(Self::break_link),
            Event::Notice => self.notice(),
            Event::CrashAgent => self.some_node(Self::crash_agent),
            Event::StartAgent => self.some_node(Self::start_agent),
            Event::Reboot => self.some_node(Self::reboot),
            Event::CrashController => self.crash_controller(),
            Event::FailPlan => self.some_plan(true),
            Event::Foreign => self.foreign(),
            Event::HalfMade => self.half_made(),
            Event::Vanish => self.some_node(Self::vanish),
            Event::SwitchMode => self.some_node(Self::switch_mode),
            Event::Operate => self.some_override(),
        }
    }

    fn submit(&mut self) {
        let requests = [
            GpuRequest::Unknown,
            GpuRequest::Unknown,
            GpuRequest::Memory(Bytes::from_mib(4_000)),
            GpuRequest::Memory(Bytes::from_mib(9_000)),
            GpuRequest::Profile("2g.12gb".parse().unwrap()),
            GpuRequest::Profile("1g.6gb".parse().unwrap()),
            GpuRequest::Whole,
        ];
        let raw = RawJobSpec {
            command: Some(vec!["/bin/true".to_owned()]),
            max_retries: Some(u32::try_from(self.random.below(3)).unwrap()),
            priority: Some(u8::try_from(self.random.below(3)).unwrap()),
            on_lost: self.random.pick(&["requeue", "requeue", "hold", "fail"]).map(str::to_owned),
            ..RawJobSpec::default()
        };
        let mut spec = JobSpec::parse(raw).unwrap();
        spec.gpu = self.random.pick(&requests).unwrap();
        spec.run.grace = Millis::from_secs(self.random.below(40));
        let modes = [MemoryPrediction::Off, MemoryPrediction::Advise, MemoryPrediction::Act];
        spec.memory_prediction = self.random.pick(&modes);
        spec.run.time_limit = self.random.happens(20).then_some(Millis::from_secs(60));
        spec.run.checkpoint_signal = self.random.happens(60).then_some(CheckpointSignal::Usr1);
        if let GpuRequest::Memory(memory) = spec.gpu
            && self.random.happens(60)
        {
            let sm = self.random.pick(&[20, 50, 50, 70]).unwrap();
            let sm = SmPercent::try_from(sm).unwrap();
            spec.share = match (self.random.happens(30), sm.get()) {
                (true, _) => SharingMode::Kernel(KernelTerms::of_memory(memory)),
                (false, 20) => SharingMode::Auto,
                (false, _) => SharingMode::Mps(MpsShare { sm, memory }),
            };
            // The load of its task was measured.
            spec.task_key = (spec.share == SharingMode::Auto).then(|| LIGHT_TASK.to_owned());
            spec.run.checkpoint_signal = self.random.happens(70).then_some(CheckpointSignal::Usr1);
            spec.user = self.random.pick(&["ada", "ada", "bob"]).unwrap().to_owned();
        }
        spec.gang = self.gang_shape(&spec);
        if self.random.happens(25) {
            spec.class = Class::Online;
        }
        let hold = self.random.happens(10);
        let (job, submitted) = self.store.submit(spec, hold);
        self.note("a job was accepted", job);
        if !submitted.is_empty() {
            self.controller.submitted.push_back(submitted);
        }
    }

    /// Some jobs are gangs, with shapes that fit into the cluster after the faults: the first
    /// machine gets its GPUs back, and every machine keeps one.
    fn gang_shape(&mut self, spec: &JobSpec) -> Option<GangShape> {
        if spec.share != SharingMode::Exclusive || !self.random.happens(40) {
            return None;
        }
        let mut shapes = Vec::new();
        if self.both_gpus {
            shapes.push((1, 2));
        }
        if !matches!(spec.gpu, GpuRequest::Profile(_)) {
            let nodes = u32::try_from(self.machines.len()).unwrap();
            shapes.extend((2..=nodes).map(|nodes| (nodes, 1)));
        }
        let (nodes, per_node) = self.random.pick(&shapes)?;
        GangShape::new(nodes, per_node).ok()
    }

    pub(super) fn announce_submitted(&mut self) {
        if let Some(submitted) = self.controller.submitted.pop_front() {
            if self.controller.reloading.is_some() {
                self.note("a job was announced during a reload", submitted[0].job);
            }
            self.input(Input::Submitted(submitted));
        }
    }

    fn some_command(&mut self) {
        let jobs: Vec<JobId> = self.store.jobs.keys().copied().collect();
        // With the newest jobs, commands may overtake announcements.
        let recent = &jobs[jobs.len().saturating_sub(6)..];
        let from = if self.random.happens(50) { recent } else { &jobs[..] };
        let many = 1 + self.random.below(3);
        let drawn: Vec<_> = (0..many).filter_map(|_| self.random.pick(from)).collect();
        let commands = [
            JobCommand::Cancel,
            JobCommand::Hold,
            JobCommand::Release,
            JobCommand::Release,
            JobCommand::Requeue,
        ]
        .into_iter()
        .chain([20, 70].map(|sm| JobCommand::Reshare(SmPercent::try_from(sm).unwrap())))
        .chain([1, 9].map(|rank| {
            let limit = (rank == 9).then_some(TimeUpdate::To(Millis::from_secs(1_000)));
            let priority = Priority::try_from(rank).ok();
            JobCommand::Update(JobUpdate { priority, limit, ..JobUpdate::default() })
        }))
        .collect::<Vec<_>>();
        let command = self.random.pick(&commands).unwrap();
        if !drawn.is_empty() {
            // Handlers apply a command to the whole gang, whichever member is named.
            let drawn = self.store.with_gangs(drawn);
            self.note("a user spoke", (&command, &drawn));
            self.command(command, drawn);
        }
    }

    /// An operator sets or clears an override of a GPU or its node, or requests a layout.
    fn some_override(&mut self) {
        let gpus: Vec<_> = self
            .machines
            .iter()
            .flat_map(|m| {
                m.gpus.iter().map(|gpu_report| (m.identity.name.clone(), gpu_report.gpu.clone()))
            })
            .collect();
        let Some((node, gpu)) = self.random.pick(&gpus) else { return };
        let kinds = [
            OverrideKind::Drained,
            OverrideKind::Drained,
            OverrideKind::Quarantined,
            OverrideKind::Pinned,
        ];
        let kind = self.random.pick(&kinds).unwrap();
        let slice = InstanceName::At(u8::try_from(self.random.below(4)).unwrap());
        let on = match (kind, self.random.below(3)) {
            (OverrideKind::Drained, 0) => OverrideScope::Node(node),
            (OverrideKind::Quarantined, 0 | 1) => OverrideScope::Slice(gpu.clone(), slice),
            _ => OverrideScope::Gpu(gpu.clone()),
        };
        let by = "ada".to_owned();
        let command = match self.random.below(4) {
            0 => OperatorCommand::SetOverride { kind, on, by, reason: None },
            1 => OperatorCommand::ClearOverride { kind, on, by },
            _ => {
                let layouts = ["empty", "2x2g.12gb", "4x1g.6gb", "2g.12gb,1g.6gb", "4g.24gb"];
                let desired = self.random.pick(&layouts).unwrap().parse().unwrap();
                let pin = self.random.happens(20);
                OperatorCommand::ApplyLayout(LayoutCommand { gpu, desired, pin, by, reason: None })
            }
        };
        self.note("an operator spoke", &command);
        self.handle_operator_command(command);
    }

    /// An operator clears an override.
    pub(super) fn lift(&mut self, kind: OverrideKind, target: OverrideTarget) {
        let on = match target {
            OverrideTarget::Node(node) => {
                let machine = self.machines.iter().find(|m| m.identity.id == node);
                OverrideScope::Node(machine.expect("machines stay").identity.name.clone())
            }
            // This clears its slices, too.
            OverrideTarget::Gpu(gpu) | OverrideTarget::Slice(gpu, _) => OverrideScope::Gpu(gpu),
        };
        self.handle_operator_command(OperatorCommand::ClearOverride {
            kind,
            on,
            by: "ada".to_owned(),
        });
    }

    pub(super) fn handle_operator_command(&mut self, command: OperatorCommand) {
        self.input(Input::Operate { token: 0, command, now_unix: self.now });
    }

    fn pass_some(&mut self, most: u64) {
        let span = Millis::new(1 + self.random.below(most));
        self.pass(span);
        self.input(Input::Tick);
    }

    /// The time is long enough for leases to expire, while nothing is delivered.
    fn sleep(&mut self) {
        let steps = self.random.below(140);
        self.note("time passed in silence", steps);
        for _ in 0..steps {
            self.pass_some(400);
        }
    }

    fn some_node(&mut self, act: fn(&mut Self, usize)) {
        let node = self.random.index(self.machines.len());
        act(self, node);
    }

    fn some_link(&mut self, act: fn(&mut Self, u64)) {
        let links: Vec<_> = self.links.keys().copied().collect();
        if let Some(session) = self.random.pick(&links) {
            act(self, session);
        }
    }

    fn notice(&mut self) {
        let broken: Vec<_> = self.links.iter().filter(|(_, l)| l.broken).map(|(s, _)| *s).collect();
        let Some(session) = self.random.pick(&broken) else { return };
        if self.random.happens(50) && self.links[&session].agent_holds {
            self.agent_notices(session);
        } else if self.links[&session].controller_holds {
            self.deliver_up(session);
            self.controller_notices(session);
        }
    }

    pub(super) fn start_agent(&mut self, node: usize) {
        if self.machines[node].agent.is_none() {
            self.machines[node].start_agent();
        }
    }

    fn some_spawn(&mut self) {
        let waiting: Vec<(usize, AttemptId)> = self.spawning();
        if let Some((node, attempt)) = self.random.pick(&waiting) {
            self.spawn(node, attempt);
        }
    }

    pub(super) fn spawning(&self) -> Vec<(usize, AttemptId)> {
        let agents = self.machines.iter().enumerate();
        agents
            .filter_map(|(node, machine)| Some((node, machine.agent.as_ref()?)))
            .flat_map(|(node, agent)| agent.spawning.keys().map(move |a| (node, *a)))
            .collect()
    }

    pub(super) fn spawn(&mut self, node: usize, attempt: AttemptId) {
        let now = self.now;
        let mut frames = self.machines[node].spawn(attempt, now);
        frames.extend(self.machines[node].keep_session(now));
        self.send_frames(node, frames);
        self.note("an attempt left the journal", attempt);
    }

    fn some_exit(&mut self) {
        let running = self.running();
        let outcomes =
            [Outcome::Succeeded, Outcome::Failed, Outcome::OutOfMemory, Outcome::TimedOut];
        let outcomes = [&outcomes[..], &[Outcome::Lost, Outcome::LaunchFailed]].concat();
        let outcome = self.random.pick(&outcomes).unwrap();
        if let Some((node, attempt)) = self.random.pick(&running) {
            self.exit(node, attempt, outcome);
        }
    }

    /// A node reports a program whose memory use approaches its slice's memory.
    fn some_growth(&mut self) {
        let running = self.running();
        let Some((node, attempt)) = self.random.pick(&running) else { return };
        let Some(full) = self.store.attempts[&attempt].row.gpu_memory else { return };
        let from = self.now.get() / 1_000;
        let readings = (1..=20).map(|at| MemoryReading {
            at_unix: Millis::from_secs(from + at),
            position: from + at,
            used: Bytes::new(full.get() / 40 * (18 + at) + at % 3),
        });
        let memory = MemoryReadings {
            unit: ReadingUnit::Seconds,
            left_out: Bytes::ZERO,
            preallocated: false,
            readings: readings.collect(),
        };
        let frames = vec![ToController::Memory(vec![AttemptMemory { attempt, memory }])];
        let frames = self.machines[node].if_live(frames);
        self.send_frames(node, frames);
        self.note("the memory of a job grew", attempt);
    }

    /// A node reports what a program had allocated before its first kernel: also more than its slice has.
    fn some_need(&mut self) {
        let running = self.running();
        let Some((node, attempt)) = self.random.pick(&running) else { return };
        let Some(full) = self.store.attempts[&attempt].row.gpu_memory else { return };
        let eighths = 1 + self.random.below(10);
        let held = Bytes::new(full.get() / 8 * eighths);
        let refused = Bytes::new(full.get() / 4 * self.random.below(8));
        let needs = AttemptNeeds { attempt, held, multiprocessors: 7, refused };
        let frames = self.machines[node].if_live(vec![ToController::Needs(needs)]);
        self.send_frames(node, frames);
        self.note("a job launched its first kernel", (attempt, held, refused));
    }

    pub(super) fn running(&self) -> Vec<(usize, AttemptId)> {
        let machines = self.machines.iter().enumerate();
        machines.flat_map(|(node, m)| m.processes.keys().map(move |a| (node, *a))).collect()
    }

    fn some_plan(&mut self, fail: bool) {
        let plans = self.plans();
        if let Some((node, gpu)) = self.random.pick(&plans) {
            self.note(if fail { "a plan failed" } else { "a plan continued" }, &gpu);
            self.step_plan(node, &gpu, fail);
        }
    }

    pub(super) fn plans(&self) -> Vec<(usize, GpuId)> {
        let agents = self.machines.iter().enumerate();
        agents
            .filter_map(|(node, machine)| Some((node, machine.agent.as_ref()?)))
            .flat_map(|(node, agent)| agent.plans.keys().map(move |gpu| (node, gpu.clone())))
            .collect()
    }

    /// A foreign process starts or ends on an idle instance.
    fn foreign(&mut self) {
        self.some_instance("a stranger used an instance", |instance| {
            instance.trouble = match instance.trouble {
                Some(_) => None,
                None => Some(InstanceTrouble::Foreign { pids: vec![7] }),
            };
        });
    }

    /// An instance loses its compute instance.
    fn half_made(&mut self) {
        self.some_instance("an instance was partly created", |instance| instance.slice = None);
    }

    fn some_instance(
        &mut self,
        what: &'static str,
        change: fn(&mut tessera_frames::cluster::InstanceReport),
    ) {
        let node = self.random.index(self.machines.len());
        let machine = &mut self.machines[node];
        let used: Vec<_> =
            machine.disk.accepted.values().map(|facts| (facts.gpu.clone(), facts.slot)).collect();
        let idle = machine.gpus.iter_mut().flat_map(|gpu_report| {
            let gpu = gpu_report.gpu.clone();
            gpu_report.instances.iter_mut().map(move |instance| (gpu.clone(), instance))
        });
        let mut idle: Vec<_> =
            idle.filter(|(gpu, i)| !used.contains(&(gpu.clone(), Some(i.slot)))).collect();
        if idle.is_empty() {
            return;
        }
        let (gpu, instance) = idle.swap_remove(self.random.index(idle.len()));
        change(instance);
        let slot = instance.slot;
        self.note(what, (&gpu, slot));
        let frames = self.machines[node].gpu_report(&gpu);
        self.send_frames(node, frames);
    }

    /// A GPU without jobs is missing when the agent starts again.
    fn vanish(&mut self, node: usize) {
        let last = self.machines[node].gpus.len() - 1;
        if last == 0 || self.is_used(node, last) {
            return;
        }
        self.crash_agent(node);
        let gone = self.machines[node].gpus.pop();
        self.note("a GPU vanished", gone.map(|gpu_report| gpu_report.gpu));
    }

    /// An administrator switches MIG on the machine itself, while its agent is down.
    fn switch_mode(&mut self, node: usize) {
        let which = self.random.index(self.machines[node].gpus.len());
        if self.is_used(node, which) {
            return;
        }
        self.crash_agent(node);
        let gpu_report = &mut self.machines[node].gpus[which];
        gpu_report.instances.clear();
        gpu_report.mig = match &gpu_report.mig {
            MigReport::On { .. } => MigReport::Off,
            MigReport::Off | MigReport::Unsupported => {
                MigReport::On { geometry: super::model(&gpu_report.model).geometry() }
            }
        };
        let gpu = gpu_report.gpu.clone();
        self.note("an administrator switched MIG", gpu);
    }

    fn is_used(&self, node: usize, index: usize) -> bool {
        let machine = &self.machines[node];
        machine.processes.values().any(|p| p.facts.gpu == machine.gpus[index].gpu)
    }
}
