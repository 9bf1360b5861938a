//! Options in a script: lines that begin with `#TESSERA` or `#SBATCH`, before its first
//! command.

use clap::{Arg, ArgAction, Args, FromArgMatches, Parser};

use super::foreign::Foreign;
use super::options::Options;

/// What a script's headers say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Headers {
    /// Its options; `#TESSERA` lines over `#SBATCH` lines, later lines over earlier ones.
    pub options: Options,
    /// What has no effect, with its place.
    pub warnings: Vec<String>,
}

/// A header that can't be honoured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {why}")]
pub struct BadHeader {
    /// The script.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Slurm,
    Tessera,
}

/// The options that one header line may carry.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct HeaderLine {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    foreign: Foreign,
    #[command(flatten)]
    terminal: Terminal,
}

/// Options that concern the terminal of the one who submits, so a script can't give them.
#[derive(Default)]
struct Terminal {
    given: Vec<&'static str>,
}

const TERMINAL: &[(&str, char)] = &[("wait", 'W'), ("quiet", 'Q'), ("parsable", '\0')];

impl Args for Terminal {
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

impl FromArgMatches for Terminal {
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
pub fn read(file: &str, script: &str) -> Result<Headers, BadHeader> {
    let (mut slurm, mut tessera) = (Options::default(), Options::default());
    let mut warnings = Vec::new();
    for (index, line) in script.lines().enumerate() {
        let bad = |why: String| BadHeader { file: file.to_owned(), line: index + 1, why };
        let Some((dialect, rest)) = header(line) else {
            if is_command(line) {
                break;
            }
            continue;
        };
        let words = split(rest).map_err(bad)?;
        let mut layer = read_line(words).map_err(bad)?;
        layer.judge(dialect).map_err(bad)?;
        warnings
            .extend(layer.warnings.drain(..).map(|text| format!("{file}:{}: {text}", index + 1)));
        let below = match dialect {
            Dialect::Slurm => &mut slurm,
            Dialect::Tessera => &mut tessera,
        };
        *below = std::mem::take(below).under(layer.options).map_err(bad)?;
    }
    let at_end = |why| BadHeader { file: file.to_owned(), line: 1, why };
    Ok(Headers { options: slurm.under(tessera).map_err(at_end)?, warnings })
}

struct Layer {
    options: Options,
    foreign: Foreign,
    warnings: Vec<String>,
}

impl Layer {
    fn judge(&mut self, dialect: Dialect) -> Result<(), String> {
        self.options.gpu()?;
        self.warnings.extend(self.foreign.judge()?);
        if dialect == Dialect::Slurm && self.options.priority.take().is_some() {
            self.warnings.push(
                "--priority has no effect here: Slurm's numbers mean something else; write \
                 #TESSERA --priority 0 (highest) to 9"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

fn read_line(words: Vec<String>) -> Result<Layer, String> {
    let line = HeaderLine::try_parse_from(words).map_err(|bad| first_line(&bad))?;
    let warnings = line
        .terminal
        .given
        .iter()
        .map(|long| format!("--{long} has no effect in a script; give it on the command line"));
    let warnings = warnings.collect();
    Ok(Layer { options: line.options, foreign: line.foreign, warnings })
}

/// Returns what clap found wrong, without its hints for command lines.
fn first_line(bad: &clap::Error) -> String {
    let text = bad.to_string();
    let first = text.lines().next().unwrap_or_default();
    first.strip_prefix("error: ").unwrap_or(first).to_owned()
}

fn header(line: &str) -> Option<(Dialect, &str)> {
    let (dialect, rest) = if let Some(rest) = line.strip_prefix("#SBATCH") {
        (Dialect::Slurm, rest)
    } else {
        (Dialect::Tessera, line.strip_prefix("#TESSERA")?)
    };
    (rest.is_empty() || rest.starts_with([' ', '\t'])).then_some((dialect, rest))
}

fn is_command(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with('#')
}

/// Splits a line into words as a shell would: quotes and backslashes keep blanks together,
/// and a `#` at a word's beginning starts a comment.
fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some('"') | None, '\\') => {
                let escaped = chars.next().ok_or("the line ends with a backslash")?;
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
    if let Some(open) = quote {
        return Err(format!("a quote ({open}) is not closed"));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests;
