//! How long a program with kernel-level sharing waits when its queue dies or returns, or when the
//! holder is killed. Players run on the CUDA stand-in under the shim, and the agent's endpoint in its own
//! process. Everything is read from the device's trace and the shim's log, on one clock.
//!
//! ```text
//! ./x build
//! target/release/kernel-faults --out load-tests/results/kernel-faults.json
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
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
    Queue { folder: PathBuf, slice: String },
}

/// The variables of the holder and of the filler.
type Variables = [Vec<(String, String)>; 2];

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(Part::Queue { folder, slice }) = &arguments.part {
        return queue(&arguments, folder, slice);
    }
    let folder = tempfile::tempdir()?;
    let setting = Setting {
        stand_in: fs::canonicalize(&arguments.stand_in).context("run ./x build first")?,
        shim: fs::canonicalize(&arguments.shim).context("run ./x build first")?,
        switch_us: 0,
        rules: QueueRules::default(),
        run_in: 1,
    };
    let config = StandInConfig {
        mig: false,
        ..StandInConfig::new(folder.path().join("node"), &["a30-24gb"])
    };
    let slice = SimulatedNode::open(&config)?.read()?.gpu_uuid(0);
    let scene = Scene { setting: &setting, folder: folder.path(), slice: &slice };
    scene.write()?;
    let (mut process, variables) = scene.queue()?;
    scene.learn(&variables)?;
    let queues = scene.kill_queues(arguments.queues, &mut process, &variables)?;
    let holders = scene.kill_holders(arguments.holders, &variables)?;
    process.kill()?;
    process.wait()?;
    let result = json!({
        "what": "waits of a filler when its queue is killed and comes back, and when the holder is killed",
        "machine": machine::facts(),
        "queue_killed": queues,
        "holder_killed": holders,
    });
    machine::report(&result, arguments.out.as_deref())
}

struct Scene<'a> {
    setting: &'a Setting,
    folder: &'a Path,
    slice: &'a str,
}

impl Scene<'_> {
    fn write(&self) -> Result<()> {
        fs::write(self.folder.join("holder"), HOLDER)?;
        Ok(fs::write(self.folder.join("filler"), FILLER)?)
    }

    fn log(&self) -> PathBuf {
        self.folder.join("shim.log")
    }

    /// Starts the queue's process; returns it and what programs need to reach it.
    fn queue(&self) -> Result<(Child, Variables)> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--stand-in")
            .arg(&self.setting.stand_in)
            .arg("--shim")
            .arg(&self.setting.shim)
            .arg("queue")
            .arg(self.folder)
            .arg(self.slice)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("piped")?).read_line(&mut line)?;
        let mut variables: Variables = serde_json::from_str(&line).context("no queue")?;
        for each in &mut variables {
            each.push(("TESSERA_KERNEL_LOG".to_owned(), self.log().display().to_string()));
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
            let sessions = self.sessions()?.len();
            let (again, _) = self.queue()?;
            *process = again;
            let listens = now();
            std::thread::sleep(SETTLE);
            let sessions = self.sessions()?.split_off(sessions);
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

    /// Returns when sessions began, by the shims' log.
    fn sessions(&self) -> Result<Vec<u64>> {
        let text = fs::read_to_string(self.log())?;
        let began = text.lines().filter(|line| line.contains(": session "));
        Ok(began.filter_map(|line| line.split(' ').next()?.parse().ok()).collect())
    }
}

fn millis(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64() * 1e3
}

/// The queue's process: admits both, prints how they find it, and serves until it is killed.
fn queue(arguments: &Arguments, folder: &Path, slice: &str) -> Result<()> {
    let settings = KernelSettings {
        shim: arguments.shim.clone(),
        rules: QueueRules::default(),
        data: folder.join("data"),
        gates: folder.join("gates"),
    };
    let (endpoint, mut events) = start(settings)?;
    endpoint.handle.adopt(|_| true);
    let slice: SliceId = slice.parse()?;
    let admit = |number: u128, name: &str, priority: u8| -> Result<Vec<(String, String)>> {
        let admission = Admission {
            attempt: AttemptId::from_uuid(uuid::Uuid::from_u128(number)),
            gpu: gpu_of_slice(&slice)?,
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
    println!("{}", serde_json::to_string(&[admit(1, "holder", 0)?, admit(2, "filler", 9)?])?);
    while events.blocking_recv().is_some() {}
    Ok(())
}
