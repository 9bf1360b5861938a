//! `--signal`: a signal before the time limit.

use std::str::FromStr;

use tessera_api_types::EarlySignalRequest;

/// How many seconds before the time limit the signal is sent, if the option doesn't state it.
const USUAL_SECS: u64 = 60;
/// The largest number of seconds, which is Slurm's.
const SECS_MAX: u64 = 65_535;

/// The text of a user: `[R][B]:]SIGNAL[@SECONDS]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlySignalOption(pub EarlySignalRequest);

/// A text that is not a signal with its time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a signal before the time limit: write USR1@60, or B:USR1@60 for the script alone"
)]
pub struct BadEarlySignal {
    text: String,
}

impl FromStr for EarlySignalOption {
    type Err = BadEarlySignal;

    fn from_str(text: &str) -> Result<Self, BadEarlySignal> {
        let bad = || BadEarlySignal { text: text.to_owned() };
        let (flags, rest) = text.split_once(':').unwrap_or(("", text));
        // R is about reservations, of which there are none.
        if !flags.chars().all(|flag| matches!(flag.to_ascii_uppercase(), 'B' | 'R')) {
            return Err(bad());
        }
        let (name, secs) = match rest.split_once('@') {
            Some((name, secs)) => (name, secs.parse().map_err(|_| bad())?),
            None => (rest, USUAL_SECS),
        };
        let signal = signal_name(name).ok_or_else(bad)?;
        if secs > SECS_MAX {
            return Err(bad());
        }
        let script_only = flags.contains(['B', 'b']);
        Ok(Self(EarlySignalRequest { signal, secs_before_limit: secs, script_only }))
    }
}

/// Signals by their numbers on Linux.
const NUMBERS: &[(&str, &str)] = &[
    ("1", "HUP"),
    ("2", "INT"),
    ("3", "QUIT"),
    ("10", "USR1"),
    ("12", "USR2"),
    ("15", "TERM"),
    ("18", "CONT"),
];

/// Returns a signal's name without SIG.
fn signal_name(text: &str) -> Option<String> {
    let upper = text.trim().to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let known = NUMBERS.iter().find(|(number, known)| *number == name || *known == name);
    known.map(|(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurms_forms_are_read() {
        for (text, signal, secs_before_limit, script_only) in [
            ("B:USR1@60", "USR1", 60, true),
            ("SIGUSR1@90", "USR1", 90, false),
            ("USR2", "USR2", 60, false),
            ("10@120", "USR1", 120, false),
            ("RB:term@5", "TERM", 5, true),
        ] {
            let signal = signal.to_owned();
            let expected = EarlySignalRequest { signal, secs_before_limit, script_only };
            assert_eq!(text.parse(), Ok(EarlySignalOption(expected)), "{text}");
        }
    }

    #[test]
    fn invalid_signals_are_refused_with_the_form() {
        for text in ["FOO@60", "USR1@x", "X:USR1@60", "", "KILL@10", "USR1@70000"] {
            let refused = text.parse::<EarlySignalOption>().unwrap_err().to_string();

            assert!(refused.contains("B:USR1@60"), "{text}: {refused}");
        }
    }
}
