//! One pair's runs: a node, a queue, and players.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tessera_agent::core::kernel::{Admission, Tally};
use tessera_agent::kernel::{Endpoint, KernelEvent, KernelSettings, start};
use tessera_kernel_queue::{Nanos, Rules, TaskKey};
use tessera_model::spec::{Class, Priority};
use tessera_model::{AttemptId, SliceId};
use tessera_sim::config::Config;
use tessera_sim::kernels::device::Span;
use tessera_sim::kernels::ideal::omniscient;
use tessera_sim::kernels::program::Course;
use tessera_sim::kernels::{Model, Noise, Pair};
use tessera_sim::node::Node;

use crate::Arguments;

/// Tasks of a low program: more than any run of a high one lasts.
const ENDLESS: u32 = 1_000_000;

/// Longest that the queue takes to tell what an attempt did.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// Where one pair plays.
pub struct Stage<'a> {
    arguments: &'a Arguments,
    folder: TempDir,
    endpoint: Endpoint,
    over: Mutex<Receiver<(AttemptId, Tally)>>,
    high: PathBuf,
    low: PathBuf,
    attempts: AtomicU32,
    slice: SliceId,
    pair: &'a Pair,
}

/// What ran when, in one run of the high program.
pub struct Played {
    /// When the high program's first task began and its last ended, in nanoseconds.
    pub window: (u64, u64),
    /// Times of its tasks in nanoseconds.
    pub tasks: Vec<u64>,
    /// When its kernels ran.
    pub high: Vec<(u64, u64)>,
    /// When the low program's ran, within the window.
    pub low: Vec<(u64, u64)>,
}

/// A player that waits to be told, or plays; killed when dropped.
struct Player {
    child: Child,
    output: BufReader<ChildStdout>,
    trace: PathBuf,
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<'a> Stage<'a> {
    /// Makes a node of one whole A30, a queue, and the pair's recordings.
    pub fn new(arguments: &'a Arguments, pair: &'a Pair) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let config =
            Config { mig: false, ..Config::new(folder.path().join("node"), &["a30-24gb"]) };
        let slice = Node::open(&config)?.read()?.gpu_uuid(0).parse()?;
        let settings = KernelSettings {
            shim: fs::canonicalize(&arguments.shim).context("no shim: run ./x build first")?,
            rules: Rules::default(),
            data: folder.path().join("data"),
            gates: folder.path().join("gates"),
        };
        let (endpoint, mut events) = start(settings)?;
        let (tell, over) = channel();
        // Nobody stores what is learned: the queue itself remembers it for this run.
        std::thread::spawn(move || {
            while let Some(event) = events.blocking_recv() {
                if let KernelEvent::Over { attempt, tally } = event
                    && tell.send((attempt, *tally)).is_err()
                {
                    return;
                }
            }
        });
        let recording = |model: &Model, name: &str| -> Result<PathBuf> {
            let path = folder.path().join(name);
            fs::write(&path, recording(model, arguments.stretch))?;
            Ok(path)
        };
        let high = recording(&pair.high, "high")?;
        let low = recording(&pair.low, "low")?;
        Ok(Self {
            arguments,
            endpoint,
            over: Mutex::new(over),
            high,
            low,
            attempts: AtomicU32::new(0),
            slice,
            pair,
            folder,
        })
    }

    /// Plays the high program by itself, without the shim.
    pub fn alone(&self) -> Result<Played> {
        self.run(self.player(&self.high, self.arguments.tasks, &[])?, None)
    }

    /// Plays both without the shim.
    pub fn by_default(&self) -> Result<Played> {
        let high = self.player(&self.high, self.arguments.tasks, &[])?;
        self.run(high, Some(self.player(&self.low, ENDLESS, &[])?))
    }

    /// Plays each by itself under the shim, so that its kernels are known.
    pub fn measure(&self) -> Result<()> {
        for (file, priority) in [(&self.high, 0), (&self.low, 9)] {
            let player = self.player(file, self.arguments.measured, &self.admit(priority)?.1)?;
            self.run(player, None)?;
        }
        Ok(())
    }

    /// Plays both under the shim; tells what the queue counted for the high and the low one.
    pub fn shared(&self) -> Result<(Played, [Tally; 2])> {
        let ((high_id, as_high), (low_id, as_low)) = (self.admit(0)?, self.admit(9)?);
        let high = self.player(&self.high, self.arguments.tasks, &as_high)?;
        let played = self.run(high, Some(self.player(&self.low, ENDLESS, &as_low)?))?;
        Ok((played, [self.end(high_id)?, self.end(low_id)?]))
    }

