//! How long a program with kernel-level sharing waits when its queue dies, fails or returns, or when the
//! holder is killed. And whether another GPU's programs notice that a queue fails. Players run on the CUDA stand-in under the shim, and the agent's endpoint in its own
//! process. Everything is read from the device's trace and the shim's log, on one clock.
//!
//! ```text
//! ./x build
//! target/release/kernel-faults --out load-tests/results/kernel-faults.json
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use rand::Rng as _;
use serde_json::json;
use tessera_agent::kernel::{KernelSettings, start};
use tessera_agent_core::kernel::Admission;
use tessera_kernel_queue::{QueueRules, TaskKey};
use tessera_load_tests::machine::{self, Spread};
use tessera_load_tests::players::{Ground, Player, Setting, gpu_of_slice, now};
use tessera_model::spec::{Class, Priority};
use tessera_model::{AttemptId, SliceId};
use tessera_stand_in::config::StandInConfig;
use tessera_stand_in::node::SimulatedNode;

/// 2 ms of work, 8 ms of pause.
const HOLDER: &str = "player 1\nkernel step dur=2ms\nrun step 64x1x1/256x1x1\ngap 8ms\n";
/// Kernels of 1 ms without a pause.
const FILLER: &str = "player 1\nkernel piece dur=1ms\nrun piece 8x1x1/128x1x1\nsync\n";
const ENDLESS: u32 = 1_000_000;
/// How long each state gets to settle.
const SETTLE: Duration = Duration::from_millis(1_500);

#[derive(Parser)]
struct Arguments {
    /// How often the queue's process is killed.
    #[arg(long, default_value_t = 10)]
    queues: u32,
    /// How often the holder is killed.
    #[arg(long, default_value_t = 50)]
    holders: u32,
    /// How often a bug ends the queue of the first GPU.
    #[arg(long, default_value_t = 20)]
    failures: u32,
    /// Folder of the stand-in's libraries and programs; `./x build` makes it.
    #[arg(long, default_value = "target/stand-in")]
    stand_in: PathBuf,
    /// The shim; `./x build` makes it.
    #[arg(long, default_value = "target/kernel-shim/libcuda.so.1")]
    shim: PathBuf,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(clap::Subcommand)]
enum Part {
    /// Runs the queue's process. Never started by hand.
    #[command(hide = true)]
    Queue { folder: PathBuf, slices: Vec<SliceId> },
}

/// The variables of the holder and of the filler.
type Variables = [Vec<(String, String)>; 2];
/// GPUs of the scene. Only the first one's queue and programs are disturbed.
const GPUS: usize = 2;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(Part::Queue { folder, slices }) = &arguments.part {
        return queue(&arguments, folder, slices);
    }
    let folder = tempfile::tempdir()?;
    let setting = Setting {
        stand_in: fs::canonicalize(&arguments.stand_in).context("run ./x build first")?,
        shim: fs::canonicalize(&arguments.shim).context("run ./x build first")?,
        switch_us: 0,
        rules: QueueRules::default(),
        run_in: 1,
        ordinary: false,
    };
    let config = StandInConfig {
        mig: false,
        ..StandInConfig::new(folder.path().join("node"), &["a30-24gb"; GPUS])
    };
    let node = SimulatedNode::open(&config)?.read()?;
    let slices = [node.gpu_uuid(0), node.gpu_uuid(1)];
    let scene = Scene { setting: &setting, folder: folder.path(), slices: &slices };
    scene.write()?;
    let (mut process, variables) = scene.queue()?;
    scene.learn(&variables[0])?;
    scene.learn(&variables[1])?;
    let failures = scene.fail_queues(arguments.failures, &mut process, &variables)?;
    let queues = scene.kill_queues(arguments.queues, &mut process, &variables[0])?;
    let holders = scene.kill_holders(arguments.holders, &variables[0])?;
    process.kill()?;
    process.wait()?;
    let result = json!({
        "what": "waits of a filler when its queue fails, is killed and comes back, and when the holder is killed",
        "machine": machine::facts(),
        "queue_failed": failures,
        "queue_killed": queues,
        "holder_killed": holders,
    });
    machine::report(&result, arguments.out.as_deref())
}

struct Scene<'a> {
    setting: &'a Setting,
    folder: &'a Path,
    /// Of each GPU, as the driver names it.
    slices: &'a [String; GPUS],
}

