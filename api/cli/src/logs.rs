//! `tessera logs`: a job's output.

use std::io::Write as _;

use clap::Args;
use tessera_model::JobRef;

use super::failure::CommandFailure;
use super::jobs::parse_one_job;
use super::session::CommandSession;
use tessera_client::{ApiClient, FollowMode, LogOutput, LogQuery, LogStream, RetryPatience};

/// How often in a row a broken connection is reopened without receiving a byte.
const REOPEN_MAX: u32 = 20;

#[derive(Args)]
pub struct Logs {
    /// The job, such as 42 or 42_7
    #[arg(value_name = "JOB", value_parser = parse_one_job)]
    job: JobRef,
    /// Follow the output until the attempt has ended
    #[arg(short, long)]
    follow: bool,
    /// Print standard error instead of standard output
    #[arg(long)]
    stderr: bool,
    /// Print the output of an earlier attempt, by number
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
}

impl Logs {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let query = LogQuery {
            stream: if self.stderr { LogOutput::Stderr } else { LogOutput::Stdout },
            attempt: self.attempt,
            offset: 0,
            follow: if self.follow { FollowMode::UntilEnd } else { FollowMode::No },
        };
        let client = if self.follow {
            session.client.with_patience(RetryPatience::LONG)
        } else {
            session.client.clone()
        };
        copy_output(&client, self.job, query).await?;
        Ok(0)
    }
}

/// Copies an output to standard output. A connection that breaks is opened again where it broke.
///
/// # Errors
///
/// [`CommandFailure`] if there is no such output, or the controller stays unreachable.
pub async fn copy_output(
    client: &ApiClient,
    job: JobRef,
    mut query: LogQuery,
) -> Result<(), CommandFailure> {
    let mut reopened = 0;
    loop {
        let before = query.offset;
        let stream = client.logs(job, query).await?;
        match copy(stream, &mut query.offset).await {
            Ok(()) => return Ok(()),
            Err(CommandFailure::Client(broken)) => {
                reopened = if query.offset > before { 0 } else { reopened + 1 };
                if reopened > REOPEN_MAX {
                    return Err(broken.into());
                }
            }
            Err(other) => return Err(other),
        }
    }
}

/// Copies the stream to standard output and counts what was written.
async fn copy(mut stream: LogStream, offset: &mut u64) -> Result<(), CommandFailure> {
    while let Some(piece) = stream.next().await? {
        let mut out = std::io::stdout().lock();
        out.write_all(&piece)?;
        out.flush()?;
        *offset += piece.len() as u64;
    }
    Ok(())
}
