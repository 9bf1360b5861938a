//! `tessera attach`: the terminal of an interactive job, or the output of another one.

use clap::Args;
use tessera_api_types::SessionOpening;
use tessera_client::{FollowMode, LogOutput, LogQuery, MAIN_SESSION, RetryPatience};
use tessera_model::JobRef;

use super::conversation::{Conversation, OwnOutput, SessionEnd};
use super::exec::report;
use super::input::LocalInput;
use super::terminal::{is_terminal, local_size};
use crate::failure::CommandFailure;
use crate::jobs::parse_one_job;
use crate::logs::copy_output;
use crate::session::CommandSession;

/// Takes over the terminal of a job that `tessera run` started: the client that had it is
/// disconnected. For other jobs, it shows the output until they end.
#[derive(Args)]
pub struct Attach {
    /// The job, such as 42 or 42_7
    #[arg(value_name = "JOB", value_parser = parse_one_job)]
    job: JobRef,
}

impl Attach {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        attach(session, self.job).await
    }
}

/// Takes over a job's terminal, or shows its output until it ends.
///
/// # Errors
///
/// [`CommandFailure`] if there is no such job, or it belongs to another user.
pub async fn attach(session: &CommandSession, job: JobRef) -> Result<u8, CommandFailure> {
    let found = session.client.job(job).await?;
    if found.interactive {
        let terminal = is_terminal().then(local_size);
        let opening = SessionOpening { terminal, ..SessionOpening::default() };
        let session_name = (job, MAIN_SESSION.to_owned());
        let input = LocalInput::of_stdin();
        let conversation = Conversation::new(session.client.clone(), session_name, opening, input);
        let end = conversation.here().run(&mut OwnOutput).await?;
        if end == SessionEnd::Replaced {
            session.remark("another client has attached");
            return Ok(0);
        }
        return Ok(report(end));
    }
    session.remark("the job is not interactive: this shows its output, and takes no input");
    let query = LogQuery {
        stream: LogOutput::Stdout,
        attempt: None,
        offset: 0,
        follow: FollowMode::UntilEnd,
    };
    let client = session.client.with_patience(RetryPatience::LONG);
    copy_output(&client, job, query).await?;
    Ok(0)
}
