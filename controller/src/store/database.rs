//! Where the database is: given by URL, or a private server that is watched and restarted.

use std::path::Path;
use std::str::FromStr as _;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use sqlx::postgres::PgConnectOptions;

use super::private::{PrivateError, PrivatePostgres};

/// A database, and what keeps it up.
#[derive(Debug)]
pub struct Database {
    /// How to connect.
    pub options: PgConnectOptions,
    keeper: Option<Keeper>,
}

#[derive(Debug)]
struct Keeper {
    stop: mpsc::Sender<()>,
    thread: thread::JoinHandle<()>,
}

/// How often the private server is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long to wait before a private server that doesn't start is tried again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

impl Database {
    /// Opens the database that the settings name.
    ///
    /// # Errors
    ///
    /// If the URL can't be read, or the private server doesn't start.
    pub fn open(database: &str, data: &Path, durable: bool) -> anyhow::Result<Self> {
        if database != "private" {
            let options = PgConnectOptions::from_str(database).context("bad database URL")?;
            let options = options.application_name("tessera-controller");
            return Ok(Self { options, keeper: None });
        }
        let folder = data.join("pg");
        let (stop, stopped) = mpsc::channel();
        let (started, start) = mpsc::channel();
        // Its own thread: the kernel ends the server with the thread that started it.
        let thread = thread::Builder::new()
            .name("postgres".to_owned())
            .spawn(move || keep(&folder, durable, &started, &stopped))?;
        let options = start.recv().context("the private PostgreSQL's keeper died")??;
        Ok(Self { options, keeper: Some(Keeper { stop, thread }) })
    }

    /// Stops a private server; its data is flushed.
    pub fn close(self) {
        if let Some(keeper) = self.keeper {
            drop(keeper.stop);
            if keeper.thread.join().is_err() {
                tracing::error!("the private PostgreSQL's keeper panicked");
            }
        }
    }
}

type Started = Result<PgConnectOptions, PrivateError>;

fn keep(
    folder: &Path,
    durable: bool,
    started: &mpsc::Sender<Started>,
    stopped: &mpsc::Receiver<()>,
) {
    let mut server = match PrivatePostgres::start(folder, durable) {
        Ok(server) => {
            let _ = started.send(Ok(server.options()));
            Some(server)
        }
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    // Ends when the other side is dropped.
    while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK_EVERY) {
        if server.as_mut().is_some_and(|server| !server.has_ended()) {
            continue;
        }
        tracing::warn!("the private PostgreSQL ended, it is started again");
        // The old process is reaped first, so that its id can't be mistaken for the new one's.
        drop(server.take());
        match PrivatePostgres::start(folder, durable) {
            Ok(again) => server = Some(again),
            Err(error) => {
                tracing::error!(%error, "the private PostgreSQL doesn't start");
                thread::sleep(RESTART_PAUSE);
            }
        }
    }
}
