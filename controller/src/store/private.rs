//! PostgreSQL as a child of the controller, in its data folder, reachable over a unix socket
//! only: the same server, SQL and migrations as with an external database.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use sqlx::postgres::PgConnectOptions;

/// A private server that could not be set up or started.
#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    /// No server programs on this machine.
    #[error(
        "no PostgreSQL server programs found: install them (Debian: apt-get install postgresql), \
         set TESSERA_PG_BIN to their folder, or give a database with --database postgres://…"
    )]
    NoPrograms,
    /// Running as root, and there is no account to run PostgreSQL as.
    #[error(
        "PostgreSQL doesn't run as root, and none of the accounts {tried} exists: \
         create one, or name it in TESSERA_PG_USER"
    )]
    NoAccount {
        /// The accounts that were looked for.
        tried: String,
    },
    /// The socket's path would be longer than the system allows.
    #[error("{path} is too long for a unix socket: choose a shorter --data folder")]
    PathTooLong {
        /// The folder.
        path: String,
    },
    /// The data was made by another version of PostgreSQL.
    #[error(
        "the data folder was created by PostgreSQL {data}, and the programs are of version \
             {programs}: use pg_upgrade"
    )]
    VersionMismatch {
        /// Version of the data.
        data: String,
        /// Version of the programs.
        programs: String,
    },
    /// Older than what the controller needs.
    #[error("PostgreSQL {version} is too old: 15 or newer is needed")]
    TooOld {
        /// The version found.
        version: String,
    },
    /// A program failed.
    #[error("{program} failed: {output}")]
    Failed {
        /// Its name.
        program: &'static str,
        /// What the program printed.
        output: String,
    },
    /// The system refused something.
    #[error("can't {action}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The system's error.
        #[source]
        cause: io::Error,
    },
}

fn io_while(action: &'static str) -> impl FnOnce(io::Error) -> PrivateError {
    move |cause| PrivateError::Io { action, cause }
}

/// An account to run as, by number.
#[derive(Clone, Copy, Debug)]
struct ServerAccount {
    uid: u32,
    gid: u32,
}

/// A running private server; stopped when dropped.
#[derive(Debug)]
pub struct PrivatePostgres {
    child: Child,
    socket: PathBuf,
}

/// How long a server may take to come up, recovery after a crash included.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// How long a server may take to shut down before it must drop everything.
const STOP_DEADLINE: Duration = Duration::from_secs(10);
/// `sockaddr_un` holds 108 bytes, one of them the end; the socket's file name takes 14.
const SOCKET_FOLDER_MAX: usize = 107 - 14;

impl PrivatePostgres {
    /// Starts the server over `folder`, making its data there first if there is none.
    ///
    /// Call it from the main thread before other threads exist: the server is stopped when the
    /// thread that started it ends for any reason.
    ///
    /// `durable` off turns `fsync` off, for tests that don't test durability.
    ///
    /// # Errors
    ///
    /// [`PrivateError`] states what is missing and what to do about it.
    pub fn start(folder: &Path, durable: bool) -> Result<Self, PrivateError> {
        let programs = find_programs()?;
        let account = unprivileged_account()?;
        fs::create_dir_all(folder).map_err(io_while("create the data folder"))?;
        let folder = fs::canonicalize(folder).map_err(io_while("find the data folder"))?;
        let data = folder.join("data");
        let socket = folder.join("s");
        if socket.as_os_str().len() > SOCKET_FOLDER_MAX {
            return Err(PrivateError::PathTooLong { path: socket.display().to_string() });
        }
        fs::create_dir_all(&socket).map_err(io_while("create the socket's folder"))?;
        for private in [&folder, &socket] {
            own(private, account)?;
        }
        if data.join("PG_VERSION").exists() {
            check_version(&programs, &data)?;
        } else {
            initdb(&programs, account, &data, durable)?;
        }
        stop_previous(&data);
        let child = spawn(&programs, account, &folder, &data, &socket, durable)?;
        let mut server = Self { child, socket };
        server.wait_until_ready(&folder, &data)?;
        Ok(server)
    }

    /// Returns how to connect.
    pub fn options(&self) -> PgConnectOptions {
        PgConnectOptions::new_without_pgpass()
            .socket(&self.socket)
            .username("tessera")
            .database("postgres")
            .application_name("tessera-controller")
    }

