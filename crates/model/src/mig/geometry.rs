//! Profiles, slots and layouts of one GPU.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::BadId;
use crate::units::Bytes;

/// The driver's id of a GPU-instance profile (`nvmlGpuInstanceProfileInfo_t.id`, the ID column
/// of `nvidia-smi mig -lgip`). Not the enumeration index of NVML's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProfileId(pub u32);

/// A profile's name without the leading "MIG", such as `1g.5gb` or `1g.10gb+me`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ProfileName(String);

impl ProfileName {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ProfileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for ProfileName {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let name = text.strip_prefix("MIG ").unwrap_or(text);
        let known_shape = name.split_once("g.").is_some_and(|(slices, rest)| {
            !slices.is_empty()
                && slices.chars().all(|c| c.is_ascii_digit())
                && rest.starts_with(|c: char| c.is_ascii_digit())
                && rest.contains("gb")
        });
        if known_shape
            && name.len() <= 32
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-'))
        {
            Ok(Self(name.to_owned()))
        } else {
            Err(BadId {
                kind: "ProfileName",
                text: text.to_owned(),
                expected: "a MIG profile such as 1g.5gb",
            })
        }
    }
}

impl From<ProfileName> for String {
    fn from(name: ProfileName) -> Self {
        name.0
    }
}

impl TryFrom<String> for ProfileName {
    type Error = BadId;

    fn try_from(text: String) -> Result<Self, BadId> {
        text.parse()
    }
}

/// Fixed-function engines, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaEngines {
    /// Video decoders (NVDEC).
    pub decoders: u32,
    /// Video encoders (NVENC).
    pub encoders: u32,
    /// JPEG decoders.
    pub jpeg: u32,
    /// Optical-flow accelerators.
    pub ofa: u32,
}

impl MediaEngines {
    /// Returns the sum, engine by engine.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            decoders: self.decoders + other.decoders,
            encoders: self.encoders + other.encoders,
            jpeg: self.jpeg + other.jpeg,
            ofa: self.ofa + other.ofa,
        }
    }

    /// Returns whether no engine exceeds `budget`.
    pub const fn within(self, budget: Self) -> bool {
        self.decoders <= budget.decoders
            && self.encoders <= budget.encoders
            && self.jpeg <= budget.jpeg
            && self.ofa <= budget.ofa
    }
}

/// What an instance may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// The driver's id.
    pub id: ProfileId,
    /// The name people use.
    pub name: ProfileName,
    /// Compute slices (the digit before the `g`).
    pub compute_slices: u8,
    /// Memory slices that an instance occupies.
    pub memory_slices: u8,
    /// How many instances of this profile a GPU may hold.
    pub max_instances: u8,
    /// Memory that a job on the instance can use.
    pub memory: Bytes,
    /// Streaming multiprocessors.
    pub sms: u16,
    /// How many of the GPU's copy engines it has.
    pub copy_engines: u32,
    /// Media engines.
    pub media: MediaEngines,
    /// First memory slices on which an instance may start, ascending.
    pub starts: Vec<u8>,
}

impl Profile {
    /// Returns whether the profile is a variant with other engines (`+me`, `+gfx`, `-me` …).
    pub fn has_suffix(&self) -> bool {
        !self.name.as_str().ends_with("gb")
    }

    /// Returns the memory slices of an instance that starts on `start`, as a bit mask; `None`
    /// if it would cover none, or reach past the 64th.
    pub fn span(&self, start: u8) -> Option<u64> {
        let end = start.checked_add(self.memory_slices).filter(|end| *end <= 64)?;
        let below = |slice: u8| u64::MAX.checked_shr(64 - u32::from(slice)).unwrap_or(0);
        let span = below(end) & !below(start);
        (span != 0).then_some(span)
    }
}

/// One instance on one GPU, as a layout names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot {
    /// First memory slice.
    pub start: u8,
    /// The instance's profile.
    pub profile: ProfileId,
}

/// The set of instances on a GPU, in the order of their first memory slices.
pub type Layout = BTreeSet<Slot>;

/// Everything that a GPU's driver reports about partitioning it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Memory slices of the GPU: one more than the last that any placement covers.
    pub memory_slices: u8,
    /// Profiles, as the driver lists them.
    pub profiles: Vec<Profile>,
}

/// Why a set of instances cannot coexist on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IllegalLayout {
    /// The GPU has no such profile.
    #[error("this GPU has no profile with id {}", profile.0)]
    UnknownProfile {
        /// The id that was requested.
        profile: ProfileId,
    },
    /// The profile may not start there.
    #[error("a {name} can't start on memory slice {start}: it may start on {starts:?}")]
    NotAStart {
        /// The profile.
        name: ProfileName,
        /// The start that was requested.
        start: u8,
        /// The starts that exist.
        starts: Vec<u8>,
    },
    /// Two instances claim one memory slice.
    #[error("memory slice {slice} is claimed twice")]
    Overlap {
        /// The first slice that is claimed twice.
        slice: u8,
    },
    /// More instances of one profile than the GPU may hold.
    #[error("{count} instances of {name}: this GPU holds at most {max}")]
    TooMany {
        /// The profile.
        name: ProfileName,
        /// How many there are.
        count: u32,
        /// How many may be.
        max: u8,
    },
    /// The instances need more media engines than the GPU has.
    #[error("the instances need more media engines than the GPU has ({needed:?} of {budget:?})")]
    MediaEngines {
        /// Sum over the instances.
        needed: MediaEngines,
        /// The engines of the whole GPU.
        budget: MediaEngines,
    },
}

