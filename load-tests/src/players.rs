//! Two programs on one simulated slice in real time: alone, as the driver shares by default, and
//! under the shim and the agent's own queue. What ran when is read from the device's trace.

mod gaps;
mod played;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::Value;
use tempfile::TempDir;
use tessera_agent::kernel::{Endpoint, KernelEvent, KernelSettings, start};
use tessera_agent_core::kernel::{Admission, AttemptTally};
use tessera_kernel_queue::{Nanos, QueueRules, TaskKey};
use tessera_model::spec::{Class, Priority};
use tessera_model::{AttemptId, GpuId, SliceId};
use tessera_stand_in::config::StandInConfig;
use tessera_stand_in::node::SimulatedNode;

use crate::processes;
pub use gaps::PlayedGap;
use played::ran;
pub use played::{Played, Ran, Waited, now, seconds, total, traced_kernels};

/// The programs' folders, and their queues.
const HIGH: usize = 0;
const LOW: usize = 1;
const PRIORITIES: [u8; 2] = [0, 9];

/// Tasks of a background program: more than fit into any run of the other.
const ENDLESS: u32 = 1_000_000;

/// Longest that the queue takes to report what an attempt did.
const TALLY_WITHIN: Duration = Duration::from_secs(10);

/// A program: its name, and the recording that a player plays.
#[derive(Clone, Debug)]
pub struct Program {
    /// What its task is called.
    pub name: String,
    /// The recording's text (`tessera_stand_in::cuda::recording`).
    pub recording: String,
}

/// Returns the name of the GPU of the only slice of a queue. Of a MIG device's GPU it has only the form: nothing but
/// the queue's thread is named by it.
///
/// # Errors
///
/// The text is no device's name.
pub fn gpu_of_slice(slice: &SliceId) -> Result<GpuId> {
    Ok(slice.as_str().replacen("MIG-", "GPU-", 1).parse()?)
}

/// Returns the rules of a queue: the given ones in the form of `[kernel_rules]`, and the defaults for all others.
///
/// # Errors
///
/// The text is no TOML, has a rule that does not exist, or sets the switch, which is the device's.
pub fn rules_with(rules: &str, switch_us: u64) -> Result<QueueRules> {
    let described = "rules are lines such as \"recall = true\"";
    let given: toml::Table = toml::from_str(rules).context(described)?;
    anyhow::ensure!(!given.contains_key("switch"), "the switch is the device's: use --switch-us");
    let rules: QueueRules = given.try_into().context(described)?;
    Ok(QueueRules { switch: Nanos::from_micros(switch_us), ..rules })
}

/// Settings of the stage.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Folder of the stand-in's libraries and programs; `./x build` makes it.
    pub stand_in: PathBuf,
    /// The shim; `./x build` makes it.
    pub shim: PathBuf,
    /// Cost of a context switch on the device, in microseconds.
    pub switch_us: u64,
    /// The queue's rules.
    pub rules: QueueRules,
    /// Tasks of the high program before those that count.
    pub run_in: u32,
    /// Whether the programs have ordinary priority, whatever this program has.
    pub ordinary: bool,
}

/// Where two programs play: a node of one whole GPU without MIG and MPS, and a queue.
#[derive(Debug)]
pub struct Stage {
    setting: Setting,
    folder: TempDir,
    endpoint: Endpoint,
    over: Mutex<Receiver<(AttemptId, AttemptTally)>>,
    programs: [Program; 2],
    files: [PathBuf; 2],
    attempts: AtomicU32,
    slice: SliceId,
}

/// A player that waits for a command, or plays; killed when dropped.
#[derive(Debug)]
pub struct Player {
    child: Child,
    output: BufReader<ChildStdout>,
    trace: PathBuf,
}

/// Programs of low priority next to the high one.
#[derive(Clone, Copy, Debug)]
pub struct CoRunners {
    /// Number of processes.
    pub processes: u32,
    /// Threads of each that launch.
    pub threads: u32,
}