impl Scene<'_> {
    fn write(&self) -> Result<()> {
        fs::write(self.folder.join("holder"), HOLDER)?;
        Ok(fs::write(self.folder.join("filler"), FILLER)?)
    }

    /// The log of the shims of a GPU's programs.
    fn log(&self, gpu: usize) -> PathBuf {
        self.folder.join(format!("shim-{gpu}.log"))
    }

    /// Starts the queues' process; returns it and what the programs of each GPU need to reach it.
    fn queue(&self) -> Result<(Child, [Variables; GPUS])> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--stand-in")
            .arg(&self.setting.stand_in)
            .arg("--shim")
            .arg(&self.setting.shim)
            .arg("queue")
            .arg(self.folder)
            .args(self.slices)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("piped")?).read_line(&mut line)?;
        let mut variables: [Variables; GPUS] = serde_json::from_str(&line).context("no queue")?;
        for (gpu, of_gpu) in variables.iter_mut().enumerate() {
            for each in of_gpu {
                each.push(("TESSERA_KERNEL_LOG".to_owned(), self.log(gpu).display().to_string()));
                each.push(("CUDA_VISIBLE_DEVICES".to_owned(), self.slices[gpu].clone()));
            }
        }
        Ok((child, variables))
    }

    fn player(&self, name: &str, tasks: u32, variables: &[(String, String)]) -> Result<Player> {
        let ground = Ground { setting: self.setting, folder: self.folder };
        let mut player = Player::start(ground, &self.folder.join(name), tasks, variables)?;
        player.go()?;
        Ok(player)
    }

    /// Measures each program by itself.
    fn learn(&self, [holder, filler]: &Variables) -> Result<()> {
        for (name, variables) in [("holder", holder), ("filler", filler)] {
            let mut player = self.player(name, 200, variables)?;
            player.wait()?;
        }
        Ok(())
    }

    fn kill_queues(
        &self,
        rounds: u32,
        process: &mut Child,
        [holder, filler]: &Variables,
    ) -> Result<serde_json::Value> {
        let (mut first, mut later, mut back) = (Vec::new(), Vec::new(), Vec::new());
        let _holder = self.player("holder", ENDLESS, holder)?;
        let filler = self.player("filler", ENDLESS, filler)?;
        for _ in 0..rounds {
            std::thread::sleep(SETTLE);
            let killed = now();
            process.kill()?;
            process.wait()?;
            std::thread::sleep(SETTLE);
            let kernels = filler.kernels()?;
            let launches: Vec<u64> =
                kernels.iter().map(|ran| ran.queued).filter(|at| *at > killed).collect();
            ensure!(launches.len() > 100, "the filler makes no progress without a queue");
            first.push(millis(launches[0] - killed));
            // The time beyond its own kernel and the holder's.
            let pauses = launches.windows(2).map(|pair| pair[1] - pair[0]);
            later.push(millis(pauses.max().unwrap_or(0)));
            let sessions = self.sessions(0)?.len();
            let (again, _) = self.queue()?;
            *process = again;
            let listens = now();
            std::thread::sleep(SETTLE);
            let sessions = self.sessions(0)?.split_off(sessions);
            ensure!(sessions.len() == 2, "{} of two are back", sessions.len());
            let latest = sessions.into_iter().max().unwrap_or(0);
            back.push(millis(latest.saturating_sub(listens)));
        }
        Ok(json!({
            "rounds": rounds,
            "first_launch_after": Spread::of(first).millis(),
            "longest_pause_then": Spread::of(later).millis(),
            "both_back_after": Spread::of(back).millis(),
        }))
    }

    fn kill_holders(&self, rounds: u32, [holder, filler]: &Variables) -> Result<serde_json::Value> {
        let mut waited = Vec::new();
        let filler = self.player("filler", ENDLESS, filler)?;
        for _ in 0..rounds {
            let mut holder = self.player("holder", ENDLESS, holder)?;
            std::thread::sleep(Duration::from_millis(rand::rng().random_range(300..400)));
            let killed = now();
            holder.kill()?;
            std::thread::sleep(Duration::from_millis(200));
            let launches = filler.kernels()?;
            let next = launches.iter().map(|ran| ran.queued).find(|at| *at > killed);
            waited.push(millis(next.context("the filler makes no progress")? - killed));
        }
        Ok(json!({ "rounds": rounds, "next_launch_after": Spread::of(waited).millis() }))
    }

    /// Lets a bug end the queue of the first GPU, while programs run on both.
    fn fail_queues(
        &self,
        rounds: u32,
        process: &mut Child,
        variables: &[Variables; GPUS],
    ) -> Result<serde_json::Value> {
        let [mut back, mut first, mut other_before, mut other_after] = [const { Vec::new() }; 4];
        let start =
            |name, gpu: usize, which: usize| self.player(name, ENDLESS, &variables[gpu][which]);
        let _holders = [start("holder", 0, 0)?, start("holder", 1, 0)?];
        let [filler, other] = [start("filler", 0, 1)?, start("filler", 1, 1)?];
        std::thread::sleep(SETTLE);
        let undisturbed = fs::read_to_string(self.log(1))?;
        let mut orders = process.stdin.take().context("piped")?;
        for _ in 0..rounds {
            std::thread::sleep(SETTLE);
            let sessions = self.sessions(0)?.len();
            let failed = now();
            writeln!(orders, "{}", self.slices[0])?;
            std::thread::sleep(SETTLE);
            let sessions = self.sessions(0)?.split_off(sessions);
            ensure!(sessions.len() == 2, "{} of two are back", sessions.len());
            let latest = sessions.into_iter().max().unwrap_or(0);
            back.push(millis(latest.saturating_sub(failed)));
            let launched = filler.kernels()?.into_iter().map(|ran| ran.queued);
            let next = launched.filter(|at| *at > failed).min();
            first.push(millis(next.context("the filler makes no progress")? - failed));
            let span = u64::try_from(SETTLE.as_nanos())?;
            let launched: Vec<u64> = other.kernels()?.into_iter().map(|ran| ran.queued).collect();
            let pause = |from: u64, until: u64| {
                let within = |at: &&u64| (from..until).contains(*at);
                let within: Vec<u64> = launched.iter().filter(within).copied().collect();
                let longest = within.windows(2).map(|pair| pair[1] - pair[0]).max();
                longest.map(millis).context("the other GPU's filler makes no progress")
            };
            other_before.push(pause(failed - span, failed)?);
            other_after.push(pause(failed, failed + span)?);
        }
        process.stdin = Some(orders);
        // Neither a session that began again, nor a queue that was given up.
        let news = fs::read_to_string(self.log(1))?.split_off(undisturbed.len());
        Ok(json!({
            "rounds": rounds,
            "both_back_after": Spread::of(back).millis(),
            "first_launch_after": Spread::of(first).millis(),
            "log_lines_of_the_other_gpu": news.lines().count(),
            "longest_pause_of_the_other_gpu_before": Spread::of(other_before).millis(),
            "longest_pause_of_the_other_gpu_after": Spread::of(other_after).millis(),
        }))
    }

    /// Returns when sessions began, by the shims' log.
    fn sessions(&self, gpu: usize) -> Result<Vec<u64>> {
        let text = fs::read_to_string(self.log(gpu))?;
        let began = text.lines().filter(|line| line.contains(": session "));
        Ok(began.filter_map(|line| line.split(' ').next()?.parse().ok()).collect())
    }
}

