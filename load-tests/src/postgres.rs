//! A PostgreSQL that the test can stop without the controller's knowledge.

use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::daemon::Daemon;
use crate::wait;

/// A database server on a socket in the cluster's folder.
#[derive(Debug)]
pub struct Postgres {
    server: Daemon,
    data: PathBuf,
    folder: PathBuf,
    user: String,
}

impl Postgres {
    /// Makes a database and starts its server, durable as in production.
    pub fn start(cluster: &Path) -> Self {
        let folder = cluster.join("pg");
        let socket = cluster.join("s");
        let account = Account::for_postgres();
        for path in [&folder, &socket] {
            fs::create_dir_all(path).expect("a folder");
            if let Some(account) = &account {
                chown(path, Some(account.user), Some(account.group)).expect("chown");
            }
        }
        let mut init = Command::new(program("initdb"));
        init.args(["-k", "--locale=C", "-E", "UTF8", "-A", "trust", "-U", "tessera", "-D"])
            .arg(&folder);
        run(init);

        let arguments = ["-D", &folder.display().to_string(), "-k", &socket.display().to_string()]
            .map(str::to_owned);
        let mut server = Daemon::new("postgres", program("postgres"), cluster)
            .args(arguments)
            .args(["-c", "listen_addresses="]);
        if let Some(account) = account {
            server = server.as_user(account.user, account.group);
        }
        server.start();
        let postgres = Self { server, data: folder, folder: socket, user: "tessera".to_owned() };
        postgres.wait_ready();
        postgres
    }

    /// Returns the URL of the database.
    pub fn url(&self) -> String {
        let socket = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://{}@{socket}/postgres", self.user)
    }

    /// Kills the server, and with it all its processes.
    pub fn kill(&mut self) {
        self.server.kill();
        // Its children hold the shared memory until they notice its end.
        std::thread::sleep(Duration::from_millis(200));
    }

    /// Starts the server again.
    pub fn restart(&mut self) {
        wait::until(Duration::from_secs(20), "postgres accepts a new start", || {
            if !self.server.is_running() {
                self.server.kill();
                self.server.start();
            }
            self.answers().then_some(())
        });
    }

    /// Copies the running database, as an administrator's nightly backup does.
    pub fn back_up(&self) -> PathBuf {
        let copy = self.data.with_extension("backup");
        // It refuses data that others may read.
        fs::DirBuilder::new().mode(0o700).create(&copy).expect("a folder");
        if let Some(account) = Account::for_postgres() {
            chown(&copy, Some(account.user), Some(account.group)).expect("chown");
        }
        let mut backup = Command::new(program("pg_basebackup"));
        backup.args(["-c", "fast", "-U", &self.user, "-h"]).arg(&self.folder).arg("-D").arg(&copy);
        run(backup);
        copy
    }

    /// Kills the server, and starts one from a backup in its place: recovered to the backup's end
    /// and promoted, as after a failover to a replica that had fallen behind.
    pub fn fall_back_to(&mut self, backup: &Path) {
        self.kill();
        fs::remove_dir_all(&self.data).expect("the old data is removed");
        fs::rename(backup, &self.data).expect("the backup replaces it");
        fs::write(self.data.join("recovery.signal"), "").expect("a file");
        let settings = self.data.join("postgresql.auto.conf");
        let mut settings = fs::OpenOptions::new().append(true).open(settings).expect("settings");
        writeln!(settings, "restore_command = 'false'").expect("a setting");
        self.restart();
    }

    /// Runs a statement, as the administrator of the database would.
    pub fn sql(&self, statement: &str) {
        let done = Command::new(program("psql"))
            .args(["-q", "-X", "-v", "ON_ERROR_STOP=1", &self.url(), "-c", statement])
            .output()
            .expect("psql runs");
        assert!(done.status.success(), "{statement}: {done:?}");
    }

    fn wait_ready(&self) {
        wait::until(Duration::from_secs(20), "postgres ready", || self.answers().then_some(()));
    }

    fn answers(&self) -> bool {
        Command::new(program("pg_isready"))
            .args(["-q", "-h"])
            .arg(&self.folder)
            .status()
            .is_ok_and(|status| status.success())
    }
}

/// Runs a program of PostgreSQL's, as the user that its server runs as.
fn run(mut command: Command) {
    if let Some(account) = Account::for_postgres() {
        command.uid(account.user).gid(account.group);
    }
    let done = command.current_dir("/").output().expect("a program of PostgreSQL's runs");
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// The account under which a server runs when we are root: PostgreSQL refuses root.
struct Account {
    user: u32,
    group: u32,
}

impl Account {
    fn for_postgres() -> Option<Self> {
        // Sound: geteuid(2) always succeeds.
        if unsafe { libc::geteuid() } != 0 {
            return None;
        }
        let name = CString::new("postgres").expect("no NUL");
        // Sound: getpwnam(3) returns null or a record that stays until the next call, and no
        // other thread of a test requests one.
        let entry = unsafe { libc::getpwnam(name.as_ptr()).as_ref() };
        let entry = entry.expect("the packages of PostgreSQL make a user postgres");
        Some(Self { user: entry.pw_uid, group: entry.pw_gid })
    }
}

/// Finds a server program: Debian keeps them out of the search path.
pub fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions
        .map(|version| version.path().join("bin").join(name))
        .filter(|path| path.is_file())
        .collect();
    found.sort();
    found.pop().unwrap_or_else(|| PathBuf::from(name))
}
