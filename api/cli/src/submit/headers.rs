//! Options in a script: lines that begin with `#TESSERA` or `#SBATCH`, before its first
//! command.

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Args, CommandFactory as _, FromArgMatches, Parser};

use super::foreign::{ForeignOptions, UnsupportedOption};
use super::options::{BadJobOptions, JobOptions};
use super::resources::BadResources;

/// The options in a script's headers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScriptHeaders {
    /// Its options; `#TESSERA` lines over `#SBATCH` lines, later lines over earlier ones.
    pub options: JobOptions,
    /// Slurm's other options, later ones over earlier ones.
    pub foreign: ForeignOptions,
    /// What the command that submits the script is to do.
    pub terminal: TerminalOptions,
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

/// Options of the command that submits a script, which the script may give as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TerminalOptions {
    given: Vec<&'static str>,
}

impl TerminalOptions {
    /// Adds those of another layer.
    pub fn under(mut self, stronger: Self) -> Self {
        self.given.extend(stronger.given);
        self
    }

    /// Returns whether an option is given.
    pub fn has(&self, long: &str) -> bool {
        self.given.contains(&long)
    }
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
    let (mut foreign, mut terminal) = (ForeignOptions::default(), TerminalOptions::default());
    let mut warnings = Vec::new();
    let mut parser = LineParser::default();
    for (index, line) in script.lines().enumerate() {
        let bad = |problem| BadHeader { file: file.to_owned(), line: index + 1, problem };
        let Some((dialect, rest)) = header(line) else {
            if is_command(line) {
                break;
            }
            continue;
        };
        let words = split(rest).map_err(bad)?;
        let mut layer = read_line(&mut parser, words, dialect).map_err(bad)?;
        layer.judge(dialect).map_err(bad)?;
        warnings
            .extend(layer.warnings.drain(..).map(|text| format!("{file}:{}: {text}", index + 1)));
        foreign = foreign.under(layer.foreign);
        terminal = terminal.under(layer.terminal);
        let below = match dialect {
            HeaderDialect::Slurm => &mut slurm,
            HeaderDialect::Tessera => &mut tessera,
        };
        *below = std::mem::take(below).then(layer.options).map_err(|both| bad(both.into()))?;
    }
    let options = slurm.under(tessera).map_err(|both| BadHeader {
        file: file.to_owned(),
        line: 1,
        problem: both.into(),
    })?;
    Ok(ScriptHeaders { options, foreign, terminal, warnings })
}

/// Reads Slurm's variables for options of a job, such as `SBATCH_PARTITION`.
///
/// # Errors
///
/// [`BadHeader`] names the variable that can't be honoured, and why.
pub fn read_variables(
    prefix: VariablePrefix,
    environment: &std::collections::BTreeMap<String, String>,
) -> Result<ScriptHeaders, BadHeader> {
    let mut headers = ScriptHeaders::default();
    let mut parser = LineParser::default();
    let own = |suffix: &str| format!("{}_{suffix}", prefix.word());
    let of_all = VARIABLES.iter().map(|(suffix, long)| (own(suffix), *long));
    let of_srun = OF_SRUN.iter().filter(|_| prefix == VariablePrefix::Srun);
    let of_srun = of_srun.map(|(suffix, long)| (own(suffix), *long));
    // The weaker one of two names.
    let shared = [("SLURM_HINT".to_owned(), "hint")];
    for (name, long) in shared.into_iter().chain(of_all).chain(of_srun) {
        let Some(value) = environment.get(&name) else { continue };
        let bad = |problem| BadHeader { file: name.clone(), line: 1, problem };
        let word = match (FLAGS.contains(&long), value.as_str()) {
            (true, "0" | "no") => continue,
            (true, _) => format!("--{long}"),
            (false, value) => format!("--{long}={value}"),
        };
        let mut layer = read_line(&mut parser, vec![word], HeaderDialect::Slurm).map_err(bad)?;
        layer.judge(HeaderDialect::Slurm).map_err(bad)?;
        headers.warnings.extend(layer.warnings.drain(..).map(|text| format!("{name}: {text}")));
        headers.foreign = std::mem::take(&mut headers.foreign).under(layer.foreign);
        headers.terminal = std::mem::take(&mut headers.terminal).under(layer.terminal);
        let below = std::mem::take(&mut headers.options);
        headers.options = below.under(layer.options).map_err(|both| bad(both.into()))?;
    }
    Ok(headers)
}

/// The commands whose options variables set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariablePrefix {
    /// `SALLOC_`.
    Salloc,
    /// `SBATCH_`.
    Sbatch,
    /// `SLURM_`, outside of a job.
    Srun,
}

impl VariablePrefix {
    const fn word(self) -> &'static str {
        match self {
            Self::Salloc => "SALLOC",
            Self::Sbatch => "SBATCH",
            Self::Srun => "SLURM",
        }
    }
}

