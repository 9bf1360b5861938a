//! How a batch job is started and warned, like in batch schedulers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::BadId;
use crate::life::words;
use crate::spec::BadField;
use crate::units::Millis;

/// Maximum number of seconds before a time limit at which a signal may be sent, which is Slurm's.
pub const EARLY_SIGNAL_SECS_MAX: u64 = 65_535;

words! {
    /// How many processes Tessera starts for a job over several GPUs.
    LaunchStyle {
        /// One process for each GPU or slice, with its rank.
        Each = "each",
        /// One process on the first node, which sees all GPUs or slices there. It starts the others.
        Once = "once",
    }
}

words! {
    /// A signal that a job can get before its time limit.
    WarningSignal {
        /// `SIGHUP`.
        Hup = "HUP",
        /// `SIGINT`.
        Int = "INT",
        /// `SIGQUIT`.
        Quit = "QUIT",
        /// `SIGUSR1`.
        Usr1 = "USR1",
        /// `SIGUSR2`.
        Usr2 = "USR2",
        /// `SIGTERM`.
        Term = "TERM",
        /// `SIGCONT`.
        Cont = "CONT",
    }
}

words! {
    /// How a further attempt opens the output files of the job.
    OpenMode {
        /// It appends to them.
        Append = "append",
        /// It truncates them.
        Truncate = "truncate",
    }
}

/// A signal before the time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlySignal {
    /// The signal that is sent before the end.
    pub signal: WarningSignal,
    /// How long before the time limit.
    pub before_limit: Millis,
    /// Whether only the job's first process gets it; otherwise only the others do.
    pub script_only: bool,
}

impl EarlySignal {
    /// Reads a request.
    ///
    /// # Errors
    ///
    /// [`BadField`] names what is wrong.
    pub fn parse(
        signal: &str,
        secs_before_limit: u64,
        script_only: bool,
    ) -> Result<Self, BadField> {
        let signal = signal.parse().map_err(|bad: BadId| {
            BadField::new("signal", format!("{signal:?} is unknown"), bad.expected)
        })?;
        if secs_before_limit > EARLY_SIGNAL_SECS_MAX {
            return Err(BadField::new(
                "signal",
                format!("{secs_before_limit} seconds are out of range"),
                format!("0 to {EARLY_SIGNAL_SECS_MAX}"),
            ));
        }
        Ok(Self { signal, before_limit: Millis::from_secs(secs_before_limit), script_only })
    }
}

/// The indexes of an array, and how many of its tasks may run at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ArrayRules {
    /// Its indexes in ascending order, if some are missing between the first and the last one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<u32>,
    /// How many tasks may run at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<ArrayLimit>,
}

/// A job's position in its submission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskPosition {
    /// The index of its task, if it belongs to an array.
    pub index: Option<u32>,
    /// Its rank, if it belongs to a gang.
    pub rank: Option<u32>,
}

impl TaskPosition {
    /// Returns the number that names it among the jobs of its submission: its index, or the rank in a gang that is
    /// no task of an array.
    pub fn named_by(self) -> Option<u32> {
        self.index.or(self.rank)
    }

    /// Returns whether its submission's number and [`TaskPosition::named_by`] name it, and no other
    /// job. They name rank 0 of a task of several.
    pub fn has_name(self) -> bool {
        self.named_by().is_some() && (self.index.is_none() || self.rank.unwrap_or(0) == 0)
    }
}

/// How many tasks of an array may run at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayLimit {
    /// How many tasks it has.
    pub tasks: u32,
    /// How many may run at a time.
    pub at_once: u32,
}

impl ArrayRules {
    /// Reads a request of `tasks` tasks.
    ///
    /// # Errors
    ///
    /// [`BadField`] names what is wrong.
    pub fn parse(indexes: Vec<u32>, limit: Option<u32>, tasks: u32) -> Result<Self, BadField> {
        if !indexes.is_sorted_by(|one, next| one < next) {
            let expected = "indexes in ascending order, each once";
            return Err(BadField::new("array_indexes", "they are not in order", expected));
        }
        let limit = match limit {
            Some(0) => {
                return Err(BadField::new("array_limit", "it is 0", "how many may run at a time"));
            }
            Some(at_once) => Some(ArrayLimit { tasks, at_once }),
            None => None,
        };
        Ok(Self { indexes, limit })
    }

    /// Returns whether there are no rules.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the user-visible position of a job from its index in the submission, which counts
    /// from 0. `members` is the size of the gangs, or 1; `first` is the first index, which is 0 for
    /// the ranks of a gang that is no array.
    ///
    /// The indexes of an array of gangs are always listed. They distinguish it from a gang.
    pub fn position(&self, place: u32, first: Option<u32>, members: u32) -> TaskPosition {
        let members = members.max(1);
        let is_array_of_gangs = members > 1 && !self.indexes.is_empty();
        match first {
            Some(first) if members == 1 => {
                TaskPosition { index: self.index_at(place, first), rank: None }
            }
            Some(first) if is_array_of_gangs => TaskPosition {
                index: self.index_at(place / members, first),
                rank: Some(place % members),
            },
            Some(_) => TaskPosition { index: None, rank: Some(place) },
            None => TaskPosition::default(),
        }
    }

    /// Returns the index of the task at a place of the array, counted from 0; `first` is the first index.
    pub fn index_at(&self, place: u32, first: u32) -> Option<u32> {
        match self.indexes.is_empty() {
            true => first.checked_add(place),
            false => self.indexes.get(usize::try_from(place).ok()?).copied(),
        }
    }
}

/// Maximum number of rows or columns of a terminal: more than any screen has, and small enough for
/// programs that allocate by it.
pub const TERMINAL_SIZE_MAX: u16 = 4_096;

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

impl TerminalSize {
    /// Reads a request.
    ///
    /// # Errors
    ///
    /// [`BadField`] names what is wrong.
    pub fn parse(field: &'static str, rows: u16, columns: u16) -> Result<Self, BadField> {
        let is_sound = |size: u16| (1..=TERMINAL_SIZE_MAX).contains(&size);
        match is_sound(rows) && is_sound(columns) {
            true => Ok(Self { rows, columns }),
            false => Err(BadField::new(
                field,
                format!("{rows} rows and {columns} columns are no size of a terminal"),
                format!("1 to {TERMINAL_SIZE_MAX} of each"),
            )),
        }
    }
}

/// How the program of an interactive job is connected with its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interaction {
    /// The terminal that it gets; without one, pipes.
    pub terminal: Option<TerminalSize>,
}

/// How a batch job is started and warned; a part of [`crate::spec::RunSpec`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchRules {
    /// How many processes are started over several GPUs.
    pub launch: LaunchStyle,
    /// The script's arguments.
    pub arguments: Vec<String>,
    /// The signal before the time limit, if one is requested.
    pub signal: Option<EarlySignal>,
    /// What attempts do with output files that exist; `None` if the user did not choose.
    pub open_mode: Option<OpenMode>,
    /// How its program is connected with its user, if it is interactive. It then ends when its user
    /// disconnects.
    pub interaction: Option<Interaction>,
}

impl Default for BatchRules {
    /// Returns the rules of a job that was stored before there was a choice.
    fn default() -> Self {
        Self {
            launch: LaunchStyle::Each,
            arguments: Vec::new(),
            signal: None,
            open_mode: None,
            interaction: None,
        }
    }
}
