//! Helpers of the scenes: running verbs, waiting, sending messages.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tessera_model::{JobId, JobRef};

use crate::failure::CommandFailure;
use crate::session::{CommandSession, write_out};
use tessera_api_types::JobView;
use tessera_client::{ApiClient, RetryPatience};

/// Longest that any step may take: a busy machine is slow, but a demonstration that hangs
/// is worse than one that fails with a message.
const STEP_WITHIN: Duration = Duration::from_secs(60);
/// How often the cluster is polled while a step is awaited.
const LOOK_EVERY: Duration = Duration::from_millis(150);

/// The terminal and the cluster.
pub struct DemoStage<'a> {
    session: &'a CommandSession,
    folder: &'a Path,
    program: PathBuf,
    /// A direct connection to the controller.
    pub client: ApiClient,
}

impl<'a> DemoStage<'a> {
    /// Prepares the demonstration; files are created in `folder`.
    pub fn new(session: &'a CommandSession, folder: &'a Path) -> Result<Self, CommandFailure> {
        let client = session.client.with_patience(RetryPatience::LONG);
        Ok(Self { session, folder, program: std::env::current_exe()?, client })
    }

    /// Begins a scene.
    pub fn title(&self, text: &str) -> Result<(), CommandFailure> {
        write_out(&format!("\n{}\n", self.session.screen.paint("1;36", &format!("==> {text}"))))
    }

    pub fn print_remark(&self, text: &str) -> Result<(), CommandFailure> {
        write_out(&format!("{text}\n"))
    }

    /// Writes a script and shows it.
    pub fn script(&self, name: &str, text: &str) -> Result<(), CommandFailure> {
        std::fs::write(self.folder.join(name), text)?;
        let shown: String = text.lines().map(|line| format!("    {line}\n")).collect();
        write_out(&format!("{}\n{shown}", self.prompt(&format!("cat {name}"))))
    }

    /// Prints and runs a verb. A failure is printed, since a scene may demonstrate one.
    pub fn show(&self, words: &[&str]) -> Result<(), CommandFailure> {
        write_out(&format!("{}\n", self.prompt(&line(words))))?;
        let status = self.command(words).status()?;
        match status.code() {
            Some(0) => Ok(()),
            Some(code) => self.print_remark(&format!("(exit code {code})")),
            None => Err(CommandFailure::refused(format!("the command was ended: {status}"))),
        }
    }

    /// Prints and runs a submit, and returns the job's number.
    pub fn submit(&self, words: &[&str]) -> Result<JobRef, CommandFailure> {
        let words = [&["submit"], words].concat();
        write_out(&format!("{}\n", self.prompt(&line(&words))))?;
        let output = self.command(&words).stderr(Stdio::inherit()).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        write_out(&text)?;
        let number = text.split_whitespace().last().and_then(|word| word.parse::<JobId>().ok());
        number.map(JobRef::Job).ok_or_else(|| CommandFailure::refused("the submit failed"))
    }

    fn prompt(&self, line: &str) -> String {
        self.session.screen.paint("1", &format!("$ {line}"))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).current_dir(self.folder).stdin(Stdio::null());
        command
    }

    /// Waits until the job satisfies `is_reached`.
    #[expect(clippy::disallowed_methods, reason = "measures the time that the user waits")]
    pub async fn until(
        &self,
        job: JobRef,
        what: &str,
        is_reached: impl Fn(&JobView) -> bool,
    ) -> Result<JobView, CommandFailure> {
        let end = Instant::now() + STEP_WITHIN;
        loop {
            let now = self.client.job(job).await?.job;
            if is_reached(&now) {
                return Ok(now);
            }
            if Instant::now() > end {
                return Err(CommandFailure::refused(format!(
                    "job {job} did not {what} within {} seconds; it is {}",
                    STEP_WITHIN.as_secs(),
                    now.state
                )));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until the job has started.
    pub async fn until_started(&self, job: JobRef) -> Result<JobView, CommandFailure> {
        self.until(job, "start", |job| job.started_at.is_some()).await
    }
}

/// Formats arguments as a command line.
fn line(words: &[&str]) -> String {
    let quoted = words.iter().map(|word| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=%,".contains(c);
        if word.chars().all(plain) { (*word).to_owned() } else { format!("'{word}'") }
    });
    format!("tessera {}", quoted.collect::<Vec<_>>().join(" "))
}
