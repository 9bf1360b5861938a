//! Plays a recorded program on the CUDA driver that the loader finds: real calls, real waits.

use std::fs;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};
use tessera_stand_in::cuda::program::{CudaError, CudaHandle, CudaProgram, NAME};
use tessera_stand_in::cuda::recording::{RecordedStep, RecordingError, WorkRecording};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Plays the kernels of a file on the first device, and reports how long they took as JSON.
#[derive(Parser)]
#[command(name = "tessera-sim-player", version)]
struct PlayerArguments {
    /// The recording; its format is that of `tessera_stand_in::cuda::recording`. `-` for standard
    /// input.
    file: PathBuf,
    /// How often to play it, instead of what the file states.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: Option<u32>,
    /// Wait for a line on standard input before the first kernel, so that several players start
    /// together; "ready" is written when this one can.
    #[arg(long)]
    wait: bool,
    /// Threads that play it at the same time, each on its own streams.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
}

#[derive(Debug, thiserror::Error)]
enum PlayError {
    #[error("can't read the recording: {0}")]
    File(#[from] std::io::Error),
    #[error(transparent)]
    Recording(#[from] RecordingError),
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// A program that is ready to play.
struct RecordingPlayer {
    cuda: CudaProgram,
    recording: WorkRecording,
    functions: Vec<CudaHandle>,
    streams: Vec<CudaHandle>,
}

fn main() -> ExitCode {
    let arguments = PlayerArguments::parse();
    match play(&arguments) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tessera-sim-player: {error}");
            ExitCode::FAILURE
        }
    }
}

fn play(arguments: &PlayerArguments) -> Result<serde_json::Value, PlayError> {
    let text = if arguments.file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        text
    } else {
        fs::read_to_string(&arguments.file)?
    };
    let mut recording = WorkRecording::parse(&text)?;
    recording.iterations = arguments.iterations.unwrap_or(recording.iterations);
    let player = RecordingPlayer::new(recording)?;
    if arguments.wait {
        println!("ready");
        std::io::stdin().read_line(&mut String::new())?;
    }
    std::thread::scope(|scope| {
        for _ in 1..arguments.threads {
            scope.spawn(|| match player.enter().and_then(|streams| player.play_on(&streams)) {
                Ok(_) => {}
                Err(error) => eprintln!("tessera-sim-player: a thread: {error}"),
            });
        }
        Ok(player.play()?)
    })
}

impl RecordingPlayer {
    fn new(recording: WorkRecording) -> Result<Self, CudaError> {
        let cuda = CudaProgram::open(NAME)?;
        cuda.init()?;
        cuda.use_device(0)?;
        let module = cuda.load(&recording.image)?;
        let kernels = recording.kernels.iter();
        let functions = kernels.map(|name| cuda.kernel(module, name)).collect::<Result<_, _>>()?;
        // Of the kind that frameworks make: none waits for the legacy default stream.
        let streams =
            (0..recording.streams).map(|_| cuda.stream(1, 0)).collect::<Result<_, _>>()?;
        if recording.memory_bytes > 0 {
            cuda.allocate(recording.memory_bytes)?;
        }
        Ok(Self { cuda, recording, functions, streams })
    }

    /// Prepares the calling thread to play.
    fn enter(&self) -> Result<Vec<CudaHandle>, CudaError> {
        self.cuda.use_device(0)?;
        (0..self.recording.streams).map(|_| self.cuda.stream(1, 0)).collect()
    }

    fn play(&self) -> Result<serde_json::Value, CudaError> {
        self.play_on(&self.streams)
    }

    fn play_on(&self, streams: &[CudaHandle]) -> Result<serde_json::Value, CudaError> {
        let began = self.now();
        let mut launches = 0_u64;
        let (mut ends, mut overslept) = (Vec::new(), Vec::new());
        for _ in 0..self.recording.iterations {
            let mut late = 0;
            for step in &self.recording.steps {
                launches += u64::from(matches!(step, RecordedStep::Run { .. }));
                late += self.step(*step, streams)?;
            }
            self.cuda.synchronize()?;
            ends.push(self.now());
            overslept.push(late);
        }
        let starts = std::iter::once(&began).chain(&ends);
        let lengths: Vec<_> = starts.zip(&ends).map(|(start, end)| end - start).collect();
        let ended = ends.last().copied().unwrap_or(began);
        Ok(serde_json::json!({
            "program": "tessera-sim-player",
            "iterations": self.recording.iterations,
            "launches": launches,
            "began_ns": began,
            "ended_ns": ended,
            "took_ns": ended - began,
            "iterations_ns": lengths,
            // By how much its pauses were longer than recorded, in each iteration: the machine woke it late.
            "overslept_ns": overslept,
        }))
    }

    /// Does one step; returns by how many nanoseconds a pause was longer than recorded.
    fn step(&self, step: RecordedStep, streams: &[CudaHandle]) -> Result<u64, CudaError> {
        match step {
            RecordedStep::Run { kernel, shape, stream } => {
                self.cuda.launch(self.functions[kernel], shape, streams[stream], &[])?;
            }
            RecordedStep::Sync => self.cuda.synchronize()?,
            RecordedStep::Gap(time) => {
                self.cuda.synchronize()?;
                if !self.cuda.pass(time) {
                    let until = self.now() + time;
                    sleep_until(until);
                    return Ok(self.now().saturating_sub(until));
                }
            }
        }
        Ok(0)
    }

    fn now(&self) -> u64 {
        self.cuda.now().unwrap_or_else(|| {
            let now = clock_gettime(ClockId::Monotonic);
            // The kernel counts this clock from the start of the machine.
            now.tv_sec.cast_unsigned() * NANOS_PER_SECOND + now.tv_nsec.cast_unsigned()
        })
    }
}

fn sleep_until(at: u64) {
    // A part of a `u64` in seconds is below the largest `i64`.
    let [seconds, nanos] = [at / NANOS_PER_SECOND, at % NANOS_PER_SECOND].map(u64::cast_signed);
    let until = Timespec { tv_sec: seconds, tv_nsec: nanos };
    // A signal in between is no reason to be early.
    while clock_nanosleep_absolute(ClockId::Monotonic, &until) == Err(rustix::io::Errno::INTR) {}
}
