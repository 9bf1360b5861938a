//! An order for the launcher, made from the agent's order. Only the node's own files are touched
//! here; the user's are opened by the launcher's child, as the user.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use tessera_agent_core::container::{CONTAINER_COMMAND, PLAN_VARIABLE};
use tessera_frames::cluster::LogStream;
use tessera_launch::order::{DeviceNumber, DeviceRules, Input, Order, Output, Program, Walls};
use tessera_launch::prepare::{PrepareError, on_node, private_tmp};
use tessera_model::BootId;
use tessera_model::spec::JobProgram;

use super::files;
use super::program_output::{OutputStream, ProgramOutput};
use super::protocol::SpawnOrder;
use crate::sys::clock;

/// How long opening a user's paths may take. Chosen: longer than a folder takes that is mounted on demand.
const OPEN_WITHIN_MS: u32 = 15_000;

/// An order with the files of the node's own that come with it.
#[derive(Debug)]
pub struct Prepared {
    /// What the launcher gets.
    pub order: Order,
    /// Output files, in their order.
    pub outputs: Vec<File>,
    /// The file for standard error, if it is one of the node's.
    pub program_output: ProgramOutput,
}

impl Prepared {
    /// Returns the descriptors of the outputs.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.outputs.iter().map(|file| file.as_fd())
    }
}

/// Creates the node's own files that the attempt needs.
///
/// # Errors
///
/// The disk refused: nothing was started.
pub fn prepare(
    data: &Path,
    boot: BootId,
    order: &SpawnOrder,
    script: Option<String>,
) -> Result<Prepared, PrepareError> {
    let run = &order.run;
    let is_foreign = order.confinement.account.is_some();
    let work = files::work_folder(data, order.attempt, is_foreign);
    if is_foreign {
        make_folder(&files::folder(data, order.attempt))?;
    }
    let program = match &run.program {
        JobProgram::Command(command) => Program::Command(command.clone()),
        JobProgram::Script(_) => {
            Program::Script(script.unwrap_or_default(), run.batch.arguments.clone())
        }
    };
    let (mut outputs, mut program_output) = (Vec::new(), ProgramOutput::default());
    let (out, err) = (run.output.stdout.as_ref(), run.output.stderr.as_ref());
    let mut place = |given: Option<&String>, stream| match given {
        Some(path) => {
            link(data, order, path, stream);
            Ok(Output::Path(path.clone()))
        }
        None => {
            let path = files::output(data, order.attempt, stream);
            outputs.push(open_own(&path)?);
            let from = |file: &File| file.metadata().map_or(0, |found| found.len());
            let reader = File::open(&path).ok().map(|file| {
                let begin = from(&file);
                OutputStream::new(file, begin)
            });
            match stream {
                LogStream::Stdout => program_output.stdout = reader,
                LogStream::Stderr => program_output.stderr = reader,
            }
            Ok(Output::Given)
        }
    };
    let stdout = place(out, LogStream::Stdout)?;
    let stderr = match (out, err) {
        (Some(path), err) if err.is_none_or(|err| err == path) => {
            link(data, order, path, LogStream::Stderr);
            Output::SameAsStdout
        }
        // One log under both names, as the help states.
        (None, None) => {
            let own = |stream| files::output(data, order.attempt, stream);
            let _ = fs::hard_link(own(LogStream::Stdout), own(LogStream::Stderr));
            Output::SameAsStdout
        }
        _ => place(err, LogStream::Stderr)?,
    };
    let headline = (order.append && order.number > 1).then(|| {
        let now = clock::unix_now().get() / 1000;
        let (number, job) = (order.number, order.job);
        format!("--- tessera: attempt {number} of job {job} at {now} s since 1970 ---")
    });
    let confinement = &order.confinement;
    let tmp = match confinement.private_tmp {
        true => "/tmp".to_owned(),
        false => private_tmp(&work).display().to_string(),
    };
    let named = |name: &str| (!run.env.contains_key(name)).then(|| format!("{name}={tmp}"));
    let tmp = ["TMPDIR", "SLURM_TMPDIR"].into_iter().filter_map(named);
    let plan = order.container.as_ref().map(serde_json::to_string).transpose();
    let plan =
        plan.map_err(|error| PrepareError::by_node(format!("the container's plan: {error}")))?;
    let plan = plan.map(|plan| format!("{PLAN_VARIABLE}={plan}"));
    let environment =
        run.env.iter().map(|(name, value)| format!("{name}={value}")).chain(tmp).chain(plan);
    Ok(Prepared {
        order: Order {
            account: confinement.account.as_ref().map(|account| account.to_launch()),
            uid_min: confinement.uid_min,
            program,
            wrapper: order.container.as_ref().map_or_else(Vec::new, |_| container_wrapper()),
            environment: environment.collect(),
            own: Some(work.display().to_string()),
            work_dir: run.work_dir.clone(),
            stdin: Input::Null,
            input: run.input.clone(),
            stdout,
            stderr,
            joins: false,
            append: order.append,
            headline,
            generation: order.generation,
            boot: *boot.as_uuid().as_bytes(),
            open_within_ms: OPEN_WITHIN_MS,
            walls: Walls {
                private_tmp: confinement.private_tmp,
                hide_processes: confinement.hide_processes,
                no_new_privileges: confinement.no_new_privileges,
                root_allowed: confinement.root_allowed,
            },
            devices: confinement.devices.as_ref().map(|rules| DeviceRules {
                guarded: rules.guarded.clone(),
                open: rules
                    .open
                    .iter()
                    .map(|&(major, minor)| DeviceNumber { major, minor })
                    .collect(),
            }),
            has_group: false,
            v1_groups: 0,
        },
        outputs,
        program_output,
    })
}

/// Returns the words in front of a program that runs in a container: this program, which becomes the one that starts the
/// runtime. A shepherd that can't find itself was replaced, and names what the agent started.
fn container_wrapper() -> Vec<String> {
    let own = std::env::current_exe().map(|path| path.display().to_string());
    let own = own.unwrap_or_else(|_| "tessera-shepherd".to_owned());
    vec![own.trim_end_matches(" (deleted)").to_owned(), CONTAINER_COMMAND.to_owned()]
}

/// Makes the folder of an attempt whose user may only pass through it.
fn make_folder(folder: &Path) -> Result<(), PrepareError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o711).create(folder);
    made.map_err(|error| on_node("the attempt's folder", folder, &error))
}

/// A reader of the output finds it among the node's, wherever it went.
fn link(data: &Path, order: &SpawnOrder, path: &str, stream: LogStream) {
    if path != files::NOWHERE {
        let _ = std::os::unix::fs::symlink(path, files::output(data, order.attempt, stream));
    }
}

fn open_own(path: &Path) -> Result<File, PrepareError> {
    let open = || -> io::Result<File> {
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)
    };
    open().map_err(|error| on_node("the output", path, &error))
}
