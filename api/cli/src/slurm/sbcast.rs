//! `sbcast`: copies a file to every node of the job, by a step with one process on each.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::{ArgAction, Args, Parser};

use super::{Done, SlurmFailure};
use crate::failure::CommandFailure;
use crate::own_program;
use crate::session::CommandSession;
use crate::steps::{self, Allocation, StepOptions};

/// The command of this program that writes the file on a node.
const COMMAND: &str = "receive-file";
/// The code for a file that exists, as Slurm's sbcast has it.
const EXISTS: u8 = 17;
/// The code for a file that can't be read.
const UNREADABLE: u8 = 255;

/// Copies a file to every node of the job that this program runs in, as Slurm's sbcast does.
#[derive(Parser)]
#[command(disable_help_flag = true)]
pub struct Sbcast {
    /// Replace a file that exists
    #[arg(short, long)]
    force: bool,
    /// Keep the times and the permissions
    #[arg(short, long)]
    preserve: bool,
    /// Accepted: the links between nodes need none
    #[arg(short = 'C', long, num_args = 0..=1, require_equals = true, default_missing_value = "")]
    compress: Option<String>,
    /// Accepted: all nodes get the file at once
    #[arg(short = 'F', long, value_name = "N")]
    fanout: Option<u32>,
    /// The job; it must be this one
    #[arg(short, long, value_name = "JOB")]
    jobid: Option<String>,
    /// Accepted: pieces have a fixed size
    #[arg(short, long, value_name = "SIZE")]
    size: Option<String>,
    /// Accepted
    #[arg(short, long, value_name = "SECONDS")]
    timeout: Option<u32>,
    /// Accepted: the program's libraries must be on the nodes
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes")]
    send_libs: Option<String>,
    /// Accepted
    #[arg(long, value_name = "FOLDERS")]
    exclude: Option<String>,
    /// Accepted
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// The file
    #[arg(required_unless_present = "version")]
    source: Option<PathBuf>,
    /// Its path on the nodes
    #[arg(required_unless_present = "version")]
    target: Option<PathBuf>,
}

impl Sbcast {
    /// Copies the file.
    pub async fn run(self) -> Done {
        let (Some(source), Some(target)) = (&self.source, &self.target) else {
            super::write_out(&format!("{}\n", super::VERSION))?;
            return Ok(0);
        };
        let message = |text: String| SlurmFailure::Message(format!("sbcast: error: {text}"));
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let allocation = Allocation::find(environment.collect())
            .ok_or_else(|| message("Command only valid from within SLURM job".to_owned()))?;
        let job = self.jobid.as_deref().map(|job| job.split('.').next().unwrap_or(job));
        if job.is_some_and(|job| job != allocation.job) {
            return Err(message(format!(
                "a file goes to the nodes of its own job, which is {}",
                allocation.job
            )));
        }
        let facts = match fs::File::open(source).and_then(|file| file.metadata()) {
            Ok(facts) => facts,
            Err(error) => {
                let why = steps::plain(&error);
                eprintln!("sbcast: error: Can't open `{}`: {why}", source.display());
                return Ok(UNREADABLE);
            }
        };
        let text = |path: &Path| {
            let path = path.to_str().map(str::to_owned);
            path.ok_or_else(|| message("a name is not valid UTF-8".to_owned()))
        };
        let mut words = own_program::words(COMMAND).map_err(CommandFailure::from)?;
        words.push(format!("--mode={}", facts.permissions().mode() & 0o7777));
        words.push(format!("--bytes={}", facts.len()));
        words.extend(self.preserve.then(|| format!("--modified={}", facts.mtime())));
        words.extend(self.force.then(|| "--force".to_owned()));
        // A folder keeps the file's name, as with cp.
        words.push(format!("--name={}", text(Path::new(source.file_name().unwrap_or_default()))?));
        words.extend(["--".to_owned(), text(target)?]);
        let nodes = allocation.nodes.len();
        let step = StepOptions {
            nodes: Some(nodes.to_string()),
            ntasks: u32::try_from(nodes).ok(),
            ntasks_per_node: Some(1),
            input: Some(text(source)?),
            mpi: Some(steps::StepMpi::None),
            overlap: true,
            gres: Some("none".to_owned()),
            program: words,
            ..StepOptions::default()
        };
        Ok(steps::run(step, &allocation).await?)
    }
}