    /// Returns the server's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the server has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    #[expect(clippy::disallowed_methods, reason = "the deadline for the server's start")]
    fn wait_until_ready(&mut self, folder: &Path, data: &Path) -> Result<(), PrivateError> {
        let begun = Instant::now();
        let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
        while begun.elapsed() < START_DEADLINE {
            if self.has_ended() {
                return Err(PrivateError::Failed { program: "postgres", output: tail(&log()) });
            }
            if is_ready(data, self.child.id()) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(PrivateError::Failed {
            program: "postgres",
            output: format!("not ready within {} s: {}", START_DEADLINE.as_secs(), tail(&log())),
        })
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended by itself: then there is nothing to stop.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

impl Drop for PrivatePostgres {
    #[expect(clippy::disallowed_methods, reason = "the deadline for the server's end")]
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        // "Fast shutdown": open transactions are rolled back, data is flushed.
        self.signal(Signal::INT);
        let begun = Instant::now();
        while !self.has_ended() {
            if begun.elapsed() > STOP_DEADLINE {
                self.signal(Signal::QUIT);
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Line 8 of `postmaster.pid` is the state that `pg_ctl` waits for too.
fn is_ready(data: &Path, pid: u32) -> bool {
    fs::read_to_string(data.join("postmaster.pid")).is_ok_and(|text| {
        let mut lines = text.lines();
        lines.next().and_then(|line| line.trim().parse().ok()) == Some(pid)
            && lines.nth(6).is_some_and(|state| state.trim() == "ready")
    })
}

fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("; ")
}

fn find_programs() -> Result<PathBuf, PrivateError> {
    let has_server = |folder: &PathBuf| folder.join("postgres").is_file();
    if let Some(folder) = std::env::var_os("TESSERA_PG_BIN").map(PathBuf::from) {
        return if has_server(&folder) { Ok(folder) } else { Err(PrivateError::NoPrograms) };
    }
    let versioned = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, folder)| has_server(folder))
        .max_by_key(|(version, _)| *version)
        .map(|(_, folder)| folder);
    let path = std::env::var_os("PATH").unwrap_or_default();
    versioned
        .or_else(|| std::env::split_paths(&path).find(has_server))
        .ok_or(PrivateError::NoPrograms)
}

/// PostgreSQL refuses to run as root: finds an account for it, which `initdb` needs to be a
/// real one.
fn unprivileged_account() -> Result<Option<ServerAccount>, PrivateError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let chosen = std::env::var("TESSERA_PG_USER").ok();
    let names: Vec<_> = chosen.as_deref().into_iter().chain(["postgres", "nobody"]).collect();
    let passwd = fs::read_to_string("/etc/passwd").map_err(io_while("read /etc/passwd"))?;
    names
        .iter()
        .find_map(|name| account_of(&passwd, name))
        .map(Some)
        .ok_or_else(|| PrivateError::NoAccount { tried: names.join(", ") })
}

fn account_of(passwd: &str, name: &str) -> Option<ServerAccount> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? != name {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(ServerAccount { uid, gid })
    })
}

fn own(folder: &Path, account: Option<ServerAccount>) -> Result<(), PrivateError> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
        .map_err(io_while("close the data folder to others"))?;
    if let Some(account) = account {
        chown(folder, Some(account.uid), Some(account.gid))
            .map_err(io_while("give the data folder to PostgreSQL's account"))?;
    }
    Ok(())
}

fn command(programs: &Path, program: &str, account: Option<ServerAccount>) -> Command {
    let mut command = Command::new(programs.join(program));
    command
        .env_clear()
        .env("PATH", programs)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .current_dir("/")
        .stdin(Stdio::null());
    if let Some(account) = account {
        // Setting the uid from root also drops the supplementary groups.
        command.uid(account.uid).gid(account.gid);
    }
    command
}

fn major(version: &str) -> Option<u32> {
    version.trim().split('.').next()?.parse().ok()
}

