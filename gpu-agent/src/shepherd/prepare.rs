//! Everything between an order and a start that can fail by the job's own fault, explained as text
//! that its author can act on.

use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tessera_frames::cluster::LogStream;
use tessera_model::life::Outcome;
use tessera_model::spec::JobProgram;

use super::files;
use super::protocol::SpawnOrder;
use crate::sys::clock;
use crate::sys::spawn::SpawnError;

/// An attempt that can't be started.
#[derive(Debug, PartialEq, Eq)]
pub struct PrepareError {
    /// Whose fault it is: [`Outcome::LaunchFailed`] the job's, [`Outcome::NotStarted`] the node's.
    pub outcome: Outcome,
    /// One sentence for people.
    pub detail: String,
}

impl PrepareError {
    fn by_job(detail: impl Into<String>) -> Self {
        Self { outcome: Outcome::LaunchFailed, detail: detail.into() }
    }

    fn by_node(detail: impl Into<String>) -> Self {
        Self { outcome: Outcome::NotStarted, detail: detail.into() }
    }
}

/// An attempt that is ready to start.
#[derive(Debug)]
pub struct Prepared {
    /// The program.
    pub program: CString,
    /// Its arguments, its name first.
    pub arguments: Vec<CString>,
    /// Its environment.
    pub environment: Vec<CString>,
    /// Where it runs.
    pub folder: CString,
    /// Standard output.
    pub stdout: File,
    /// Standard error.
    pub stderr: File,
}

/// Search path where the environment has none.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Makes what the attempt needs of files, opens its output and finds its program.
///
/// # Errors
///
/// [`PrepareError`]: nothing was started.
pub fn prepare(
    data: &Path,
    order: &SpawnOrder,
    script: Option<&str>,
) -> Result<Prepared, PrepareError> {
    let own = files::folder(data, order.attempt);
    let run = &order.run;
    let is_script = matches!(run.program, JobProgram::Script(_));
    if run.work_dir.is_none() || is_script {
        fs::create_dir_all(&own).map_err(|error| on_node("the attempt's folder", &own, &error))?;
    }
    let folder = run.work_dir.as_ref().map_or_else(|| own.clone(), PathBuf::from);
    if run.work_dir.is_some() {
        check_folder(&folder)?;
    }
    let (stdout, stderr) = open_outputs(data, order)?;
    let (program, arguments) = match &run.program {
        JobProgram::Command(command) => (find_program(order, command, &folder)?, command.clone()),
        JobProgram::Script(_) => {
            let path = write_script(&own, script.unwrap_or_default())?;
            let name = path.display().to_string();
            (path, vec![name])
        }
    };
    let environment = run.env.iter().map(|(name, value)| format!("{name}={value}"));
    Ok(Prepared {
        program: text(program.as_os_str())?,
        arguments: texts(arguments.into_iter())?,
        environment: texts(environment)?,
        folder: text(folder.as_os_str())?,
        stdout,
        stderr,
    })
}

fn check_folder(folder: &Path) -> Result<(), PrepareError> {
    let shown = folder.display();
    match fs::metadata(folder) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(PrepareError::by_job(format!("the working folder is no folder: {shown}"))),
        Err(error) => Err(by_kind(
            &error,
            || format!("no such working folder: {shown}"),
            || format!("the working folder can't be entered: {shown}"),
        )),
    }
}

fn open_outputs(data: &Path, order: &SpawnOrder) -> Result<(File, File), PrepareError> {
    let same = order.run.output.stdout.is_some()
        && (order.run.output.stderr.is_none()
            || order.run.output.stderr == order.run.output.stdout);
    let own = |stream| files::output(data, order.attempt, stream);
    let open = |given: Option<&String>, stream| match given {
        Some(path) => {
            let file = open_given(Path::new(path), order)?;
            // A reader of the output finds it among the node's, wherever it went.
            if path != files::NOWHERE {
                let _ = std::os::unix::fs::symlink(path, own(stream));
            }
            Ok(file)
        }
        None => open_own(&own(stream)),
    };
    let stdout = open(order.run.output.stdout.as_ref(), LogStream::Stdout)?;
    let stderr = if same {
        if let Some(path) = order.run.output.stdout.as_ref().filter(|path| *path != files::NOWHERE)
        {
            let _ = std::os::unix::fs::symlink(path, own(LogStream::Stderr));
        }
        stdout.try_clone().map_err(|error| on_node("the output", data, &error))?
    } else {
        open(order.run.output.stderr.as_ref(), LogStream::Stderr)?
    };
    Ok((stdout, stderr))
}

fn open_own(path: &Path) -> Result<File, PrepareError> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| on_node("the output", path, &error))
}

/// Opens a file that the user named. A later attempt never empties what an earlier one wrote.
fn open_given(path: &Path, order: &SpawnOrder) -> Result<File, PrepareError> {
    let shown = path.display();
    let opened = OpenOptions::new().append(true).create(true).open(path).and_then(|mut file| {
        if !order.append {
            // Named pipes and terminals can't be emptied, and needn't be.
            let _ = file.set_len(0);
        } else if order.number > 1 {
            let now = clock::unix_now().get() / 1000;
            let (number, job) = (order.number, order.job);
            writeln!(file, "--- tessera: attempt {number} of job {job} at {now} s since 1970 ---")?;
        }
        Ok(file)
    });
    opened.map_err(|error| {
        by_kind(
            &error,
            || format!("no such folder for the output file {shown}"),
            || format!("the output file can't be written: {shown}"),
        )
    })
}

