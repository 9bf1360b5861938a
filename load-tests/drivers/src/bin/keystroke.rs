//! Measures how long a key takes from the keyboard to the screen in `tessera run --pty bash`, and
//! in a bash without Tessera.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::json;
use tessera_load_tests::cluster::{Cluster, Plan, SOON};
use tessera_load_tests::machine::{self, Spread};
use tessera_load_tests::programs::programs;
use tessera_load_tests::terminal::Terminal;

/// Keys before the line is emptied, so that none wraps.
const LINE: usize = 40;
/// Ctrl-U: empties the line.
const KILL_LINE: &str = "\x15";
/// What the shell prints once it is ready.
const PROMPT: &str = "ready> ";

#[derive(Parser)]
struct Arguments {
    /// Keys to measure.
    #[arg(long, default_value_t = 1000)]
    keys: usize,
    /// Pause between two keys, in milliseconds: that of a fast typist, so that caches don't stay
    /// warm.
    #[arg(long, default_value_t = 20)]
    pause_ms: u64,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    let shell = ["bash", "--norc", "--noprofile", "-i"];
    let run = |url: String| {
        let mut command = tessera(&cluster, url);
        command.args(["run", "--quiet", "--pty"]).args(shell);
        measure(command, &arguments)
    };
    let network = run(format!("http://{}", cluster.http()));
    let socket = run(cluster.url());
    let mut alone = Command::new(shell[0]);
    alone.args(&shell[1..]);
    let alone = measure(alone, &arguments);
    drop(cluster);
    let result = json!({
        "what": "a key from the keyboard to the screen, in run --pty bash and in a bash that it starts itself",
        "machine": machine::facts(),
        "pause_ms": arguments.pause_ms,
        "over_tcp": network.millis(),
        "over_the_unix_socket": socket.millis(),
        "without_tessera": alone.millis(),
    });
    machine::report(&result, arguments.out.as_deref())
}

fn tessera(cluster: &Cluster, url: String) -> Command {
    let mut command = Command::new(programs().path("tessera"));
    command.env("TESSERA_URL", url).env("TESSERA_TOKEN", cluster.token());
    command
}

/// Types in a shell, one key after the other, and returns how long each took, in milliseconds.
fn measure(mut shell: Command, arguments: &Arguments) -> Spread {
    let mut terminal = Terminal::start(shell.env("TERM", "xterm"));
    terminal.type_in("PS1='rea''dy> '\r");
    terminal.wait_for(PROMPT, SOON);
    let mut times = Vec::with_capacity(arguments.keys);
    for number in 0..arguments.keys {
        if number % LINE == 0 {
            terminal.clear();
            terminal.type_in(KILL_LINE);
            terminal.type_in("\r");
            terminal.wait_for(PROMPT, SOON);
        }
        std::thread::sleep(Duration::from_millis(arguments.pause_ms));
        terminal.clear();
        let key = [b"abcdefghijklmnopqrstuvwxyz"[number % 26]];
        let pressed = Instant::now();
        terminal.type_in(key);
        terminal.wait_for(key, SOON);
        times.push(pressed.elapsed().as_secs_f64() * 1000.0);
    }
    Spread::of(times)
}
