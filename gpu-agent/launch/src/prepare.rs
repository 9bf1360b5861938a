//! Everything between an order and a start that can fail by the job's own fault. Errors are texts that the
//! job's author can act on. Runs in the attempt's child, as the attempt's account.

use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::order::{Order, Output, Program};
use crate::paths::{NOWHERE, OpenError, open_output, open_twin};

/// An attempt that can't be started.
#[derive(Debug, PartialEq, Eq)]
pub struct PrepareError {
    /// Whose fault it is: the job's, or the node's.
    pub by_job: bool,
    /// Whether the reason is the lease.
    pub lease: bool,
    /// One sentence for people.
    pub detail: String,
}

impl PrepareError {
    /// Returns an error that is the job's own.
    pub fn by_job(detail: impl Into<String>) -> Self {
        Self { by_job: true, lease: false, detail: detail.into() }
    }

    /// Returns an error that is the node's.
    pub fn by_node(detail: impl Into<String>) -> Self {
        Self { by_job: false, lease: false, detail: detail.into() }
    }
}

/// An attempt that is ready to start.
#[derive(Debug)]
pub struct Prepared {
    /// Path of the program that replaces the launcher.
    pub program: CString,
    /// Its arguments, its name first.
    pub arguments: Vec<CString>,
    /// The variables of the program, `NAME=VALUE`.
    pub environment: Vec<CString>,
    /// Where it runs.
    pub folder: CString,
    /// The file of standard input, if the user named one.
    pub stdin: Option<OwnedFd>,
    /// Standard output.
    pub stdout: OwnedFd,
    /// Standard error.
    pub stderr: OwnedFd,
    /// User-named outputs for readers: 1 for standard output, 2 for standard error.
    pub readable: Vec<(u8, File)>,
}

