//! Options in a script: lines that begin with `#TESSERA` or `#SBATCH`, before its first
//! command.

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Args, FromArgMatches, Parser};

use super::foreign::{ForeignOptions, UnsupportedOption};
use super::options::{BadJobOptions, JobOptions};
use super::resources::BadResources;

/// The options in a script's headers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScriptHeaders {
    /// Its options; `#TESSERA` lines over `#SBATCH` lines, later lines over earlier ones.
    pub options: JobOptions,
    /// Options without effect, with file and line.
    pub warnings: Vec<String>,
}

/// A header that is not supported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {problem}")]
pub struct BadHeader {
    /// The script.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The fault.
    pub problem: HeaderProblem,
}

/// The fault of a header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderProblem {
    /// The parts of the job are to have different resources.
    #[error(
        "a job has one kind of node (hetjob): submit each part as its own job, with --dependency=after:JOB"
    )]
    SeveralParts,
    /// A backslash has nothing behind it.
    #[error("the line ends with a backslash")]
    EndsWithBackslash,
    /// A quote has no end.
    #[error("a quote ({quote}) is not closed")]
    OpenQuote {
        /// The quotation mark.
        quote: char,
    },
    /// An option is unknown, or its value can't be used.
    #[error("{message}")]
    Unreadable {
        /// Which rule is broken.
        kind: ErrorKind,
        /// The option, what was given, and what is expected.
        message: String,
    },
    /// Options contradict each other.
    #[error(transparent)]
    Options(#[from] BadJobOptions),
    /// Requested resources contradict each other.
    #[error(transparent)]
    Resources(#[from] BadResources),
    /// Tessera can't honour an option.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedOption),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderDialect {
    Slurm,
    Tessera,
}

/// The options that one header line may carry.
#[derive(Parser)]
#[command(
    infer_long_args = true,
    no_binary_name = true,
    disable_help_flag = true,
    disable_version_flag = true
)]
struct HeaderLine {
    #[command(flatten)]
    options: JobOptions,
    #[command(flatten)]
    foreign: ForeignOptions,
    #[command(flatten)]
    terminal: TerminalOptions,
}

/// Options that concern the user's terminal, so that a script can't give them.
#[derive(Default)]
struct TerminalOptions {
    given: Vec<&'static str>,
}

const TERMINAL: &[(&str, char)] = &[("wait", 'W'), ("quiet", 'Q'), ("parsable", '\0')];

