//! Faults on demand, from the file `mps-faults` in the node's folder.
//!
//! One `name=value` a line; unknown names and values are refused, since a fault list that does
//! nothing would make a test pass that tested nothing. Crashes and hangs need no line: kill or
//! stop the process that `nvidia-cuda-mps-control.pid` names.
//!
//! | name | effect | unset |
//! |---|---|---|
//! | `start_delay_ms` | a daemon takes that much longer until it listens | 0 |
//! | `refuse_start` | `1`: a daemon refuses to start | 0 |
//! | `server_delay_ms` | a server initialises that much longer | 0 |
//! | `poison_percent` | probability that a client's death without `terminate_client` breaks its server | 30 |
//! | `terminate_fails` | `1`: `terminate_client` doesn't succeed | 0 |
//! | `server_fails` | `1`: a server ends while it initialises, as without a GPU | 0 |
//! | `release` | the driver's branch that the control program is like: 535, 550, 555 or 580 | 550 |
//! | `seed` | of that probability; drawn by client and death | 0 |

use std::path::Path;
use std::time::Duration;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use super::release::DriverRelease;

/// Name of the list in a node's folder.
pub const FILE: &str = "mps-faults";

/// The faults of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpsFaults {
    /// Added to a daemon's start.
    pub start_delay: Duration,
    /// Whether daemons refuse to start.
    pub refuse_start: bool,
    /// Added to a server's start.
    pub server_delay: Duration,
    /// Probability in percent that a client's unannounced death breaks its server.
    pub poison_percent: u64,
    /// Whether `terminate_client` fails.
    pub terminate_fails: bool,
    /// Whether servers end while they initialise.
    pub server_fails: bool,
    /// Which of NVIDIA's programs the stand-in is like.
    pub release: DriverRelease,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// A line of the list that has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{FILE}: {line:?} has no meaning")]
pub struct MpsFaultsError {
    line: String,
}

impl Default for MpsFaults {
    fn default() -> Self {
        Self {
            start_delay: Duration::ZERO,
            refuse_start: false,
            server_delay: Duration::ZERO,
            poison_percent: 30,
            terminate_fails: false,
            server_fails: false,
            release: DriverRelease::R550,
            seed: 0,
        }
    }
}

impl MpsFaults {
    /// Reads the list of the node in `TESSERA_SIM_NODE`; none if there is no node or no list.
    ///
    /// # Errors
    ///
    /// [`MpsFaultsError`] names the first line that has no meaning.
    pub fn of_node() -> Result<Self, MpsFaultsError> {
        let Some(folder) = std::env::var_os("TESSERA_SIM_NODE") else { return Ok(Self::default()) };
        match std::fs::read_to_string(Path::new(&folder).join(FILE)) {
            Ok(text) => Self::parse(&text),
            Err(_) => Ok(Self::default()),
        }
    }

    /// Reads a list.
    ///
    /// # Errors
    ///
    /// [`MpsFaultsError`] names the first line that has no meaning.
    pub fn parse(text: &str) -> Result<Self, MpsFaultsError> {
        let mut faults = Self::default();
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let bad = || MpsFaultsError { line: line.to_owned() };
            let (name, value) = line.split_once('=').ok_or_else(bad)?;
            let number: u64 = value.trim().parse().map_err(|_| bad())?;
            match (name.trim(), number) {
                ("start_delay_ms", ms) => faults.start_delay = Duration::from_millis(ms),
                ("server_delay_ms", ms) => faults.server_delay = Duration::from_millis(ms),
                ("refuse_start", 0 | 1) => faults.refuse_start = number == 1,
                ("terminate_fails", 0 | 1) => faults.terminate_fails = number == 1,
                ("server_fails", 0 | 1) => faults.server_fails = number == 1,
                ("release", branch) => {
                    faults.release = DriverRelease::from_branch(branch).ok_or_else(bad)?;
                }
                ("poison_percent", 0..=100) => faults.poison_percent = number,
                ("seed", seed) => faults.seed = seed,
                _ => return Err(bad()),
            }
        }
        Ok(faults)
    }

    /// Decides whether the `death`th unannounced death of a server's clients breaks the server.
    pub fn poisons(&self, death: u64) -> bool {
        // SplitMix64 adds this step itself before each number: this is the `death`th of the seed.
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let before = self.seed.wrapping_add(death.wrapping_sub(1).wrapping_mul(STEP));
        SplitMix64::seed_from_u64(before).next_u64() % 100 < self.poison_percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_and_nonsense_is_refused() {
        let faults = MpsFaults::parse("# why\nrefuse_start=1\npoison_percent=100\n").unwrap();

        assert!(faults.refuse_start);
        assert_eq!(faults.poison_percent, 100);
        for line in ["refuse_start=2", "poison_percent=101", "hang", "seed=x", "release=1"] {
            assert!(MpsFaults::parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn about_three_bare_deaths_in_ten_break_a_server() {
        let faults = MpsFaults { seed: 7, ..MpsFaults::default() };

        let broken = (1..=10_000).filter(|death| faults.poisons(*death)).count();

        assert!((2_800..3_200).contains(&broken), "{broken}");
    }
}