fn programs_version(programs: &Path) -> Result<String, PrivateError> {
    let output = command(programs, "postgres", None)
        .arg("--version")
        .output()
        .map_err(io_while("run postgres --version"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"
    Ok(text.split_whitespace().nth(2).unwrap_or("unknown").to_owned())
}

fn check_version(programs: &Path, data: &Path) -> Result<(), PrivateError> {
    let made_by =
        fs::read_to_string(data.join("PG_VERSION")).map_err(io_while("read the data's version"))?;
    let version = programs_version(programs)?;
    if major(&made_by) == major(&version) {
        Ok(())
    } else {
        Err(PrivateError::VersionMismatch { data: made_by.trim().to_owned(), programs: version })
    }
}

fn initdb(
    programs: &Path,
    account: Option<ServerAccount>,
    data: &Path,
    durable: bool,
) -> Result<(), PrivateError> {
    let version = programs_version(programs)?;
    if major(&version).is_none_or(|major| major < 15) {
        return Err(PrivateError::TooOld { version });
    }
    // Made under another name and renamed, so that a crash leaves no incomplete data.
    let fresh = data.with_extension("new");
    if fresh.exists() {
        fs::remove_dir_all(&fresh).map_err(io_while("clear an incomplete data folder"))?;
    }
    let mut initdb = command(programs, "initdb", account);
    initdb
        .args(["-A", "trust", "-U", "tessera", "-E", "UTF8", "--locale=C", "--no-instructions"])
        .arg("--data-checksums")
        .arg("-D")
        .arg(&fresh);
    if !durable {
        initdb.arg("-N");
    }
    let output = initdb.output().map_err(io_while("run initdb"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(PrivateError::Failed { program: "initdb", output: tail(&text) });
    }
    fs::rename(&fresh, data).map_err(io_while("put the new data in place"))
}

fn spawn(
    programs: &Path,
    account: Option<ServerAccount>,
    folder: &Path,
    data: &Path,
    socket: &Path,
    durable: bool,
) -> Result<Child, PrivateError> {
    let log = fs::File::create(folder.join("log")).map_err(io_while("create the server's log"))?;
    let mut server = tied_to_parent(programs, account);
    server.arg("-D").arg(data).arg("-k").arg(socket);
    for setting in [
        "listen_addresses=",
        "unix_socket_permissions=0700",
        "max_connections=64",
        "shared_buffers=64MB",
        "max_wal_size=2GB",
        "jit=off",
        "autovacuum_naptime=15s",
        "log_min_messages=warning",
    ] {
        server.args(["-c", setting]);
    }
    if !durable {
        server.args(["-c", "fsync=off", "-c", "full_page_writes=off"]);
    }
    server.stdout(Stdio::null()).stderr(log).process_group(0);
    server.spawn().map_err(io_while("start postgres"))
}

/// Returns a command for the server that the kernel stops when the thread that started it ends,
/// even by `kill -9`: a server without its controller would hold the data folder.
///
/// `setpriv` (util-linux) sets that up; where it is missing, [`stop_previous`] stops the server later.
fn tied_to_parent(programs: &Path, account: Option<ServerAccount>) -> Command {
    let setpriv = Path::new("/usr/bin/setpriv");
    if !setpriv.exists() {
        return command(programs, "postgres", account);
    }
    // The uid is changed by setpriv, since a change of credentials clears the death signal.
    let mut tied = command(Path::new("/usr/bin"), "setpriv", None);
    if let Some(ServerAccount { uid, gid }) = account {
        tied.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}")).arg("--clear-groups");
    }
    tied.args(["--pdeathsig", "INT", "--"]).arg(programs.join("postgres"));
    tied
}

/// Stops a server that an earlier controller left over this data, and waits for its end.
#[expect(clippy::disallowed_methods, reason = "the deadline for the end of an earlier server")]
fn stop_previous(data: &Path) {
    let begun = Instant::now();
    while begun.elapsed() < STOP_DEADLINE {
        let Some(pid) = previous(data) else { return };
        // It may end between the look and the signal: then the next look finds nothing.
        let _ = rustix::process::kill_process(pid, Signal::INT);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The process that `postmaster.pid` names, if it is alive and is a server over this data.
fn previous(data: &Path) -> Option<Pid> {
    let text = fs::read_to_string(data.join("postmaster.pid")).ok()?;
    let number: i32 = text.lines().next()?.trim().parse().ok()?;
    let arguments = fs::read(format!("/proc/{number}/cmdline")).ok()?;
    let needle = data.as_os_str().as_encoded_bytes();
    let ours = arguments.windows(needle.len()).any(|window| window == needle);
    ours.then(|| Pid::from_raw(number)).flatten()
}
