//! `tessera forward`: ports of a job, on this machine.

use std::net::{Ipv4Addr, SocketAddr};

use clap::Args;
use tessera_api_types::SessionOpening;
use tessera_client::ApiClient;
use tessera_model::JobRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::conversation::{Conversation, Output, SessionEnd};
use super::input::LocalInput;
use crate::failure::CommandFailure;
use crate::jobs::parse_one_job;
use crate::session::{CommandSession, write_out};

/// How much is read at once.
const CHUNK: usize = 16 * 1024;
/// Pieces that may wait for the network.
const WAITING: usize = 2;

/// Makes a port of a job reachable on this machine, such as that of a notebook: connections to it
/// are forwarded to the job's node. Only the job's own user may do so.
#[derive(Args)]
pub struct Forward {
    /// The job, such as 42 or 42_7
    #[arg(value_name = "JOB", value_parser = parse_one_job)]
    job: JobRef,
    /// The port in the job, and the local one if it differs (0 chooses a free one): 8888 or
    /// 8888:9999
    #[arg(value_name = "PORT[:LOCAL]", value_parser = parse_ports)]
    ports: Ports,
}

/// A port of a job, and the local one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ports {
    there: u16,
    here: u16,
}

/// A text that does not name ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum BadPorts {
    /// A part is not a port.
    #[error("{0:?} is not a port: expected 1 to 65535")]
    NoPort(String),
    /// Jobs have no port 0.
    #[error("there is no port 0: expected 1 to 65535")]
    Zero,
}

fn parse_ports(text: &str) -> Result<Ports, BadPorts> {
    let (there, here) = text.split_once(':').unwrap_or((text, text));
    let port = |text: &str| text.parse::<u16>().map_err(|_| BadPorts::NoPort(text.to_owned()));
    match (port(there)?, port(here)?) {
        (0, _) => Err(BadPorts::Zero),
        (there, here) => Ok(Ports { there, here }),
    }
}

impl Forward {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let Ports { there, here } = self.ports;
        let found = session.client.job(self.job).await?;
        if found.job.state != "running" {
            let state = &found.job.state;
            let problem = format!("job {} is {state}: only running jobs have ports", self.job);
            return Err(CommandFailure::refused(problem));
        }
        // Only this machine: its user decides who else may connect, for example with ssh.
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, here))).await?;
        let local = listener.local_addr()?;
        write_out(&format!("forwarding {local} to port {there} of job {}\n", self.job))?;
        let mut interrupted = signal(SignalKind::interrupt())?;
        let mut terminated = signal(SignalKind::terminate())?;
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let (stream, _) = accepted?;
                    tokio::spawn(carry(session.client.clone(), self.job, there, stream));
                }
                _ = interrupted.recv() => return Ok(130),
                _ = terminated.recv() => return Ok(143),
            }
        }
    }
}

/// Carries one connection.
async fn carry(client: ApiClient, job: JobRef, port: u16, stream: TcpStream) {
    // Small writes of protocols must not be delayed.
    let _ = stream.set_nodelay(true);
    let (mut reader, writer) = stream.into_split();
    let (pieces, input) = mpsc::channel(WAITING);
    let reading = tokio::spawn(async move {
        loop {
            let mut piece = vec![0; CHUNK];
            match reader.read(&mut piece).await {
                Ok(read) if read > 0 => piece.truncate(read),
                Ok(_) | Err(_) => return,
            }
            if pieces.send(piece).await.is_err() {
                return;
            }
        }
    });
    let opening = SessionOpening { port: Some(port), ..SessionOpening::default() };
    let session = (job, uuid::Uuid::new_v4().to_string());
    let conversation = Conversation::new(client, session, opening, LocalInput::of(input));
    let mut output = Connection(writer);
    match conversation.run(&mut output).await {
        Ok(SessionEnd::NotStarted(reason)) => eprintln!("tessera: {reason}"),
        Ok(_) | Err(CommandFailure::Output(_)) => {}
        Err(failed) => eprintln!("tessera: {failed}"),
    }
    // Fails only for a connection that is gone.
    let _ = output.0.shutdown().await;
    reading.abort();
}

/// The local side of a connection.
struct Connection(OwnedWriteHalf);

impl Output for Connection {
    async fn stdout(&mut self, bytes: Vec<u8>) -> std::io::Result<()> {
        self.0.write_all(&bytes).await
    }

    async fn stderr(&mut self, _: Vec<u8>) -> std::io::Result<()> {
        // Connections have none.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_one_number_or_two() {
        assert_eq!(parse_ports("8888"), Ok(Ports { there: 8888, here: 8888 }));
        assert_eq!(parse_ports("8888:0"), Ok(Ports { there: 8888, here: 0 }));
        for bad in ["", "0", "0:1", "70000", "1:x", "a"] {
            assert!(parse_ports(bad).is_err(), "{bad:?}");
        }
    }
}