    /// Returns for how long, in nanoseconds, an omniscient filler would run the low program's
    /// kernels in the gaps of the high one's run alone, those up to ε left: without a message,
    /// and without what changing contexts costs.
    pub fn omniscient(&self, alone: &Played) -> u64 {
        let mut program = self.pair.low.program();
        let mut took = BTreeMap::new();
        for step in &mut program.steps {
            // As the recording has it: one time for each kernel, and a wait before each pause.
            step.took_ns =
                *took.entry(step.kernel).or_insert(step.took_ns * self.arguments.stretch);
            step.gap_ns *= self.arguments.stretch;
            step.waits_for_device = true;
        }
        let spans = alone.high.iter().map(|(from, until)| Span {
            program: 0,
            from: Nanos::new(*from),
            until: Nanos::new(*until),
        });
        let course = Course::new(program, 0, Noise { kernels: 0, gaps: 0 });
        omniscient(&spans.collect::<Vec<_>>(), course, Rules::default().epsilon).get()
    }

    /// Ends an attempt; returns what the queue counted for it.
    fn end(&self, attempt: AttemptId) -> Result<Tally> {
        self.endpoint.desk.ended(attempt);
        let over = self.over.lock().map_err(|_| anyhow!("a thread failed"))?;
        loop {
            let (ended, tally) = over.recv_timeout(TOLD_WITHIN).context("no tally came")?;
            if ended == attempt {
                return Ok(tally);
            }
        }
    }

    /// Lets a program join the queue of the slice; returns its attempt and variables.
    fn admit(&self, priority: u8) -> Result<(AttemptId, Vec<(String, String)>)> {
        let number = self.attempts.fetch_add(1, Ordering::Relaxed);
        let name = if priority == 0 { self.pair.high.name } else { self.pair.low.name };
        let attempt = AttemptId::from_uuid(uuid::Uuid::from_u128(u128::from(number) + 1));
        let admission = Admission {
            attempt,
            slice: self.slice.clone(),
            task: TaskKey::new(format!("{name}-{priority}"))?,
            priority: Priority::try_from(priority)?,
            class: Class::Offline,
            share_thousandths: 1_000,
        };
        let driver = ("LD_LIBRARY_PATH".to_owned(), self.stand_in()?.display().to_string());
        Ok((attempt, self.endpoint.desk.admit(admission, &BTreeMap::from([driver]))?))
    }

    fn stand_in(&self) -> Result<PathBuf> {
        fs::canonicalize(&self.arguments.stand_in).context("no stand-in: run ./x build first")
    }

