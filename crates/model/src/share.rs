//! How a job takes its slice: alone, or as one of several sharers, under MPS or kernel by kernel.

use crate::number::clamped;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::BadId;
use crate::mig::compute::ComputeSlot;
use crate::spec::{BadField, GpuRequest};
use crate::units::Bytes;

/// Maximum number of attempts that share one slice: one MPS server takes 48 client contexts (since
/// Volta).
pub const SHARERS_MAX: u32 = 48;

/// A share of a slice's multiprocessors, in percent: 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub struct SmPercent(u8);

impl SmPercent {
    /// All of them.
    pub const WHOLE: Self = Self(100);
    /// The default share: two jobs fit onto a slice.
    ///
    /// Every sharing job has a cap: without it, a job that fills the multiprocessors slows its
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

/// The part of a slice that one sharing job may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MpsShare {
    /// Its multiprocessors (`CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`).
    pub sm: SmPercent,
    /// Its memory (`CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`).
    pub memory: Bytes,
}

impl MpsShare {
    /// Returns the memory of a slice on which such jobs fit together until all multiprocessors are
    /// in use: a share of half the multiprocessors goes with half the memory.
    pub fn roomy(self) -> Bytes {
        let roomy = u128::from(self.memory.get()) * 100 / u128::from(self.sm.0);
        Bytes::new(clamped(roomy))
    }
}

/// The part of a slice that a job under kernel-level sharing has: its kernels share the device with
/// the others', so that only memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KernelShare {
    /// Its memory, which is observed and not enforced: without MPS a program can exceed it.
    pub memory: Bytes,
}

/// What a job requests of kernel-level sharing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelTerms {
    /// Its memory: see [`KernelShare::memory`].
    pub memory: Bytes,
    /// Its percentage of the multiprocessors where the node runs MPS below the kernel queue; `None` for the node's
    /// default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm: Option<SmPercent>,
    /// Whether it never runs next to the other jobs of its slice: they run one after another.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
}

impl KernelTerms {
    /// Returns the terms of a job that requests only memory.
    pub const fn of_memory(memory: Bytes) -> Self {
        Self { memory, sm: None, exclusive: false }
    }
}

/// The part of a divided GPU instance that one job has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ComputeShare {
    /// Its compute instance, which no other job uses.
    pub slot: ComputeSlot,
    /// The memory that is charged to it. All jobs share the memory, and a program can exceed its
    /// part.
    pub memory: Bytes,
}

/// The part of a slice that one sharing job has; it also decides which jobs may join the slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SliceShare {
    /// Multiprocessors and memory, under NVIDIA's Multi-Process Service.
    Mps(MpsShare),
    /// Memory; the kernel queue orders kernels by priority.
    Kernel(KernelShare),
    /// A compute instance for itself; the memory is shared.
    Compute(ComputeShare),
}

impl SliceShare {
    /// Returns its memory.
    pub const fn memory(self) -> Bytes {
        match self {
            Self::Mps(share) => share.memory,
            Self::Kernel(share) => share.memory,
            Self::Compute(share) => share.memory,
        }
    }

    /// Returns the share with other memory. A compute instance has the memory of its GPU instance.
    #[must_use]
    pub const fn with_memory(self, memory: Bytes) -> Self {
        match self {
            Self::Mps(share) => Self::Mps(MpsShare { memory, ..share }),
            Self::Kernel(_) => Self::Kernel(KernelShare { memory }),
            Self::Compute(share) => Self::Compute(share),
        }
    }

    /// Returns its share of the multiprocessors, if they are divided.
    pub const fn sm(self) -> Option<SmPercent> {
        match self {
            Self::Mps(share) => Some(share.sm),
            Self::Kernel(_) | Self::Compute(_) => None,
        }
    }

    /// Returns its compute instance, if it has one of several.
    pub const fn compute(self) -> Option<ComputeSlot> {
        match self {
            Self::Compute(share) => Some(share.slot),
            Self::Mps(_) | Self::Kernel(_) => None,
        }
    }

    /// Returns whether both can be on one slice: all jobs of a slice share in the same way, and two never have one
    /// compute instance.
    pub const fn goes_with(self, other: Self) -> bool {
        match (self, other) {
            (Self::Mps(_), Self::Mps(_)) | (Self::Kernel(_), Self::Kernel(_)) => true,
            (Self::Compute(one), Self::Compute(other)) => !one.slot.overlaps(other.slot),
            (Self::Mps(_) | Self::Kernel(_) | Self::Compute(_), _) => false,
        }
    }

