//! How a job takes its slice: alone, or as one of several sharers under MPS.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::BadId;
use crate::spec::{BadField, GpuAsk};
use crate::units::Bytes;

/// Most attempts that share one slice: one MPS server takes 48 client contexts (since Volta).
pub const SHARERS_MAX: u32 = 48;

/// A share of a slice's multiprocessors, in percent: 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub struct SmPercent(u8);

impl SmPercent {
    /// All of them.
    pub const WHOLE: Self = Self(100);
    /// What a sharer gets that names nothing: two go onto a slice.
    ///
    /// Every sharer is provisioned: without a cap, a job that fills the multiprocessors slows its
    /// partner by more than a factor of two; with one, slow-downs are even.
    ///
    /// Source: Villarrubia et al., arXiv 2604.22430 (Gini of slow-downs 0.35 without caps, 0.01
    /// with them).
    pub const DEFAULT: Self = Self(50);

    /// Returns the number, 1 to 100.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<u8> for SmPercent {
    type Error = BadField;

    fn try_from(number: u8) -> Result<Self, BadField> {
        match number {
            1..=100 => Ok(Self(number)),
            0 | 101.. => Err(BadField::new(
                "sm_percent",
                format!("{number} is no share of a slice"),
                "1 to 100 percent of its multiprocessors",
            )),
        }
    }
}

impl From<SmPercent> for u8 {
    fn from(share: SmPercent) -> Self {
        share.0
    }
}

impl fmt::Display for SmPercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.0)
    }
}

/// What one sharer may use of its slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MpsShare {
    /// Its multiprocessors (`CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`).
    pub sm: SmPercent,
    /// Its memory (`CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`).
    pub memory: Bytes,
}

impl MpsShare {
    /// Returns the memory of a slice on which such jobs fit together until the multiprocessors
    /// are given away: a share of half the multiprocessors goes with half the memory.
    pub fn roomy(self) -> Bytes {
        let roomy = u128::from(self.memory.get()) * 100 / u128::from(self.sm.0);
        Bytes::new(u64::try_from(roomy).unwrap_or(u64::MAX))
    }
}

/// Whether a job has its slice to itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// Nobody else is on the slice.
    #[default]
    Exclusive,
    /// Other jobs of the same user may be on it, under NVIDIA's Multi-Process Service.
    Mps(MpsShare),
}

impl Share {
    /// Reads a request's `share` and `sm_percent`, beside what it asks of a GPU.
    ///
    /// # Errors
    ///
    /// [`BadField`] names the field that breaks a rule, and what would be right.
    pub fn parse(
        share: Option<&str>,
        sm_percent: Option<u8>,
        gpu: &GpuAsk,
    ) -> Result<Self, BadField> {
        match (share, sm_percent) {
            (None | Some("exclusive"), None) => Ok(Self::Exclusive),
            (None | Some("exclusive"), Some(sm)) => Err(BadField::new(
                "sm_percent",
                format!("{sm} % of a slice that the job has to itself"),
                "give share = mps with it, or leave it out",
            )),
            (Some("mps"), sm) => {
                let GpuAsk::Memory(memory) = gpu else {
                    return Err(BadField::new(
                        "share",
                        format!("a job that shares a slice asks for {gpu}"),
                        "give gpu_memory_bytes: it is the job's limit, and decides with whom it \
                         fits together",
                    ));
                };
                let sm = sm.map_or(Ok(SmPercent::DEFAULT), SmPercent::try_from)?;
                Ok(Self::Mps(MpsShare { sm, memory: *memory }))
            }
            (Some(word), _) => Err(BadField::new(
                "share",
                format!("{word:?} is unknown"),
                "exclusive (the default) or mps",
            )),
        }
    }

    /// Returns the sharer's part; `None` for a job that is alone.
    pub const fn mps(self) -> Option<MpsShare> {
        match self {
            Self::Exclusive => None,
            Self::Mps(share) => Some(share),
        }
    }