/// The environment in which players run.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    /// The device and the programs that take part.
    pub setting: &'a Setting,
    /// Its folder, with the simulated node in `node`; traces go to `traces`.
    pub folder: &'a Path,
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Stage {
    /// Sets the stage for a high and a low program.
    ///
    /// # Errors
    ///
    /// Something is not built, or can't be started.
    pub fn new(setting: Setting, programs: [Program; 2]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let setting = Setting {
            stand_in: fs::canonicalize(&setting.stand_in)
                .context("no stand-in: run ./x build first")?,
            shim: fs::canonicalize(&setting.shim).context("no shim: run ./x build first")?,
            ..setting
        };
        let config = StandInConfig {
            mig: false,
            ..StandInConfig::new(folder.path().join("node"), &["a30-24gb"])
        };
        let slice = SimulatedNode::open(&config)?.read()?.gpu_uuid(0).parse()?;
        let settings = KernelSettings {
            shim: setting.shim.clone(),
            rules: setting.rules,
            data: folder.path().join("data"),
            gates: folder.path().join("gates"),
        };
        let (endpoint, mut events) = start(settings)?;
        let (report, over) = channel();
        // Learned times are not stored: the queue itself keeps them for this run.
        std::thread::spawn(move || {
            while let Some(event) = events.blocking_recv() {
                if let KernelEvent::Over { attempt, tally } = event
                    && report.send((attempt, *tally)).is_err()
                {
                    return;
                }
            }
        });
        let files = ["high", "low"].map(|name| folder.path().join(name));
        for (file, program) in files.iter().zip(&programs) {
            fs::write(file, &program.recording)?;
        }
        let over = Mutex::new(over);
        let attempts = AtomicU32::new(0);
        Ok(Self { setting, folder, endpoint, over, programs, files, attempts, slice })
    }

    /// Plays the given number of tasks of the high program by itself, without the shim.
    ///
    /// In this and all other runs of the high program, [`Setting::run_in`] tasks are played before
    /// them: what the low one launched while it was alone runs amid those.
    ///
    /// # Errors
    ///
    /// As for all runs: a player fails.
    pub fn alone(&self, tasks: u32) -> Result<Played> {
        self.run(self.player(HIGH, self.setting.run_in + tasks, &[])?, None)
    }

    /// Plays the given number of tasks of the low program by itself, without the shim.
    ///
    /// # Errors
    ///
    /// A player fails.
    pub fn low_without_shim(&self, tasks: u32) -> Result<Played> {
        self.run(self.player(LOW, self.setting.run_in + tasks, &[])?, None)
    }

    /// Plays both without the shim.
    ///
    /// # Errors
    ///
    /// A player fails.
    pub fn by_default(&self, tasks: u32) -> Result<Played> {
        let high = self.player(HIGH, self.setting.run_in + tasks, &[])?;
        self.run(high, Some(self.player(LOW, ENDLESS, &[])?))
    }

    /// Plays the given number of tasks of each by itself under the shim, so that its kernels are
    /// known.
    ///
    /// # Errors
    ///
    /// A player fails.
    pub fn measure(&self, tasks: u32) -> Result<()> {
        for which in [HIGH, LOW] {
            // It stays admitted: a slice without attempts forgets what it learned.
            let (_, variables) = self.admit(which)?;
            self.run(self.player(which, self.setting.run_in + tasks, &variables)?, None)?;
        }
        Ok(())
    }

    /// Plays the given number of tasks of the high program by itself under the shim, in the sharing
    /// stage.
    ///
    /// # Errors
    ///
    /// A player fails.
    pub fn alone_in_sharing(&self, tasks: u32) -> Result<Played> {
        let (attempt, variables) = self.admit(HIGH)?;
        let played = self.run(self.player(HIGH, self.setting.run_in + tasks, &variables)?, None)?;
        self.gone(attempt)?;
        Ok(played)
    }

    /// Plays both under the shim; returns what the queue counted for the high and the low one.
    ///
    /// # Errors
    ///
    /// A player fails.
    pub fn shared(&self, tasks: u32) -> Result<(Played, [AttemptTally; 2])> {
        let ((high_id, as_high), (low_id, as_low)) = (self.admit(HIGH)?, self.admit(LOW)?);
        let high = self.player(HIGH, self.setting.run_in + tasks, &as_high)?;
        let played = self.run(high, Some(self.player(LOW, ENDLESS, &as_low)?))?;
        Ok((played, [self.gone(high_id)?, self.gone(low_id)?]))
    }

    /// Plays the high program next to several processes of the low one with several threads each. Returns
    /// what the queue counted for the high and the low ones.
    ///
    /// # Errors
    ///
    /// A player fails.
    pub fn together(
        &self,
        tasks: u32,
        co_runners: CoRunners,
    ) -> Result<(Played, [AttemptTally; 2])> {
        let ((high_id, as_high), (low_id, as_low)) = (self.admit(HIGH)?, self.admit(LOW)?);
        let ground = Ground { setting: &self.setting, folder: self.folder.path() };
        let low = |_| {
            Player::start_with(ground, &self.files[LOW], (ENDLESS, co_runners.threads), &as_low)
        };
        let lows = (0..co_runners.processes).map(low).collect::<Result<Vec<_>>>()?;
        let high = self.player(HIGH, self.setting.run_in + tasks, &as_high)?;
        let played = self.run_together(high, lows)?;
        Ok((played, [self.gone(high_id)?, self.gone(low_id)?]))
    }

    /// Lets the low program play alone for `ahead`, and then begins the high one, which was admitted
    /// `expected` before that. Returns what the queue counted for the high and the low one.
    ///
    /// # Errors
    ///
    /// A player fails.
    pub fn take_over(
        &self,
        tasks: u32,
        ahead: Duration,
        expected: Duration,
    ) -> Result<(Played, [AttemptTally; 2])> {
        let (low_id, as_low) = self.admit(LOW)?;
        let mut low = self.player(LOW, ENDLESS, &as_low)?;
        low.go()?;
        std::thread::sleep(ahead.saturating_sub(expected));
        let (high_id, as_high) = self.admit(HIGH)?;
        let high = self.player(HIGH, self.setting.run_in + tasks, &as_high)?;
        std::thread::sleep(expected);
        let played = self.finish(high, vec![low])?;
        Ok((played, [self.gone(high_id)?, self.gone(low_id)?]))
    }

    /// Lets the low program play by itself for the given time; returns the time of its kernels, in
    /// nanoseconds. With `expected` a high one is admitted and never begins.
    ///
    /// # Errors
    ///
    /// A player fails.
    pub fn low_alone(&self, span: Duration, expected: bool) -> Result<u64> {
        let high = if expected { Some(self.admit(HIGH)?.0) } else { None };
        let (low_id, as_low) = self.admit(LOW)?;
        let mut low = self.player(LOW, ENDLESS, &as_low)?;
        low.go()?;
        let began = now();
        std::thread::sleep(span);
        low.kill()?;
        let until = began + u64::try_from(span.as_nanos())?;
        let busy = total(&ran(&low.trace, (began, until))?);
        for id in high.into_iter().chain([low_id]) {
            self.gone(id)?;
        }
        Ok(busy)
    }

    /// Replaces what a program plays from now on; its task stays. `which` is 0 for the high one and 1 for
    /// the low one.
    ///
    /// # Errors
    ///
    /// The file can't be written.
    pub fn replace(&self, which: usize, recording: &str) -> Result<()> {
        Ok(fs::write(&self.files[which], recording)?)
    }

    /// Plays the given number of tasks of the low program, and the run-in, under the shim while the
    /// high one never ends; returns their times in nanoseconds.
    ///
    /// # Errors
    ///
    /// A player fails.
    pub fn low_tasks(&self, tasks: u32) -> Result<Vec<u64>> {
        let ((high_id, as_high), (low_id, as_low)) = (self.admit(HIGH)?, self.admit(LOW)?);
        let mut high = self.player(HIGH, ENDLESS, &as_high)?;
        high.go()?;
        let times = self.run(self.player(LOW, self.setting.run_in + tasks, &as_low)?, None)?.tasks;
        drop(high);
        self.gone(high_id)?;
        self.gone(low_id)?;
        Ok(times)
    }

    /// Ends an attempt; returns what the queue counted for it.
    fn gone(&self, attempt: AttemptId) -> Result<AttemptTally> {
        self.endpoint.handle.end_attempt(attempt);
        let over = self.over.lock().map_err(|_| anyhow!("a thread failed"))?;
        loop {
            let (ended, tally) = over.recv_timeout(TALLY_WITHIN).context("no tally came")?;
            if ended == attempt {
                return Ok(tally);
            }
        }
    }

    /// Lets a program join the queue of the slice; returns its attempt and variables.
    fn admit(&self, which: usize) -> Result<(AttemptId, Vec<(String, String)>)> {
        let number = self.attempts.fetch_add(1, Ordering::Relaxed);
        let attempt = AttemptId::from_uuid(uuid::Uuid::from_u128(u128::from(number) + 1));
        let admission = Admission {
            attempt,
            gpu: gpu_of_slice(&self.slice)?,
            slice: self.slice.clone(),
            task: TaskKey::new(format!("{which} {}", self.programs[which].name))?,
            priority: Priority::try_from(PRIORITIES[which])?,
            class: Class::Offline,
            share_thousandths: 1_000,
            exclusive: false,
            owner: None,
        };
        let driver = ("LD_LIBRARY_PATH".to_owned(), self.setting.stand_in.display().to_string());
        Ok((attempt, self.endpoint.handle.admit(admission, &BTreeMap::from([driver]))?))
    }

    fn player(&self, which: usize, tasks: u32, shim: &[(String, String)]) -> Result<Player> {
        let ground = Ground { setting: &self.setting, folder: self.folder.path() };
        Player::start(ground, &self.files[which], tasks, shim)
    }

    /// Starts the players' runs, and waits for the high one.
    fn run(&self, high: Player, low: Option<Player>) -> Result<Played> {
        self.run_together(high, low.into_iter().collect())
    }

    fn run_together(&self, high: Player, mut lows: Vec<Player>) -> Result<Played> {
        lows.iter_mut().try_for_each(Player::go)?;
        self.finish(high, lows)
    }

    /// Starts the high player's run next to players that play already, and waits for it.
    fn finish(&self, mut high: Player, lows: Vec<Player>) -> Result<Played> {
        high.go()?;
        let report: Value = serde_json::from_str(&high.line()?).context("a player failed")?;
        ensure!(high.child.wait()?.success(), "a player failed");
        let number = |name: &str| report[name].as_u64().context("not a report");
        let tasks = report["iterations_ns"].as_array().context("not a report")?;
        let tasks: Vec<u64> = tasks.iter().filter_map(Value::as_u64).collect();
        let run_in = usize::try_from(self.setting.run_in)?;
        let overslept = report["overslept_ns"].as_array().context("not a report")?;
        let overslept = overslept.iter().skip(run_in).filter_map(Value::as_u64).sum();
        let (run_in, tasks) = tasks.split_at_checked(run_in).context("too few tasks")?;
        let began = number("began_ns")?;
        let window = (began + run_in.iter().sum::<u64>(), number("ended_ns")?);
        let mut low = Vec::new();
        for mut player in lows {
            player.kill()?;
            low.extend(ran(&player.trace, window)?);
        }
        let tasks = tasks.to_vec();
        Ok(Played { window, tasks, overslept, high: ran(&high.trace, window)?, low })
    }
}

