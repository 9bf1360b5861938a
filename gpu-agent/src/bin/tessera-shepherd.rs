//! Runs attempts for a `tessera-agent`, one at a time, and outlives it. It is not started by hand.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use rustix::process::{Pid, set_child_subreaper, setsid};
use tessera_agent::container::{STEP_COMMAND, wrapper};
use tessera_agent::shepherd::protocol::{PROTOCOL_FLAG, VERSION};
use tessera_agent::shepherd::serve::{Shepherd, ShepherdLocation};
use tessera_agent::sys::spawn::{ignore_signals, take_stdin};
use tessera_agent_core::container::CONTAINER_COMMAND;

/// Runs attempts for a tessera-agent. It is not started by hand: standard input is its connection.
#[derive(Debug, Parser)]
#[command(version)]
struct ShepherdArguments {
    /// The agent's data folder.
    #[arg(long)]
    data: PathBuf,
    /// The name that the agent drew for this shepherd.
    #[arg(long)]
    id: uuid::Uuid,
    /// Control group under which this shepherd creates one for its attempts.
    #[arg(long)]
    groups: Option<PathBuf>,
    /// The program that starts attempts as their users.
    #[arg(long)]
    launch: PathBuf,
}

fn main() -> anyhow::Result<()> {
    // What an agent queries before it starts any shepherd: without the arguments that a shepherd needs.
    if std::env::args().nth(1).is_some_and(|flag| flag == PROTOCOL_FLAG) {
        println!("{VERSION}");
        return Ok(());
    }
    // In front of a container: everything after it is the program inside.
    let words: Vec<String> = std::env::args().skip(2).collect();
    match std::env::args().nth(1).as_deref() {
        Some(CONTAINER_COMMAND) => std::process::exit(wrapper::run(&words).into()),
        Some(STEP_COMMAND) => std::process::exit(wrapper::run_step(&words).into()),
        Some(_) | None => {}
    }
    let arguments = ShepherdArguments::parse();
    ignore_signals();
    // Fails only for a leader of a process group, which already is in its own group.
    let _ = setsid();
    set_child_subreaper(Pid::from_raw(1)).context("can't adopt orphans of attempts")?;
    // Without the privilege the shepherd is as likely a victim as any other process.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-900");
    let null = std::fs::File::open("/dev/null").context("can't open /dev/null")?;
    let agent = UnixStream::from(take_stdin(&null).context("standard input is no socket")?);
    let place = ShepherdLocation {
        data: arguments.data,
        id: arguments.id,
        groups: arguments.groups,
        launch: arguments.launch,
    };
    Shepherd::start(place, agent).context("can't set the shepherd up")?.run();
    Ok(())
}