    fn player(&self, file: &Path, tasks: u32, shim: &[(String, String)]) -> Result<Player> {
        let stand_in = self.stand_in()?;
        let traces = self.folder.path().join("traces");
        let mut command = Command::new(stand_in.join("tessera-sim-player"));
        command
            .arg(file)
            .args(["--wait", "--iterations", &tasks.to_string()])
            .env("LD_LIBRARY_PATH", &stand_in)
            .env("TESSERA_SIM_NODE", self.folder.path().join("node"))
            .env("TESSERA_SIM_CUDA_TRACE", &traces)
            .env("TESSERA_SIM_CUDA_SWITCH_US", self.arguments.switch_us.to_string())
            .env("CUDA_MPS_PIPE_DIRECTORY", self.folder.path().join("no-mps"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if !shim.is_empty() {
            command.env("TESSERA_KERNEL_CUDA", stand_in.join("libcuda.so.1"));
            command.envs(shim.iter().cloned());
        }
        let mut child = command.spawn()?;
        let trace = traces.join(format!("cuda-{}.jsonl", child.id()));
        let output = child.stdout.take().context("piped")?;
        let mut player = Player { child, output: BufReader::new(output), trace };
        ensure!(player.line()? == "ready", "a player did not start");
        Ok(player)
    }

    /// Lets the players go, and waits for the high one.
    fn run(&self, mut high: Player, low: Option<Player>) -> Result<Played> {
        let mut low = low;
        if let Some(low) = &mut low {
            low.go()?;
        }
        high.go()?;
        let report: Value = serde_json::from_str(&high.line()?).context("a player failed")?;
        ensure!(high.child.wait()?.success(), "a player failed");
        let number = |name: &str| report[name].as_u64().context("not a report");
        let window = (number("began_ns")?, number("ended_ns")?);
        let tasks = report["iterations_ns"].as_array().context("not a report")?;
        let tasks = tasks.iter().filter_map(Value::as_u64).collect();
        let low = match low {
            None => Vec::new(),
            Some(mut low) => {
                low.child.kill()?;
                low.child.wait()?;
                spans(&low.trace, window)?
            }
        };
        Ok(Played { window, tasks, high: spans(&high.trace, window)?, low })
    }
}

impl Player {
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn go(&mut self) -> Result<()> {
        Ok(writeln!(self.child.stdin.as_mut().context("piped")?)?)
    }
}

impl Played {
    /// Returns how long all tasks took, as a multiple of another run's.
    pub fn ratio_to(&self, alone: &Self) -> f64 {
        seconds(self.window.1 - self.window.0) / seconds(alone.window.1 - alone.window.0)
    }

    /// Returns the low program's time on the device as a part of what is idle in the same time
    /// when the high one is alone.
    pub fn low_of_gaps(&self, alone: &Self) -> f64 {
        let busy = seconds(total(&alone.high)) / seconds(alone.window.1 - alone.window.0);
        let idle = (1.0 - busy) * seconds(self.window.1 - self.window.0);
        if idle > 0.0 { seconds(total(&self.low)) / idle } else { 0.0 }
    }

    /// Returns the low program's time on the device in gaps as a part of an omniscient filler's:
    /// what the high one lost was no gap.
    pub fn fills(&self, alone: &Self, omniscient: u64) -> f64 {
        let lost = (self.window.1 - self.window.0).saturating_sub(alone.window.1 - alone.window.0);
        let used = total(&self.low).saturating_sub(lost);
        if omniscient > 0 { seconds(used) / seconds(omniscient) } else { 0.0 }
    }

    /// Shows the run beside the one alone.
    pub fn shown(&self, alone: &Self, omniscient: u64) -> Value {
        let round = |value: f64| (value * 1000.0).round() / 1000.0;
        let mut tasks = self.tasks.clone();
        tasks.sort_unstable();
        let at = |part: usize| seconds(tasks[(tasks.len() - 1) * part / 100]) * 1e3;
        json!({
            "high_took_ms": round(seconds(self.window.1 - self.window.0) * 1e3),
            "high_times_alone": round(self.ratio_to(alone)),
            "task_median_ms": round(at(50)),
            "task_max_ms": round(at(100)),
            "high_busy_ms": round(seconds(total(&self.high)) * 1e3),
            "low_busy_ms": round(seconds(total(&self.low)) * 1e3),
            "low_part_of_idle": round(self.low_of_gaps(alone)),
            "low_part_of_omniscient": round(self.fills(alone, omniscient)),
        })
    }
}

fn total(spans: &[(u64, u64)]) -> u64 {
    spans.iter().map(|(from, until)| until - from).sum()
}

fn seconds(nanoseconds: u64) -> f64 {
    std::time::Duration::from_nanos(nanoseconds).as_secs_f64()
}

/// Reads from a trace when kernels ran within a window.
fn spans(trace: &Path, (begin, end): (u64, u64)) -> Result<Vec<(u64, u64)>> {
    let text =
        fs::read_to_string(trace).with_context(|| format!("no trace {}", trace.display()))?;
    let mut all = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("{\"op\":\"kernel\"")) {
        // A killed player's last line may be a part of one.
        let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
        for span in line["spans"].as_array().into_iter().flatten() {
            let at = |index: usize| span[index].as_u64().unwrap_or(0).clamp(begin, end);
            if at(0) < at(1) {
                all.push((at(0), at(1)));
            }
        }
    }
    Ok(all)
}

/// Writes a model's task as a recording, its times stretched.
fn recording(model: &Model, stretch: u64) -> String {
    let program = model.program();
    let mut text = "player 1\n".to_owned();
    let mut kernels = BTreeMap::new();
    for step in &program.steps {
        kernels.entry(step.kernel).or_insert(step.took_ns * stretch);
    }
    for (kernel, took) in kernels {
        // Into a string, which takes everything.
        let _ = writeln!(text, "kernel k{kernel} dur={took}ns");
    }
    for step in &program.steps {
        let _ = writeln!(text, "run k{} 64x1x1/256x1x1", step.kernel);
        if step.gap_ns > 0 {
            let _ = writeln!(text, "gap {}ns", step.gap_ns * stretch);
        }
    }
    text
}