/// Names of Slurm's variables behind their prefix, and the options that they stand for.
const VARIABLES: &[(&str, &str)] = &[
    ("ACCOUNT", "account"),
    ("ACCTG_FREQ", "acctg-freq"),
    ("ARRAY_INX", "array"),
    ("CLUSTERS", "clusters"),
    ("CONSTRAINT", "constraint"),
    ("CORE_SPEC", "core-spec"),
    ("CPUS_PER_GPU", "cpus-per-gpu"),
    ("DELAY_BOOT", "delay-boot"),
    ("DISTRIBUTION", "distribution"),
    ("ERROR", "error"),
    ("EXCLUSIVE", "exclusive"),
    ("EXPORT", "export"),
    ("GET_USER_ENV", "get-user-env"),
    ("GPUS", "gpus"),
    ("GPUS_PER_NODE", "gpus-per-node"),
    ("GPUS_PER_TASK", "gpus-per-task"),
    ("GPU_BIND", "gpu-bind"),
    ("GPU_FREQ", "gpu-freq"),
    ("GRES", "gres"),
    ("GRES_FLAGS", "gres-flags"),
    ("HINT", "hint"),
    ("IGNORE_PBS", "ignore-pbs"),
    ("INPUT", "input"),
    ("JOB_NAME", "job-name"),
    ("MEM_BIND", "mem-bind"),
    ("MEM_PER_CPU", "mem-per-cpu"),
    ("MEM_PER_GPU", "mem-per-gpu"),
    ("MEM_PER_NODE", "mem"),
    ("NETWORK", "network"),
    ("NO_KILL", "no-kill"),
    ("NO_REQUEUE", "no-requeue"),
    ("OPEN_MODE", "open-mode"),
    ("OUTPUT", "output"),
    ("OVERCOMMIT", "overcommit"),
    ("PARTITION", "partition"),
    ("POWER", "power"),
    ("PROFILE", "profile"),
    ("QOS", "qos"),
    ("REQUEUE", "requeue"),
    ("REQ_SWITCH", "switches"),
    ("RESERVATION", "reservation"),
    ("SIGNAL", "signal"),
    ("SPREAD_JOB", "spread-job"),
    ("THREADS_PER_CORE", "threads-per-core"),
    ("THREAD_SPEC", "thread-spec"),
    ("TIMELIMIT", "time"),
    ("USE_MIN_NODES", "use-min-nodes"),
    ("WAIT", "wait"),
    ("WAIT_ALL_NODES", "wait-all-nodes"),
    ("WCKEY", "wckey"),
];

/// Those that only `srun` reads.
const OF_SRUN: &[(&str, &str)] = &[
    ("CPUS_PER_TASK", "cpus-per-task"),
    ("DEPENDENCY", "dependency"),
    ("NNODES", "nodes"),
    ("NTASKS", "ntasks"),
    ("NTASKS_PER_GPU", "ntasks-per-gpu"),
    ("NTASKS_PER_NODE", "ntasks-per-node"),
    ("STDERRMODE", "error"),
    ("STDOUTMODE", "output"),
    ("WORKING_DIR", "chdir"),
];

/// Those that have no value on a command line.
const FLAGS: &[&str] = &[
    "exclusive",
    "get-user-env",
    "ignore-pbs",
    "no-kill",
    "no-requeue",
    "overcommit",
    "requeue",
    "spread-job",
    "use-min-nodes",
    "wait",
];

struct HeaderLayer {
    options: JobOptions,
    foreign: ForeignOptions,
    terminal: TerminalOptions,
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

/// The parser of lines. It is built with the first line: building it takes as long as reading many lines.
#[derive(Default)]
struct LineParser(Option<clap::Command>);

impl LineParser {
    fn parse(&mut self, words: Vec<String>) -> Result<HeaderLine, clap::Error> {
        let matches =
            self.0.get_or_insert_with(HeaderLine::command).try_get_matches_from_mut(words)?;
        HeaderLine::from_arg_matches(&matches)
    }
}

fn read_line(
    parser: &mut LineParser,
    mut words: Vec<String>,
    dialect: HeaderDialect,
) -> Result<HeaderLayer, HeaderProblem> {
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
    let mut line = parser
        .parse(words)
        .map_err(|bad| HeaderProblem::Unreadable { kind: bad.kind(), message: first_line(&bad) })?;
    let misaddressed = line.options.without_bad_addresses();
    let uncounted = line
        .options
        .uncounted()
        .map(|name| format!("--gres={name} has no effect: only GPUs are counted"));
    let mail = [line.options.unmailed(), misaddressed];
    let warnings = uncounted.chain(mail.into_iter().flatten()).chain(measured).collect();
    let HeaderLine { options, foreign, terminal } = line;
    Ok(HeaderLayer { options, foreign, terminal, warnings })
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