    /// Returns the word that the API uses.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Mps(_) => "mps",
        }
    }
}

/// The signal on which a job writes down where it is, and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum CheckpointSignal {
    /// `SIGUSR1`.
    Usr1,
    /// `SIGUSR2`.
    Usr2,
    /// `SIGHUP`.
    Hup,
    /// `SIGINT`.
    Int,
    /// `SIGTERM`.
    Term,
}

impl CheckpointSignal {
    /// Every one, in order.
    pub const ALL: &[Self] = &[Self::Usr1, Self::Usr2, Self::Hup, Self::Int, Self::Term];

    /// Returns its name as shells have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Usr1 => "USR1",
            Self::Usr2 => "USR2",
            Self::Hup => "HUP",
            Self::Int => "INT",
            Self::Term => "TERM",
        }
    }
}

impl fmt::Display for CheckpointSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CheckpointSignal {
    type Err = BadId;

    /// Reads `USR1` or `SIGUSR1`.
    fn from_str(text: &str) -> Result<Self, BadId> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let found = Self::ALL.iter().copied().find(|signal| signal.name() == name);
        found.ok_or_else(|| BadId {
            kind: "CheckpointSignal",
            text: text.to_owned(),
            expected: "one of USR1 USR2 HUP INT TERM",
        })
    }
}

impl From<CheckpointSignal> for String {
    fn from(signal: CheckpointSignal) -> Self {
        signal.name().to_owned()
    }
}

impl TryFrom<String> for CheckpointSignal {
    type Error = BadId;

    fn try_from(text: String) -> Result<Self, BadId> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn memory(gib: u64) -> GpuAsk {
        GpuAsk::Memory(Bytes::new(gib * GIB))
    }

    #[test]
    fn a_job_is_alone_unless_it_says_otherwise() {
        assert_eq!(Share::parse(None, None, &memory(4)), Ok(Share::Exclusive));
        assert_eq!(Share::parse(Some("exclusive"), None, &GpuAsk::Whole), Ok(Share::Exclusive));
    }

    #[test]
    fn a_sharer_has_a_part_of_both() {
        let share = Share::parse(Some("mps"), Some(25), &memory(4)).unwrap().mps().unwrap();

        assert_eq!((share.sm.get(), share.memory), (25, Bytes::new(4 * GIB)));
        assert_eq!(share.roomy(), Bytes::new(16 * GIB));
        let half = Share::parse(Some("mps"), None, &memory(4)).unwrap().mps().unwrap();
        assert_eq!(half.sm, SmPercent::DEFAULT);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would_be_right() {
        for (share, sm, gpu, field, hint) in [
            (None, Some(50), memory(4), "sm_percent", "share = mps"),
            (Some("exclusive"), Some(50), memory(4), "sm_percent", "share = mps"),
            (Some("mps"), None, GpuAsk::Unknown, "share", "gpu_memory_bytes"),
            (Some("mps"), None, GpuAsk::Whole, "share", "gpu_memory_bytes"),
            (Some("mps"), Some(0), memory(4), "sm_percent", "1 to 100"),
            (Some("mps"), Some(101), memory(4), "sm_percent", "1 to 100"),
            (Some("both"), None, memory(4), "share", "exclusive"),
        ] {
            let bad = Share::parse(share, sm, &gpu).unwrap_err();

            assert_eq!(bad.field, field, "{bad}");
            assert!(bad.expected.contains(hint), "{bad}");
        }
    }

    #[test]
    fn a_share_survives_the_database() {
        for share in [Share::Exclusive, Share::parse(Some("mps"), Some(7), &memory(1)).unwrap()] {
            let text = serde_json::to_string(&share).unwrap();
            assert_eq!(serde_json::from_str::<Share>(&text).unwrap(), share, "{text}");
        }
        assert!("SIGusr1".parse::<CheckpointSignal>().is_ok());
        assert!("KILL".parse::<CheckpointSignal>().is_err());
    }
}
