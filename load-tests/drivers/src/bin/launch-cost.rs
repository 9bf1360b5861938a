//! What a start through `tessera-launch` costs: from the order to the reported end of `/bin/true`, next to a process
//! that the caller starts itself. As root it also becomes another account, with and without private mounts.

use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use clap::Parser;
use serde_json::json;
use tessera_agent::lease_page::{LeasePage, StoredLease};
use tessera_launch::client::LauncherProcess;
use tessera_launch::order::{Account, Input, Order, Output, Program, Reply, Request, Walls};
use tessera_launch::socket::Received;
use tessera_load_tests::machine::{self, Spread};
use tessera_load_tests::programs::programs;
use tessera_model::{BootId, Millis};

/// An account that owns nothing on any machine.
const UID: u32 = 64_001;

#[derive(Parser)]
struct Arguments {
    /// Number of starts of each variant.
    #[arg(long, default_value_t = 400)]
    starts: usize,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// One way to start a program.
struct LaunchWay {
    name: &'static str,
    account: Option<Account>,
    walls: Walls,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let is_root = rustix::process::geteuid().is_root();
    // In memory: to make a folder, ext4 passes over all that were removed in the last half minute. So each run would
    // slow down the next one, by up to 2 ms a start after ten of them.
    let folder = tempfile::tempdir_in("/dev/shm")?;
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755))?;
    let page = LeasePage::open_writer(folder.path())?;
    let boot = BootId::from_uuid(uuid::Uuid::from_u128(1));
    page.write(&StoredLease { generation: 1, deadline: Millis::new(u64::MAX), boot })?;
    let null = File::options().write(true).open("/dev/null")?;
    let descriptors = [page.descriptor(), null.as_fd(), null.as_fd()];
    let mut ways = launch_ways();
    if !is_root {
        eprintln!("only root can start programs as other accounts: only the own one is measured");
        ways.truncate(1);
    }

    let launch = programs().path("tessera-launch");
    let mut launchers = Vec::new();
    for _ in &ways {
        launchers.push(LauncherProcess::start(&launch).context("can't start the launcher")?);
    }
    let mut own = Vec::new();
    let mut measured = vec![Vec::new(); ways.len()];
    for start in 0..arguments.starts {
        let begun = Instant::now();
        ensure!(Command::new("/bin/true").status()?.success());
        own.push(begun.elapsed().as_secs_f64() * 1e3);
        // The variants run in turn, so that other load of the machine affects each equally.
        for ((way, launcher), times) in ways.iter().zip(&launchers).zip(&mut measured) {
            let attempt = folder.path().join(format!("{}-{start}", way.name));
            let order = Order { own: Some(attempt.display().to_string()), ..order_of(way, boot) };
            let begun = Instant::now();
            run(launcher, order, &descriptors).with_context(|| way.name)?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
    }
    let mut result = json!({
        "what": "from the order to the reported end of /bin/true, in milliseconds",
        "machine": machine::facts(),
        "started_by_the_caller": Spread::of(own).millis(),
    });
    for (way, times) in ways.iter().zip(measured) {
        result[way.name] = Spread::of(times).millis();
    }
    machine::report(&result, arguments.out.as_deref())
}

fn launch_ways() -> Vec<LaunchWay> {
    let account = || Some(Account { uid: UID, gid: UID, groups: vec![UID] });
    let walls = Walls { no_new_privileges: true, root_allowed: true, ..Walls::default() };
    vec![
        LaunchWay { name: "own_account", account: None, walls },
        LaunchWay { name: "another_account", account: account(), walls },
        LaunchWay {
            name: "private_tmp",
            account: account(),
            walls: Walls { private_tmp: true, ..walls },
        },
        LaunchWay {
            name: "hidden_processes",
            account: account(),
            walls: Walls { private_tmp: true, hide_processes: true, ..walls },
        },
    ]
}

fn order_of(way: &LaunchWay, boot: BootId) -> Order {
    Order {
        account: way.account.clone(),
        uid_min: 1000,
        program: Program::Command(vec!["/bin/true".to_owned()]),
        wrapper: Vec::new(),
        environment: Vec::new(),
        own: None,
        work_dir: None,
        stdin: Input::Null,
        input: None,
        stdout: Output::Given,
        stderr: Output::Given,
        joins: false,
        append: false,
        headline: None,
        generation: 1,
        boot: *boot.as_uuid().as_bytes(),
        open_within_ms: 15_000,
        walls: way.walls,
        devices: None,
        has_group: false,
        v1_groups: 0,
    }
}

/// Starts a program and waits until its end is reported.
fn run(
    launcher: &LauncherProcess,
    order: Order,
    descriptors: &[BorrowedFd<'_>],
) -> anyhow::Result<()> {
    launcher.socket.request(&Request::Start(Box::new(order)), descriptors)?;
    loop {
        let socket = launcher.socket.descriptor();
        let mut readable = [rustix::event::PollFd::new(&socket, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut readable, None)?;
        match launcher.socket.receive_reply()? {
            Received::Message(Reply::Started { .. }, _) | Received::Nothing => {}
            Received::Message(Reply::Ended { status: 0, .. }, _) => return Ok(()),
            Received::Message(reply, _) => bail!("{reply:?}"),
            Received::End => bail!("the launcher has ended"),
        }
    }
}