fn millis(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64() * 1e3
}

/// The queues' process: admits a holder and a filler on each slice, prints how they find it, and serves until it is
/// killed. Each line on standard input names a slice, whose queue then fails.
fn queue(arguments: &Arguments, folder: &Path, slices: &[SliceId]) -> Result<()> {
    let settings = KernelSettings {
        shim: arguments.shim.clone(),
        rules: QueueRules::default(),
        data: folder.join("data"),
        gates: folder.join("gates"),
    };
    let (endpoint, mut events) = start(settings)?;
    endpoint.handle.adopt(|_| true);
    let admit = |slice: &SliceId, number: usize, name: &str, priority: u8| {
        let admission = Admission {
            attempt: AttemptId::from_uuid(uuid::Uuid::from_u128(number as u128)),
            gpu: gpu_of_slice(slice)?,
            slice: slice.clone(),
            task: TaskKey::new(name)?,
            priority: Priority::try_from(priority)?,
            class: Class::Offline,
            share_thousandths: 1_000,
            exclusive: false,
            owner: None,
        };
        let library = arguments.stand_in.display().to_string();
        let found = BTreeMap::from([("LD_LIBRARY_PATH".to_owned(), library)]);
        Ok(endpoint.handle.admit(admission, &found)?)
    };
    let mut variables: Vec<Variables> = Vec::new();
    for (gpu, slice) in slices.iter().enumerate() {
        let (holder, filler) = (2 * gpu + 1, 2 * gpu + 2);
        let admitted: Result<_> = admit(slice, holder, "holder", 0)
            .and_then(|one| Ok([one, admit(slice, filler, "filler", 9)?]));
        variables.push(admitted?);
    }
    println!("{}", serde_json::to_string(&variables)?);
    std::thread::spawn(move || while events.blocking_recv().is_some() {});
    for line in std::io::stdin().lines() {
        let slice: SliceId = line?.trim().parse()?;
        let gpu = gpu_of_slice(&slice)?;
        ensure!(endpoint.handle.fail_queue(&gpu, slice), "no queue of {gpu}");
    }
    Ok(())
}