/// Writes what comes from standard input into a file, for sbcast.
#[derive(Args)]
pub struct ReceiveFile {
    /// Replace a file that exists
    #[arg(long)]
    force: bool,
    /// The permissions
    #[arg(long)]
    mode: u32,
    /// How many bytes it has at least: a copy that breaks off is discarded
    #[arg(long)]
    bytes: u64,
    /// When it was changed, in seconds since 1970; by default now
    #[arg(long)]
    modified: Option<i64>,
    /// Its name in a folder
    #[arg(long)]
    name: OsString,
    /// The file, or a folder
    #[arg(last = true)]
    target: PathBuf,
}

impl ReceiveFile {
    /// Writes the file.
    ///
    /// # Errors
    ///
    /// [`CommandFailure`] if the whole file could not be written.
    pub fn run(&self) -> Result<u8, CommandFailure> {
        match self.receive(io::stdin().lock()) {
            Ok(()) => Ok(0),
            Err(failed) => {
                let node = std::env::var("SLURMD_NODENAME").unwrap_or_default();
                let why = steps::plain(&failed);
                eprintln!("sbcast: error: REQUEST_FILE_BCAST({node}): {why}");
                Ok(if failed.kind() == io::ErrorKind::AlreadyExists { EXISTS } else { 1 })
            }
        }
    }

    fn receive(&self, mut from: impl io::Read) -> io::Result<()> {
        let path = match self.target.is_dir() {
            true => self.target.join(&self.name),
            false => self.target.clone(),
        };
        if path.exists() && !self.force {
            return Err(rustix::io::Errno::EXIST.into());
        }
        // A reader never sees a part of it, and a program that runs from it goes on with the old one.
        let part = path.with_file_name(format!(
            ".{}.{}",
            path.file_name().unwrap_or_default().to_string_lossy(),
            std::process::id()
        ));
        let mut write = || -> io::Result<()> {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&part)?;
            if io::copy(&mut from, &mut file)? < self.bytes {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            file.set_permissions(fs::Permissions::from_mode(self.mode))?;
            if let Some(secs) = self.modified.and_then(|secs| u64::try_from(secs).ok()) {
                file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(secs))?;
            }
            fs::rename(&part, &path)
        };
        let written = write();
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        written
    }
}

/// `sattach`: follows the output of a job, as `tessera attach` does.
#[derive(Parser)]
pub struct Sattach {
    /// Accepted: lines have no number
    #[arg(short, long)]
    label: bool,
    /// Accepted
    #[arg(short = 'Q', long)]
    quiet: bool,
    /// Accepted
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
    /// Accepted: a job's own streams are shown
    #[arg(long, value_name = "RANK")]
    input_filter: Option<String>,
    /// Accepted: a job's own streams are shown
    #[arg(long, value_name = "RANK")]
    output_filter: Option<String>,
    /// Accepted: a job's own streams are shown
    #[arg(long, value_name = "RANK")]
    error_filter: Option<String>,
    /// The job and its step, such as 42.0
    job: String,
}

impl Sattach {
    /// Shows the output until the job ends.
    pub async fn run(self) -> Done {
        let job = self.job.split('.').next().unwrap_or(&self.job);
        let Some(job) = super::squeue::parse_job(job) else {
            return Err(SlurmFailure::Message(format!(
                "sattach: error: Invalid job id specified: {}",
                self.job
            )));
        };
        let session: CommandSession = super::connect()?;
        Ok(crate::interactive::attach(&session, job).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(target: &Path, force: bool) -> ReceiveFile {
        ReceiveFile {
            force,
            mode: 0o750,
            bytes: 5,
            modified: Some(1_000_000_000),
            name: "data".into(),
            target: target.to_owned(),
        }
    }

    #[test]
    fn a_file_arrives_whole_with_its_permissions_and_an_old_one_stays_unless_it_is_forced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy");

        order(&path, false).receive(&b"first"[..]).unwrap();
        let kept = order(&path, false).receive(&b"second"[..]).unwrap_err();
        assert_eq!(kept.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        order(&path, true).receive(&b"third"[..]).unwrap();
        order(folder.path(), false).receive(&b"in it"[..]).unwrap();

        let facts = fs::metadata(&path).unwrap();
        assert_eq!((fs::read(&path).unwrap(), facts.mtime()), (b"third".to_vec(), 1_000_000_000));
        assert_eq!(facts.permissions().mode() & 0o7777, 0o750);
        assert_eq!(fs::read(folder.path().join("data")).unwrap(), b"in it");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no part is left");
    }

    #[test]
    fn a_copy_that_fails_leaves_nothing() {
        struct Broken;
        impl io::Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
        let folder = tempfile::tempdir().unwrap();

        assert!(order(&folder.path().join("copy"), false).receive(Broken).is_err());
        assert!(order(&folder.path().join("copy"), false).receive(&b"part"[..]).is_err());

        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
