//! `tessera exec`: a program in a running job.

use std::collections::BTreeMap;

use clap::Args;
use tessera_api_types::SessionOpening;
use tessera_client::ApiClient;
use tessera_model::JobRef;

use super::conversation::{Conversation, OwnOutput, SessionEnd};
use super::input::LocalInput;
use super::terminal::{exported, local_size};
use crate::failure::CommandFailure;
use crate::jobs::parse_one_job;
use crate::session::CommandSession;

/// The exit code of shells for a program that can't be started.
const NOT_STARTED: u8 = 126;
/// The same for one that does not exist.
const NOT_FOUND: u8 = 127;

/// Runs a program in a running job: on its node, as its user, with its environment, GPU and limits. Returns the
/// program's exit code, or 128 plus the number of the signal that ended it.
#[derive(Args)]
pub struct Exec {
    /// The job, such as 42 or 42_7
    #[arg(value_name = "JOB", value_parser = parse_one_job)]
    job: JobRef,
    /// Give the program a terminal
    #[arg(short = 't', long)]
    pty: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

impl Exec {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        execute(&session.client, self.job, self.program, self.pty).await
    }
}

/// Runs a program in a job, with this command's streams.
///
/// # Errors
///
/// [`CommandFailure`] if the job is not running, or belongs to another user.
pub async fn execute(
    client: &ApiClient,
    job: JobRef,
    program: Vec<String>,
    pty: bool,
) -> Result<u8, CommandFailure> {
    let opening = SessionOpening {
        program,
        terminal: pty.then(local_size),
        env: if pty { exported() } else { BTreeMap::new() },
        ..SessionOpening::default()
    };
    let session = uuid::Uuid::new_v4().to_string();
    let input = LocalInput::of_stdin();
    let conversation = Conversation::new(client.clone(), (job, session), opening, input);
    Ok(report(conversation.here().run(&mut OwnOutput).await?))
}

/// Returns the exit code for a session's end, and prints what else the user should know.
pub fn report(end: SessionEnd) -> u8 {
    match end {
        SessionEnd::Exited(code) | SessionEnd::Interrupted(code) => code,
        SessionEnd::Replaced => {
            eprintln!("tessera: another client has taken the session over");
            1
        }
        SessionEnd::NotStarted(reason) => {
            eprintln!("tessera: {reason}");
            if reason.starts_with("no such program") { NOT_FOUND } else { NOT_STARTED }
        }
    }
}