impl Player {
    /// Starts a player of a recording, with the variables of the shim if it uses the shim.
    ///
    /// # Errors
    ///
    /// It doesn't start.
    pub fn start(
        ground: Ground<'_>,
        file: &Path,
        tasks: u32,
        shim: &[(String, String)],
    ) -> Result<Self> {
        Self::start_with(ground, file, (tasks, 1), shim)
    }

    /// Starts a player with several threads, each of which plays all tasks.
    fn start_with(
        ground: Ground<'_>,
        file: &Path,
        (tasks, threads): (u32, u32),
        shim: &[(String, String)],
    ) -> Result<Self> {
        let stand_in = &ground.setting.stand_in;
        let traces = ground.folder.join("traces");
        let mut command = Command::new(stand_in.join("tessera-sim-player"));
        command
            .arg(file)
            .args(["--wait", "--iterations", &tasks.to_string()])
            .args(["--threads", &threads.to_string()])
            .env("LD_LIBRARY_PATH", stand_in)
            .env("TESSERA_SIM_NODE", ground.folder.join("node"))
            .env("TESSERA_SIM_CUDA_TRACE", &traces)
            .env("TESSERA_SIM_CUDA_SWITCH_US", ground.setting.switch_us.to_string())
            .env("CUDA_MPS_PIPE_DIRECTORY", ground.folder.join("no-mps"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if ground.setting.ordinary {
            processes::be_ordinary(&mut command);
        }
        if !shim.is_empty() {
            command.env("TESSERA_KERNEL_CUDA", stand_in.join("libcuda.so.1"));
            command.envs(shim.iter().cloned());
        }
        let mut child = command.spawn()?;
        let trace = traces.join(format!("cuda-{}.jsonl", child.id()));
        let output = BufReader::new(child.stdout.take().context("piped")?);
        let mut player = Self { child, output, trace };
        ensure!(player.line()? == "ready", "a player did not start");
        Ok(player)
    }

    /// Returns its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it play.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn go(&mut self) -> Result<()> {
        Ok(writeln!(self.child.stdin.as_mut().context("piped")?)?)
    }

    /// Kills it and waits for its end.
    ///
    /// # Errors
    ///
    /// The system's message.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until it has played its whole recording.
    ///
    /// # Errors
    ///
    /// It failed.
    pub fn wait(&mut self) -> Result<()> {
        ensure!(self.child.wait()?.success(), "a player failed");
        Ok(())
    }

    /// Returns the kernels that its trace has so far, whenever they ran.
    ///
    /// # Errors
    ///
    /// There is no trace.
    pub fn kernels(&self) -> Result<Vec<Ran>> {
        ran(&self.trace, (0, u64::MAX))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}