impl Geometry {
    /// Builds a geometry from the profiles that a driver listed. Placements past the 64th memory
    /// slice are left out, and profiles without any placement, since nothing can be made of
    /// them.
    pub fn new(mut profiles: Vec<Profile>) -> Self {
        for profile in &mut profiles {
            let starts = std::mem::take(&mut profile.starts);
            profile.starts = starts.into_iter().filter(|s| profile.span(*s).is_some()).collect();
        }
        profiles.retain(|p| !p.starts.is_empty());
        let memory_slices = profiles
            .iter()
            .flat_map(|p| p.starts.iter().map(|start| start + p.memory_slices))
            .max()
            .unwrap_or(0);
        Self { memory_slices, profiles }
    }

    /// Finds a profile by the driver's id.
    pub fn profile(&self, id: ProfileId) -> Option<&Profile> {
        self.profiles.iter().find(|p| p.id == id)
    }

    /// Finds a profile by name.
    pub fn by_name(&self, name: &ProfileName) -> Option<&Profile> {
        self.profiles.iter().find(|p| p.name == *name)
    }

    /// Returns the profile with the most memory, the one that takes the whole GPU.
    pub fn largest(&self) -> Option<&Profile> {
        self.profiles.iter().max_by_key(|p| (p.memory, p.compute_slices, !p.has_suffix()))
    }

    /// Returns the ids of the plain profiles: without a suffix, and of each number of compute
    /// slices the one with the fewest memory slices. These are the sizes of the papers.
    pub fn plain(&self) -> BTreeSet<ProfileId> {
        self.profiles
            .iter()
            .filter(|p| !p.has_suffix())
            .filter(|p| {
                self.profiles.iter().all(|other| {
                    other.has_suffix()
                        || other.compute_slices != p.compute_slices
                        || other.memory_slices >= p.memory_slices
                })
            })
            .map(|p| p.id)
            .collect()
    }

    /// Returns the media engines of the whole GPU: of each kind, the most that any one
    /// profile holds.
    ///
    /// Inferred, not documented; it reproduces nvml.h's rule for `ALL_ME` profiles, and binds
    /// only on A30 and RTX PRO GPUs.
    pub fn media_budget(&self) -> MediaEngines {
        self.profiles.iter().fold(MediaEngines::default(), |most, p| MediaEngines {
            decoders: most.decoders.max(p.media.decoders),
            encoders: most.encoders.max(p.media.encoders),
            jpeg: most.jpeg.max(p.media.jpeg),
            ofa: most.ofa.max(p.media.ofa),
        })
    }

    /// Returns the memory slices of a slot, as a bit mask.
    ///
    /// # Errors
    ///
    /// [`IllegalLayout::UnknownProfile`] or [`IllegalLayout::NotAStart`]: no driver would
    /// take the slot.
    pub fn mask(&self, slot: Slot) -> Result<u64, IllegalLayout> {
        let profile = self
            .profile(slot.profile)
            .ok_or(IllegalLayout::UnknownProfile { profile: slot.profile })?;
        if !profile.starts.contains(&slot.start) {
            return Err(IllegalLayout::NotAStart {
                name: profile.name.clone(),
                start: slot.start,
                starts: profile.starts.clone(),
            });
        }
        // Slices past the 64th don't exist, so such a placement is ignored.
        profile.span(slot.start).ok_or_else(|| IllegalLayout::NotAStart {
            name: profile.name.clone(),
            start: slot.start,
            starts: profile.starts.clone(),
        })
    }

    /// Returns whether two slots share a memory slice; slots outside the GPU share none.
    pub fn overlap(&self, a: Slot, b: Slot) -> bool {
        matches!((self.mask(a), self.mask(b)), (Ok(a), Ok(b)) if a & b != 0)
    }

    /// Checks that `slots` can coexist on one GPU.
    ///
    /// # Errors
    ///
    /// [`IllegalLayout`] names the first law that is broken.
    pub fn check<'s>(
        &self,
        slots: impl IntoIterator<Item = &'s Slot>,
    ) -> Result<(), IllegalLayout> {
        let mut taken = 0_u64;
        let mut media = MediaEngines::default();
        let mut counts = vec![0_u32; self.profiles.len()];
        for slot in slots {
            let mask = self.mask(*slot)?;
            if let Some(slice) = (0_u8..64).find(|bit| taken & mask & (1 << bit) != 0) {
                return Err(IllegalLayout::Overlap { slice });
            }
            taken |= mask;
            for (profile, count) in self.profiles.iter().zip(&mut counts) {
                if profile.id == slot.profile {
                    *count += 1;
                    media = media.plus(profile.media);
                }
            }
        }
        for (profile, count) in self.profiles.iter().zip(counts) {
            if count > u32::from(profile.max_instances) {
                return Err(IllegalLayout::TooMany {
                    name: profile.name.clone(),
                    count,
                    max: profile.max_instances,
                });
            }
        }
        let budget = self.media_budget();
        if media.within(budget) {
            Ok(())
        } else {
            Err(IllegalLayout::MediaEngines { needed: media, budget })
        }
    }
}