    /// Returns the percent of multiprocessors that it takes from others: none under kernel-level sharing.
    pub fn sm_percent(self) -> u32 {
        self.sm().map_or(0, |sm| u32::from(sm.get()))
    }

    /// Returns whether its kernels are ordered by the slice's kernel queue.
    pub const fn is_kernel(self) -> bool {
        matches!(self, Self::Kernel(_))
    }

    /// Returns the memory of a slice on which such jobs fit together: see [`MpsShare::roomy`].
    /// Under kernel-level sharing, kernels fill each other's gaps, for which two are enough.
    pub fn roomy(self) -> Bytes {
        match self {
            Self::Mps(share) => share.roomy(),
            Self::Kernel(share) => Bytes::new(share.memory.get().saturating_mul(2)),
            Self::Compute(share) => share.memory,
        }
    }
}

impl fmt::Display for SliceShare {
    /// Writes "4 GiB and 50 %", or "4 GiB, kernel by kernel,".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mps(share) => write!(f, "{} and {}", share.memory, share.sm),
            Self::Kernel(share) => write!(f, "{}, kernel by kernel,", share.memory),
            Self::Compute(share) => write!(f, "{} with {} of memory", share.slot, share.memory),
        }
    }
}

/// How a job shares its slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharingMode {
    /// No other job is on the slice.
    #[default]
    Exclusive,
    /// Other jobs of the same user may be on it, under NVIDIA's Multi-Process Service.
    Mps(MpsShare),
    /// Other jobs of the same user may be on it, and the kernel queue orders their kernels by priority.
    Kernel(KernelTerms),
    /// The controller decides at each placement: alone, or with one other job of the same user in one of the two
    /// ways.
    Auto,
}

impl SharingMode {
    /// Reads a request's `share` and `sm_percent`, together with its GPU request.
    ///
    /// # Errors
    ///
    /// [`BadField`] names the field that breaks a rule, and what would be right.
    pub fn parse(
        share: Option<&str>,
        sm_percent: Option<u8>,
        gpu: &GpuRequest,
    ) -> Result<Self, BadField> {
        match (share, sm_percent) {
            (None | Some("exclusive"), None) => Ok(Self::Exclusive),
            (None | Some("exclusive"), Some(sm)) => Err(BadField::new(
                "sm_percent",
                format!("{sm} % of a slice that the job has to itself"),
                "give share = mps with it, or leave it out",
            )),
            (Some("mps"), sm) => {
                let memory = sharers_memory(gpu)?;
                let sm = sm.map_or(Ok(SmPercent::DEFAULT), SmPercent::try_from)?;
                Ok(Self::Mps(MpsShare { sm, memory }))
            }
            (Some(word @ ("kernel" | "kernel:exclusive")), sm) => Ok(Self::Kernel(KernelTerms {
                memory: sharers_memory(gpu)?,
                sm: sm.map(SmPercent::try_from).transpose()?,
                exclusive: word == "kernel:exclusive",
            })),
            (Some("auto"), None) => sharers_memory(gpu).map(|_| Self::Auto),
            (Some("auto"), Some(sm)) => Err(BadField::new(
                "sm_percent",
                format!("{sm} % of a slice that the controller may share"),
                "leave it out: with share = auto the controller divides the multiprocessors",
            )),
            (Some(word), _) => Err(BadField::new(
                "share",
                format!("{word:?} is unknown"),
                "exclusive (the default), mps, kernel, kernel:exclusive or auto",
            )),
        }
    }

    /// Returns the job's share; `None` for a job that is alone, or whose share is chosen when it is
    /// placed.
    pub const fn part(self) -> Option<SliceShare> {
        match self {
            Self::Exclusive | Self::Auto => None,
            Self::Mps(share) => Some(SliceShare::Mps(share)),
            Self::Kernel(terms) => Some(SliceShare::Kernel(KernelShare { memory: terms.memory })),
        }
    }

    /// Returns what the job requests of kernel-level sharing, if it requests that.
    pub const fn kernel(self) -> Option<KernelTerms> {
        match self {
            Self::Kernel(terms) => Some(terms),
            Self::Exclusive | Self::Mps(_) | Self::Auto => None,
        }
    }

    /// Returns the value in the API.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Mps(_) => "mps",
            Self::Kernel(KernelTerms { exclusive: true, .. }) => "kernel:exclusive",
            Self::Kernel(_) => "kernel",
            Self::Auto => "auto",
        }
    }
}