fn write_script(own: &Path, script: &str) -> Result<PathBuf, PrepareError> {
    let path = own.join("script");
    let write = || {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o700).open(&path)?;
        file.write_all(script.as_bytes())
    };
    write().map_err(|error| on_node("the script", &path, &error))?;
    Ok(path)
}

/// Finds a program as a shell would, from the job's own folder and with its own `PATH`.
fn find_program(
    order: &SpawnOrder,
    command: &[String],
    folder: &Path,
) -> Result<PathBuf, PrepareError> {
    let name = command.first().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| PrepareError::by_job("the command names no program"))?;
    if name.contains('/') {
        return check_program(folder.join(name));
    }
    let path = order.run.env.get_key_value("PATH");
    let path = path.map_or(DEFAULT_PATH, |(_, value)| value.as_str());
    let mut denied = None;
    for entry in path.split(':') {
        match check_program(folder.join(entry).join(name)) {
            Ok(found) => return Ok(found),
            Err(refused) if refused.detail.starts_with("no such program") => {}
            Err(refused) => denied = Some(refused),
        }
    }
    Err(denied.unwrap_or_else(|| {
        PrepareError::by_job(format!("no such program: {name} (searched in {path})"))
    }))
}

fn check_program(path: PathBuf) -> Result<PathBuf, PrepareError> {
    let shown = path.display();
    match fs::metadata(&path) {
        Ok(found) if found.is_file() && found.permissions().mode() & 0o111 != 0 => Ok(path),
        Ok(_) => Err(PrepareError::by_job(format!("not executable: {shown}"))),
        Err(error) => Err(by_kind(
            &error,
            || format!("no such program: {shown}"),
            || format!("not executable: {shown}"),
        )),
    }
}

/// Explains a failed start.
pub fn explain(error: &SpawnError, program: &CString) -> PrepareError {
    let shown = program.to_string_lossy();
    match error {
        SpawnError::Clone(cause) => {
            PrepareError::by_node(format!("the node could not start a process: {cause}"))
        }
        SpawnError::Folder(cause) => {
            PrepareError::by_job(format!("the working folder could not be entered: {cause}"))
        }
        SpawnError::Execute(cause) => match cause.raw_os_error() {
            // The file itself was found before: what is missing is what its name refers to.
            Some(libc::ENOENT | libc::ENOTDIR) => PrepareError::by_job(match interpreter(&shown) {
                Some(interpreter) => format!("no such interpreter: {interpreter}"),
                None => format!("the interpreter that {shown} names doesn't exist"),
            }),
            Some(libc::EACCES | libc::EPERM) => {
                PrepareError::by_job(format!("not executable: {shown}"))
            }
            Some(libc::ENOEXEC) => PrepareError::by_job(format!(
                "not executable: {shown} is neither a program of this machine nor a script \
                 whose first line names an interpreter"
            )),
            Some(libc::E2BIG) => {
                PrepareError::by_job("arguments and environment are too long together")
            }
            Some(libc::ENOMEM | libc::EAGAIN | libc::ENFILE | libc::EIO) => {
                PrepareError::by_node(format!("the node could not start {shown}: {cause}"))
            }
            _ => PrepareError::by_job(format!("{shown} could not be started: {cause}")),
        },
    }
}

/// Longest first line that the kernel looks at.
const FIRST_LINE_MAX: u64 = 256;

/// Returns the interpreter that a script's first line names.
fn interpreter(script: &str) -> Option<String> {
    use std::io::{BufRead as _, BufReader, Read as _};
    let mut line = Vec::new();
    let file = File::open(script).ok()?.take(FIRST_LINE_MAX);
    BufReader::new(file).read_until(b'\n', &mut line).ok()?;
    let named = line.strip_prefix(b"#!")?.trim_ascii();
    let path = named.split(u8::is_ascii_whitespace).next()?;
    Some(String::from_utf8_lossy(path).into_owned())
}

fn by_kind(
    error: &io::Error,
    missing: impl FnOnce() -> String,
    denied: impl FnOnce() -> String,
) -> PrepareError {
    match error.raw_os_error() {
        Some(libc::ENOENT) => PrepareError::by_job(missing()),
        Some(libc::ENOSPC | libc::EDQUOT) => {
            PrepareError::by_node(format!("{}: the node's disk is full", denied()))
        }
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EIO) => {
            PrepareError::by_node(format!("{}: {error}", denied()))
        }
        _ => PrepareError::by_job(format!("{} ({error})", denied())),
    }
}

fn on_node(what: &str, path: &Path, error: &io::Error) -> PrepareError {
    let reason = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => "the node's disk is full".to_owned(),
        _ => error.to_string(),
    };
    PrepareError::by_node(format!("{what} can't be written: {}: {reason}", path.display()))
}

fn text(text: &OsStr) -> Result<CString, PrepareError> {
    CString::new(text.as_bytes()).map_err(|_| PrepareError::by_job("a path holds a zero byte"))
}

fn texts(list: impl Iterator<Item = String>) -> Result<Vec<CString>, PrepareError> {
    list.map(|item| {
        CString::new(item)
            .map_err(|_| PrepareError::by_job("an argument or variable holds a zero byte"))
    })
    .collect()
}
