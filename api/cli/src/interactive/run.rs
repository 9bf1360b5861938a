//! `tessera run`: a job whose program talks with this command's streams.

use std::time::Duration;

use clap::Args;
use tessera_api_types::{InteractiveRequest, SessionOpening, SubmitRequest};
use tessera_client::{
    ApiClient, FollowMode, JobVerb, LogOutput, LogQuery, MAIN_SESSION, RetryPatience, SubmitKey,
};
use tessera_model::{JobId, JobRef};

use super::conversation::{Conversation, Output, OwnOutput, SessionEnd};
use super::exec::report;
use super::input::LocalInput;
use super::terminal::{exported, local_size};
use crate::array_wait::{is_over, wait_for};
use crate::failure::CommandFailure;
use crate::logs::copy_output;
use crate::session::CommandSession;
use crate::submit::{JobSource, SlurmOptions, SubmitContext, SubmitDialect, with_option_names};
use crate::wait::worst;

/// How long a start may take before the user is notified that the job waits.
const NOTE_AFTER: Duration = Duration::from_secs(1);

/// Runs a program as a job, and connects it with this terminal: `run --pty bash`. It takes the options of submit.
/// Returns the program's exit code. Ctrl-C cancels a waiting job; a running program receives it.
#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    slurm: SlurmOptions,
    /// Give the program a terminal
    #[arg(long)]
    pty: bool,
    /// Print nothing about the job
    #[arg(short = 'Q', long)]
    quiet: bool,
    /// The program and its arguments
    #[arg(required = true, value_name = "PROGRAM", trailing_var_arg = true)]
    program: Vec<String>,
}

impl Run {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let around = SubmitContext::find(SubmitDialect::Tessera)?;
        let prepared = self.slurm.prepare(JobSource::Program(self.program), &around)?;
        prepared.warnings.iter().for_each(|warning| session.remark(warning));
        let job = InteractiveJob::submit(session, prepared.request, self.pty).await?;
        let mut job = job.map_err(|refused| CommandFailure::refused(refused.to_string()))?;
        if !self.quiet {
            job.notes = Some("tessera");
        }
        job.follow_job(session, LocalInput::of_stdin(), &mut OwnOutput).await
    }
}

/// A job that was submitted for an interactive session.
pub struct InteractiveJob {
    pub job: JobRef,
    /// The command's name in front of notes about the job; `None` for no notes.
    pub notes: Option<&'static str>,
    /// The controller's remarks about the request.
    pub remarks: Vec<String>,
    pty: bool,
}

impl InteractiveJob {
    /// Submits a job as an interactive one. The inner error is a refusal of the request.
    ///
    /// # Errors
    ///
    /// [`CommandFailure`] if the controller can't be reached.
    pub async fn submit(
        session: &CommandSession,
        mut request: SubmitRequest,
        pty: bool,
    ) -> Result<Result<Self, CommandFailure>, CommandFailure> {
        let terminal = pty.then(local_size);
        request.interactive = Some(InteractiveRequest { terminal });
        // A second run would have no client.
        request.on_lost.get_or_insert_with(|| "fail".to_owned());
        if pty {
            for (name, value) in exported() {
                request.env.entry(name).or_insert(value);
            }
        }
        let submitted = session.client.submit(&request, &SubmitKey::new_unique()).await;
        let submitted = submitted.map_err(|refused| with_option_names(refused).into());
        Ok(submitted.map(|submitted| Self {
            job: JobRef::Job(JobId::from_number(submitted.job_id)),
            notes: None,
            remarks: submitted.remarks,
            pty,
        }))
    }

    /// Prepares the session of the job's program.
    pub fn conversation(&self, client: ApiClient, input: LocalInput) -> Conversation {
        let opening =
            SessionOpening { terminal: self.pty.then(local_size), ..SessionOpening::default() };
        let session = (self.job, MAIN_SESSION.to_owned());
        Conversation::new(client, session, opening, input).waiting().here()
    }

    /// Connects to the job's program until it has ended, and returns its exit code. A signal before
    /// the start cancels the job.
    ///
    /// # Errors
    ///
    /// [`CommandFailure`] if the controller stays unreachable.
    pub async fn follow_job(
        self,
        session: &CommandSession,
        input: LocalInput,
        output: &mut impl Output,
    ) -> Result<u8, CommandFailure> {
        // A queue may outlast a restart of the controller.
        let client = session.client.with_patience(RetryPatience::LONG);
        let talk = self.conversation(client, input).run(output);
        let noted = note_waiting(session, self.job, self.notes);
        tokio::pin!(talk);
        let ended = tokio::select! {
            ended = &mut talk => ended,
            () = noted => talk.await,
        };
        self.conclude(session, ended).await
    }

    /// Returns the exit code of a job whose session has ended.
    ///
    /// # Errors
    ///
    /// As [`Self::follow_job`].
    pub async fn conclude(
        self,
        session: &CommandSession,
        ended: Result<SessionEnd, CommandFailure>,
    ) -> Result<u8, CommandFailure> {
        let job = self.job;
        match ended {
            Ok(SessionEnd::Interrupted(code)) => {
                if let Some(name) = self.notes {
                    eprintln!("{name}: Cancelling job {job}");
                }
                session.client.act(job, JobVerb::Cancel).await?;
                Ok(code)
            }
            Ok(SessionEnd::Exited(code)) => {
                let ended = wait_for(session, &[job]).await?;
                let state = ended.first().map_or("", |job| job.state.as_str());
                match (self.notes, state) {
                    (Some(name), "cancelled") => eprintln!("{name}: job {job} was cancelled"),
                    (Some(name), "timed_out") => {
                        eprintln!("{name}: job {job} has exceeded its time limit");
                    }
                    _ => {}
                }
                Ok(code)
            }
            Ok(end @ SessionEnd::NotStarted(_)) => {
                let code = worst(&wait_for(session, &[job]).await?);
                Ok(report(end).max(code.min(1)))
            }
            Ok(end @ SessionEnd::Replaced) => Ok(report(end)),
            Err(failed) => match session.client.job(job).await {
                // It ended before a client could connect.
                Ok(found) if is_over(&found.job) => {
                    let all = LogQuery {
                        stream: LogOutput::Stdout,
                        attempt: Some(found.job.attempts),
                        offset: 0,
                        follow: FollowMode::UntilEnd,
                    };
                    // What a program has written is kept, unless it never started.
                    let shown = found.job.exit_code.is_some()
                        && copy_output(&session.client, job, all).await.is_ok();
                    if let Some(name) = self.notes.filter(|_| !shown) {
                        eprintln!("{name}: {failed}");
                    }
                    Ok(worst(&[found.job]))
                }
                Ok(_) | Err(_) => Err(failed),
            },
        }
    }
}

/// Prints that a job is waiting, if it still is after a short time.
async fn note_waiting(session: &CommandSession, job: JobRef, notes: Option<&'static str>) {
    let Some(name) = notes else { return std::future::pending().await };
    tokio::time::sleep(NOTE_AFTER).await;
    let state = session.client.job(job).await.map(|found| found.job.state);
    if state.is_ok_and(|state| ["queued", "held"].contains(&state.as_str())) {
        eprintln!("{name}: job {job} queued and waiting for resources (Ctrl-C cancels it)");
    }
}