/// Returns the memory that a sharing job requests; it may request nothing else.
fn sharers_memory(gpu: &GpuRequest) -> Result<Bytes, BadField> {
    match gpu {
        GpuRequest::Memory(memory) => Ok(*memory),
        GpuRequest::Unknown
        | GpuRequest::Profile(_)
        | GpuRequest::Whole
        | GpuRequest::Unpartitioned
        | GpuRequest::Compute(_) => Err(BadField::new(
            "share",
            format!("a job that shares a slice requests {gpu}"),
            "give gpu_memory_bytes: it is the job's limit, and decides with which jobs it fits",
        )),
    }
}

/// The signal on which a job writes a checkpoint and ends.
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

    /// Returns its name in shells.
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

    fn memory(gib: u64) -> GpuRequest {
        GpuRequest::Memory(Bytes::new(gib * GIB))
    }

    #[test]
    fn a_job_is_alone_unless_it_requests_sharing() {
        assert_eq!(SharingMode::parse(None, None, &memory(4)), Ok(SharingMode::Exclusive));
        assert_eq!(
            SharingMode::parse(Some("exclusive"), None, &GpuRequest::Whole),
            Ok(SharingMode::Exclusive)
        );
    }

    #[test]
    fn a_sharer_has_a_part_of_both() {
        let share = SharingMode::parse(Some("mps"), Some(25), &memory(4)).unwrap().part().unwrap();

        assert_eq!((share.sm_percent(), share.memory()), (25, Bytes::new(4 * GIB)));
        assert_eq!(share.roomy(), Bytes::new(16 * GIB));
        let half = SharingMode::parse(Some("mps"), None, &memory(4)).unwrap().part().unwrap();
        assert_eq!(half.sm(), Some(SmPercent::DEFAULT));
    }

    #[test]
    fn a_job_of_the_kernel_tier_takes_memory_and_no_multiprocessors() {
        let part = SharingMode::parse(Some("kernel"), None, &memory(4)).unwrap().part().unwrap();

        assert!(part.is_kernel());
        assert_eq!((part.sm_percent(), part.memory()), (0, Bytes::new(4 * GIB)));
        assert_eq!(part.roomy(), Bytes::new(8 * GIB));
    }

    #[test]
    fn a_job_whose_sharing_is_chosen_later_has_no_part_yet() {
        let auto = SharingMode::parse(Some("auto"), None, &memory(4)).unwrap();

        assert_eq!((auto, auto.part(), auto.word()), (SharingMode::Auto, None, "auto"));
    }

    #[test]
    fn invalid_shares_are_refused_with_what_is_expected() {
        for (share, sm, gpu, field, hint) in [
            (None, Some(50), memory(4), "sm_percent", "share = mps"),
            (Some("exclusive"), Some(50), memory(4), "sm_percent", "share = mps"),
            (Some("mps"), None, GpuRequest::Unknown, "share", "gpu_memory_bytes"),
            (Some("mps"), None, GpuRequest::Whole, "share", "gpu_memory_bytes"),
            (Some("kernel"), None, GpuRequest::Unknown, "share", "gpu_memory_bytes"),
            (Some("kernel"), Some(0), memory(4), "sm_percent", "1 to 100"),
            (Some("kernel:exclusive"), None, GpuRequest::Whole, "share", "gpu_memory_bytes"),
            (Some("kernel:alone"), None, memory(4), "share", "kernel:exclusive"),
            (Some("mps"), Some(0), memory(4), "sm_percent", "1 to 100"),
            (Some("mps"), Some(101), memory(4), "sm_percent", "1 to 100"),
            (Some("auto"), None, GpuRequest::Whole, "share", "gpu_memory_bytes"),
            (Some("auto"), Some(50), memory(4), "sm_percent", "leave it out"),
            (Some("both"), None, memory(4), "share", "exclusive"),
        ] {
            let bad = SharingMode::parse(share, sm, &gpu).unwrap_err();

            assert_eq!(bad.field, field, "{bad}");
            assert!(bad.expected.contains(hint), "{bad}");
        }
    }

    #[test]
    fn a_share_survives_the_database() {
        for share in [
            SharingMode::Exclusive,
            SharingMode::parse(Some("mps"), Some(7), &memory(1)).unwrap(),
            SharingMode::parse(Some("kernel"), None, &memory(1)).unwrap(),
            SharingMode::parse(Some("kernel:exclusive"), Some(30), &memory(1)).unwrap(),
            SharingMode::parse(Some("auto"), None, &memory(1)).unwrap(),
        ] {
            let text = serde_json::to_string(&share).unwrap();
            assert_eq!(serde_json::from_str::<SharingMode>(&text).unwrap(), share, "{text}");
        }
        assert!("SIGusr1".parse::<CheckpointSignal>().is_ok());
        assert!("KILL".parse::<CheckpointSignal>().is_err());
    }
}