/// Search path where the environment has none.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Makes the attempt's files, opens its output and finds its program. `report` is called with what is opened
/// next, so that an open that hangs can be named.
///
/// # Errors
///
/// [`PrepareError`]: nothing was started.
pub fn prepare(
    order: &Order,
    given: Vec<OwnedFd>,
    report: impl Fn(&str),
) -> Result<Prepared, PrepareError> {
    let own = order.own.as_ref().map(PathBuf::from);
    let folder = order.work_dir.as_ref().map(PathBuf::from).or_else(|| own.clone());
    let folder = folder.ok_or_else(|| PrepareError::by_node("the attempt has no folder"))?;
    if order.work_dir.is_some() {
        report(&format!("the working folder {}", folder.display()));
        check_folder(&folder)?;
    }
    if let Some(own) = own.as_deref().filter(|_| !order.walls.private_tmp) {
        make_tmp(own)?;
    }
    let stdin = order.input.as_deref().map(|path| open_input(path, &report)).transpose()?;
    let outputs = open_outputs(order, given, &report)?;
    let (program, arguments) = match &order.program {
        // What is in front of it finds it, where it runs.
        Program::Command(command) if !order.wrapper.is_empty() => (PathBuf::new(), command.clone()),
        Program::Command(command) => {
            report(&format!("the program {}", command.first().map_or("", String::as_str)));
            (find_program(order, command, &folder)?, command.clone())
        }
        Program::Script(text, arguments) => {
            let own = own.as_deref().unwrap_or(&folder);
            let path = write_script(own, text)?;
            let words = std::iter::once(path.display().to_string());
            let words = words.chain(arguments.iter().cloned()).collect();
            (path, words)
        }
        Program::Connect(_) => (PathBuf::new(), Vec::new()),
    };
    let (program, arguments) = match (&order.program, order.wrapper.first()) {
        (Program::Command(_) | Program::Script(..), Some(first)) => {
            (check_program(PathBuf::from(first))?, [order.wrapper.clone(), arguments].concat())
        }
        (Program::Connect(_), _) | (_, None) => (program, arguments),
    };
    if !program.as_os_str().is_empty() {
        report(&format!("the program {}", program.display()));
    }
    Ok(Prepared {
        program: text(program.as_os_str())?,
        arguments: texts(&arguments)?,
        environment: texts(&order.environment)?,
        folder: text(folder.as_os_str())?,
        stdin,
        stdout: outputs.stdout,
        stderr: outputs.stderr,
        readable: outputs.readable,
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

/// Opens the file that the user named for standard input. A pipe could keep the program waiting forever.
fn open_input(path: &str, report: impl Fn(&str)) -> Result<OwnedFd, PrepareError> {
    report(&format!("the input file {path}"));
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .and_then(|file| Ok((file.metadata()?, file)));
    let (found, file) = opened.map_err(|error| {
        by_kind(
            &error,
            || format!("no such input file: {path}"),
            || format!("the input file can't be read: {path}"),
        )
    })?;
    match found.is_file() || path == NOWHERE {
        true => Ok(file.into()),
        false => Err(PrepareError::by_job(format!(
            "the input file {path} is no regular file: name one, or {NOWHERE}"
        ))),
    }
}

struct Outputs {
    stdout: OwnedFd,
    stderr: OwnedFd,
    readable: Vec<(u8, File)>,
}

fn open_outputs(
    order: &Order,
    given: Vec<OwnedFd>,
    report: impl Fn(&str),
) -> Result<Outputs, PrepareError> {
    let mut given = given.into_iter();
    let mut readable = Vec::new();
    let mut open = |output: &Output, number: u8| -> Result<OwnedFd, PrepareError> {
        match output {
            Output::Path(path) => {
                report(&format!("the output file {path}"));
                let file = open_given(Path::new(path), order)?;
                if path != NOWHERE {
                    readable.extend(open_twin(Path::new(path), &file).map(|twin| (number, twin)));
                }
                Ok(file.into())
            }
            Output::Given | Output::SameAsStdout => {
                given.next().ok_or_else(|| PrepareError::by_node("an output's file is missing"))
            }
        }
    };
    let stdout = open(&order.stdout, 1)?;
    let stderr = match &order.stderr {
        Output::SameAsStdout => stdout.as_fd().try_clone_to_owned().map_err(|error| {
            PrepareError::by_node(format!("the output can't be opened twice: {error}"))
        })?,
        output => open(output, 2)?,
    };
    Ok(Outputs { stdout, stderr, readable })
}

/// Opens a file that the user named. A later attempt never empties what an earlier one wrote.
fn open_given(path: &Path, order: &Order) -> Result<File, PrepareError> {
    let shown = path.display();
    let opened = once_the_folder_exists(|| open_output(path)).and_then(|mut file| {
        if !order.append {
            // The null device can't be emptied, and needn't be.
            let _ = file.set_len(0);
        } else if let Some(line) = &order.headline {
            writeln!(file, "{line}")?;
        }
        Ok(file)
    });
    opened.map_err(|error| match error {
        OpenError::NoFile(kind) => PrepareError::by_job(format!(
            "the output file {shown} is {kind}: name a regular file or {NOWHERE}"
        )),
        OpenError::Refused(error) => by_kind(
            &error,
            || format!("no such folder for the output file {shown}"),
            || format!("the output file can't be written: {shown}"),
        ),
    })
}

/// How often, and after which pause, a folder is looked for that does not exist: for two seconds.
const LOOKS: u32 = 40;
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Tools such as submitit make the folder of their logs when `sbatch` has returned the job's number. An attempt may
/// start before, and a network file system may show the folder later still.
fn once_the_folder_exists<T>(
    mut open: impl FnMut() -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    for _ in 0..LOOKS {
        match open() {
            Err(OpenError::Refused(missing)) if missing.kind() == io::ErrorKind::NotFound => {
                std::thread::sleep(LOOK_PAUSE);
            }
            opened => return opened,
        }
    }
    open()
}

/// Makes the attempt's folder for temporary files, unless an earlier start made it.
fn make_tmp(own: &Path) -> Result<(), PrepareError> {
    let path = private_tmp(own);
    match fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(on_node("the folder for temporary files", &path, &error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Returns the folder for temporary files of an attempt whose own folder this is.
pub fn private_tmp(own: &Path) -> PathBuf {
    own.join("tmp")
}

fn write_script(own: &Path, script: &str) -> Result<PathBuf, PrepareError> {
    // The name that scripts find in `$0` under Slurm.
    let path = own.join("slurm_script");
    let write = || {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o700).open(&path)?;
        file.write_all(script.as_bytes())
    };
    write().map_err(|error| on_node("the script", &path, &error))?;
    Ok(path)
}

/// Finds a program as a shell would, from the job's own folder and with its own `PATH`.
fn find_program(order: &Order, command: &[String], folder: &Path) -> Result<PathBuf, PrepareError> {
    let name = command.first().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| PrepareError::by_job("the command names no program"))?;
    if name.contains('/') {
        return check_program(folder.join(name));
    }
    let path = order.environment.iter().find_map(|variable| variable.strip_prefix("PATH="));
    let path = path.unwrap_or(DEFAULT_PATH);
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

/// Explains why a program could not be executed.
pub fn explain(cause: &io::Error, program: &CString) -> PrepareError {
    let shown = program.to_string_lossy();
    match cause.raw_os_error() {
        // The file itself was found before: the target of its name is missing.
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

/// Explains why something that belongs to the node could not be written.
pub fn on_node(what: &str, path: &Path, error: &io::Error) -> PrepareError {
    let reason = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => "the node's disk is full".to_owned(),
        _ => error.to_string(),
    };
    PrepareError::by_node(format!("{what} can't be written: {}: {reason}", path.display()))
}

fn text(text: &OsStr) -> Result<CString, PrepareError> {
    CString::new(text.as_bytes()).map_err(|_| PrepareError::by_job("a path holds a zero byte"))
}

fn texts(list: &[String]) -> Result<Vec<CString>, PrepareError> {
    list.iter()
        .map(|item| {
            CString::new(item.as_bytes())
                .map_err(|_| PrepareError::by_job("an argument or variable holds a zero byte"))
        })
        .collect()
}