impl Args for TerminalOptions {
    fn augment_args(command: clap::Command) -> clap::Command {
        TERMINAL.iter().fold(command, |command, (long, short)| {
            let arg = Arg::new(*long).long(*long).action(ArgAction::SetTrue);
            command.arg(if *short == '\0' { arg } else { arg.short(*short) })
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for TerminalOptions {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let given = TERMINAL.iter().map(|(long, _)| *long);
        Ok(Self { given: given.filter(|long| matches.get_flag(long)).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Reads the headers of `script`; `file` is what messages call it.
///
/// # Errors
///
/// [`BadHeader`] names the first line that can't be honoured, and why.
pub fn read(file: &str, script: &str) -> Result<ScriptHeaders, BadHeader> {
    let (mut slurm, mut tessera) = (JobOptions::default(), JobOptions::default());
    let mut warnings = Vec::new();
    for (index, line) in script.lines().enumerate() {
        let bad = |problem| BadHeader { file: file.to_owned(), line: index + 1, problem };
        let Some((dialect, rest)) = header(line) else {
            if is_command(line) {
                break;
            }
            continue;
        };
        let words = split(rest).map_err(bad)?;
        let mut layer = read_line(words, dialect).map_err(bad)?;
        layer.judge(dialect).map_err(bad)?;
        warnings
            .extend(layer.warnings.drain(..).map(|text| format!("{file}:{}: {text}", index + 1)));
        let below = match dialect {
            HeaderDialect::Slurm => &mut slurm,
            HeaderDialect::Tessera => &mut tessera,
        };
        *below = std::mem::take(below).under(layer.options).map_err(|both| bad(both.into()))?;
    }
    let options = slurm.under(tessera).map_err(|both| BadHeader {
        file: file.to_owned(),
        line: 1,
        problem: both.into(),
    })?;
    Ok(ScriptHeaders { options, warnings })
}

/// Reads Slurm's variables for options of a job, such as `SBATCH_PARTITION`.
///
/// # Errors
///
/// [`BadHeader`] names the variable that can't be honoured, and why.
pub fn read_variables(
    prefix: &str,
    environment: &std::collections::BTreeMap<String, String>,
) -> Result<ScriptHeaders, BadHeader> {
    let mut headers = ScriptHeaders::default();
    for (suffix, long) in VARIABLES {
        let name = format!("{prefix}_{suffix}");
        let Some(value) = environment.get(&name) else { continue };
        let bad = |problem| BadHeader { file: name.clone(), line: 1, problem };
        let word = match (FLAGS.contains(long), value.as_str()) {
            (true, "0" | "no") => continue,
            (true, _) => format!("--{long}"),
            (false, value) => format!("--{long}={value}"),
        };
        let mut layer = read_line(vec![word], HeaderDialect::Slurm).map_err(bad)?;
        layer.judge(HeaderDialect::Slurm).map_err(bad)?;
        headers.warnings.extend(layer.warnings.drain(..).map(|text| format!("{name}: {text}")));
        let below = std::mem::take(&mut headers.options);
        headers.options = below.under(layer.options).map_err(|both| bad(both.into()))?;
    }
    Ok(headers)
}

/// Names of Slurm's variables behind their prefix, and the options that they stand for.
const VARIABLES: &[(&str, &str)] = &[
    ("ACCOUNT", "account"),
    ("ARRAY_INX", "array"),
    ("CONSTRAINT", "constraint"),
    ("CPUS_PER_GPU", "cpus-per-gpu"),
    ("ERROR", "error"),
    ("EXCLUSIVE", "exclusive"),
    ("EXPORT", "export"),
    ("GPUS", "gpus"),
    ("GPUS_PER_NODE", "gpus-per-node"),
    ("GPUS_PER_TASK", "gpus-per-task"),
    ("GRES", "gres"),
    ("JOB_NAME", "job-name"),
    ("MEM_PER_CPU", "mem-per-cpu"),
    ("MEM_PER_GPU", "mem-per-gpu"),
    ("MEM_PER_NODE", "mem"),
    ("NO_REQUEUE", "no-requeue"),
    ("OPEN_MODE", "open-mode"),
    ("OUTPUT", "output"),
    ("PARTITION", "partition"),
    ("QOS", "qos"),
    ("REQUEUE", "requeue"),
    ("RESERVATION", "reservation"),
    ("SIGNAL", "signal"),
    ("TIMELIMIT", "time"),
    ("WCKEY", "wckey"),
];

/// Those that have no value on a command line.
const FLAGS: &[&str] = &["exclusive", "requeue", "no-requeue"];

struct HeaderLayer {
    options: JobOptions,
    foreign: ForeignOptions,
    warnings: Vec<String>,
}

impl HeaderLayer {
    fn judge(&mut self, dialect: HeaderDialect) -> Result<(), HeaderProblem> {
        self.options.gpu()?;
        self.warnings.extend(self.foreign.judge()?);
        if dialect == HeaderDialect::Slurm && self.options.priority.take().is_some() {
            self.warnings.push(
                "--priority has no effect here, since Slurm's numbers mean something else; write \
                 #TESSERA --priority 0 (highest) to 9"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

/// Slurm's words for what `--profile` measures, where ours is a MIG profile.
const MEASURED: &[&str] = &["all", "none", "energy", "task", "lustre", "network", "filesystem"];

fn is_measurement(word: &str) -> bool {
    let value = word.strip_prefix("--profile=").unwrap_or_default().to_ascii_lowercase();
    !value.is_empty() && value.split(',').all(|word| MEASURED.contains(&word))
}

fn read_line(mut words: Vec<String>, dialect: HeaderDialect) -> Result<HeaderLayer, HeaderProblem> {
    if words.iter().any(|word| word == "hetjob" || word == "packjob") {
        return Err(HeaderProblem::SeveralParts);
    }
    let before = words.len();
    if dialect == HeaderDialect::Slurm {
        words.retain(|word| !is_measurement(word));
    }
    let measured = (words.len() < before).then(|| {
        "--profile has no effect: all jobs are measured; see `tessera show` and `tessera top`"
            .to_owned()
    });
    let mut line = HeaderLine::try_parse_from(words)
        .map_err(|bad| HeaderProblem::Unreadable { kind: bad.kind(), message: first_line(&bad) })?;
    let misaddressed = line.options.without_bad_addresses();
    let warnings = line
        .terminal
        .given
        .iter()
        .map(|long| format!("--{long} has no effect in a script; give it on the command line"));
    let uncounted = line
        .options
        .uncounted()
        .map(|name| format!("--gres={name} has no effect: only GPUs are counted"));
    let mail = [line.options.unmailed(), misaddressed];
    let warnings =
        warnings.chain(uncounted).chain(mail.into_iter().flatten()).chain(measured).collect();
    Ok(HeaderLayer { options: line.options, foreign: line.foreign, warnings })
}

/// Returns what clap found wrong, without its hints for command lines.
fn first_line(bad: &clap::Error) -> String {
    let text = bad.to_string();
    let first = text.lines().next().unwrap_or_default();
    first.strip_prefix("error: ").unwrap_or(first).to_owned()
}

fn header(line: &str) -> Option<(HeaderDialect, &str)> {
    let (dialect, rest) = if let Some(rest) = line.strip_prefix("#SBATCH") {
        (HeaderDialect::Slurm, rest)
    } else {
        (HeaderDialect::Tessera, line.strip_prefix("#TESSERA")?)
    };
    (rest.is_empty() || rest.starts_with([' ', '\t'])).then_some((dialect, rest))
}

fn is_command(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with('#')
}

/// Splits a line into words as a shell would: quotes and backslashes keep blanks together,
/// and a `#` at a word's beginning starts a comment.
fn split(text: &str) -> Result<Vec<String>, HeaderProblem> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some('"') | None, '\\') => {
                let escaped = chars.next().ok_or(HeaderProblem::EndsWithBackslash)?;
                word.get_or_insert_default().push(escaped);
            }
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') => {
                word.get_or_insert_default();
                quote = Some(c);
            }
            (None, '#') if word.is_none() => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    if let Some(quote) = quote {
        return Err(HeaderProblem::OpenQuote { quote });
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests;
