//! The published geometry of GPUs that exist, as data: for dry runs, stand-ins and tests.
//!
//! A live GPU is never looked up here: its own driver reports its geometry.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Deserializer};

use super::geometry::{Geometry, MediaEngines, Profile, ProfileId};
use crate::units::Bytes;

const DATA: &str = include_str!("../../data/mig-geometry.json");

/// One GPU model of the catalogue.
#[derive(Clone, Debug)]
pub struct GpuModel {
    /// Short key, such as `a100-40gb`.
    pub key: String,
    /// Names that the driver gives to boards of this model.
    pub names: Vec<String>,
    /// PCI device ids, as `0x20B0`.
    pub pci_device_ids: Vec<String>,
    /// CUDA compute capability, as `8.0`.
    pub compute_capability: String,
    /// Memory of the whole GPU with MIG off, if a source states it.
    pub memory: Option<Bytes>,
    /// Streaming multiprocessors with MIG off, if a source states it.
    pub sms: Option<u16>,
    /// Whether switching MIG mode needs a reset of the GPU.
    pub mode_change_needs_reset: bool,
    /// Profiles as NVML enumerates them.
    pub profiles: Vec<CatalogProfile>,
}

/// One profile of a catalogue model, with NVML's enumeration numbers.
#[derive(Clone, Debug)]
pub struct CatalogProfile {
    /// The number that `nvmlDeviceGetGpuInstanceProfileInfo` takes.
    pub enumeration: u32,
    /// What the planner knows of the profile.
    pub profile: Profile,
    /// Compute-instance profiles of an instance of this profile.
    pub compute: Vec<ComputeProfile>,
}

/// One compute-instance profile of a GPU-instance profile.
#[derive(Clone, Debug, Deserialize)]
pub struct ComputeProfile {
    /// Name, such as `1c.2g.10gb`.
    pub name: String,
    /// The number that `nvmlGpuInstanceGetComputeInstanceProfileInfo` takes.
    #[serde(rename = "ci_profile_enum")]
    pub enumeration: u32,
    /// The id that creation takes (the ID column of `nvidia-smi mig -lcip`).
    #[serde(rename = "nvidia_smi_ci_id")]
    pub id: Option<u32>,
    /// Compute slices that it covers.
    pub compute_slices: u8,
    /// Streaming multiprocessors.
    pub sm: Option<u16>,
    /// How many fit into one GPU instance.
    pub max_instances: u8,
    /// Whether it is the one that covers the whole instance.
    #[serde(rename = "default")]
    pub whole: bool,
    /// First compute slices of the GPU instance on which it may start, ascending.
    #[serde(rename = "placements", deserialize_with = "starts")]
    pub starts: Vec<u8>,
}

impl GpuModel {
    /// Returns the geometry that a driver of this model would report.
    pub fn geometry(&self) -> Geometry {
        Geometry::new(self.profiles.iter().map(|p| p.profile.clone()).collect())
    }
}

/// Returns every model of the catalogue whose placements are known, by key.
pub fn models() -> &'static BTreeMap<String, GpuModel> {
    static MODELS: LazyLock<BTreeMap<String, GpuModel>> = LazyLock::new(|| {
        let file: RawFile =
            serde_json::from_str(DATA).expect("the catalogue is part of the build and tested");
        file.gpus.into_iter().filter_map(RawGpu::parse).map(|m| (m.key.clone(), m)).collect()
    });
    &MODELS
}

/// A word that names no model of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownGpuModel {
    /// Nothing is called that.
    #[error("no GPU model {given:?}; {}", suggested(near))]
    Unknown {
        /// What was requested.
        given: String,
        /// Keys that look like it; every key, if none does.
        near: Vec<String>,
    },
    /// The model is known, but where its instances may start isn't.
    #[error("no source states the placements of {key}: its layouts are unknown")]
    NoPlacements {
        /// The key of the profile in the table.
        key: String,
    },
}

fn suggested(near: &[String]) -> String {
    format!("did you mean one of {}?", near.join(", "))
}

/// Finds a model by its key, or by a name that the driver gives to its boards; case doesn't
/// matter.
///
/// # Errors
///
/// [`UnknownGpuModel`] names the keys that come near.
pub fn find(given: &str) -> Result<&'static GpuModel, UnknownGpuModel> {
    let name = given.trim().to_ascii_lowercase();
    let named = |m: &&GpuModel| m.names.iter().any(|known| known.to_ascii_lowercase() == name);
    if let Some(model) = models().get(&name).or_else(|| models().values().find(named)) {
        return Ok(model);
    }
    if let Some(key) = KEYS.iter().find(|key| **key == name) {
        return Err(UnknownGpuModel::NoPlacements { key: key.clone() });
    }
    let near: Vec<String> = models().keys().filter(|key| looks_like(key, &name)).cloned().collect();
    let near = if near.is_empty() { models().keys().cloned().collect() } else { near };
    Err(UnknownGpuModel::Unknown { given: given.to_owned(), near })
}

/// Every key of the catalogue, those without placements too.
static KEYS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let file: RawFile = serde_json::from_str(DATA).expect("parsed by `models` as well");
    file.gpus.into_iter().map(|gpu| gpu.key).collect()
});

/// Returns whether a key begins as `name` does, holds it, or differs from it in a third of its
/// letters at most.
fn looks_like(key: &str, name: &str) -> bool {
    let family = |text: &str| text.split('-').next().unwrap_or_default().to_owned();
    let same_family = !name.is_empty() && family(key) == family(name);
    same_family || (name.len() >= 3 && key.contains(name)) || distance(key, name) * 3 <= name.len()
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[derive(Deserialize)]
struct RawFile {
    gpus: Vec<RawGpu>,
}

#[derive(Deserialize)]
struct RawGpu {
    key: String,
    names: Vec<String>,
    #[serde(default)]
    pci_device_ids: Vec<String>,
    cc: Option<String>,
    memory_mib: Option<u64>,
    sm_total_mig_off: Option<u16>,
    #[serde(default)]
    mig_mode_change_needs_gpu_reset: Option<bool>,
    profiles: Vec<RawProfile>,
}

#[derive(Deserialize)]
struct RawProfile {
    name: String,
    gi_profile_enum: u32,
    profile_id: Option<u32>,
    slice_count: u8,
    memory_slices: Option<u8>,
    max_instances: Option<u8>,
    memory_mib: Option<u64>,
    sm: Option<u16>,
    copy_engines: Option<u32>,
    decoders: Option<u32>,
    encoders: Option<u32>,
    jpeg: Option<u32>,
    ofa: Option<u32>,
    placements: Option<Vec<RawPlacement>>,
    compute_profiles: Option<Vec<ComputeProfile>>,
}

#[derive(Deserialize)]
struct RawPlacement {
    start: u8,
}

fn starts<'de, D: Deserializer<'de>>(data: D) -> Result<Vec<u8>, D::Error> {
    let placements = Vec::<RawPlacement>::deserialize(data)?;
    Ok(placements.into_iter().map(|p| p.start).collect())
}

impl RawGpu {
    fn parse(mut self) -> Option<GpuModel> {
        self.forget_half_known_engines();
        let profiles: Vec<_> = self.profiles.into_iter().filter_map(RawProfile::parse).collect();
        (!profiles.is_empty()).then_some(GpuModel {
            key: self.key,
            names: self.names,
            pci_device_ids: self.pci_device_ids,
            compute_capability: self.cc.unwrap_or_default(),
            memory: self.memory_mib.map(Bytes::from_mib),
            sms: self.sm_total_mig_off,
            mode_change_needs_reset: self.mig_mode_change_needs_gpu_reset.unwrap_or(false),
            profiles,
        })
    }
}

impl RawGpu {
    /// Drops the figures of every engine that some profile does not state. The GPU's engines are inferred
    /// from its profiles, so an incomplete list would give a wrong budget.
    fn forget_half_known_engines(&mut self) {
        type Engine = fn(&mut RawProfile) -> &mut Option<u32>;
        let engines: [Engine; 4] =
            [|p| &mut p.decoders, |p| &mut p.encoders, |p| &mut p.jpeg, |p| &mut p.ofa];
        for engine in engines {
            if self.profiles.iter_mut().any(|p| engine(p).is_none()) {
                self.profiles.iter_mut().for_each(|p| *engine(p) = None);
            }
        }
    }
}

impl RawProfile {
    /// Returns `None` for a profile of which no source states id or placements.
    fn parse(self) -> Option<CatalogProfile> {
        Some(CatalogProfile {
            enumeration: self.gi_profile_enum,
            profile: Profile {
                id: ProfileId(self.profile_id?),
                name: self.name.parse().ok()?,
                compute_slices: self.slice_count,
                memory_slices: self.memory_slices?,
                max_instances: self.max_instances?,
                memory: self
                    .memory_mib
                    .map(Bytes::from_mib)
                    .or_else(|| nominal_memory(&self.name))?,
                sms: self.sm.unwrap_or(0),
                copy_engines: self.copy_engines.unwrap_or(0),
                media: MediaEngines {
                    decoders: self.decoders.unwrap_or(0),
                    encoders: self.encoders.unwrap_or(0),
                    jpeg: self.jpeg.unwrap_or(0),
                    ofa: self.ofa.unwrap_or(0),
                },
                starts: self.placements?.into_iter().map(|p| p.start).collect(),
            },
            compute: self.compute_profiles.unwrap_or_default(),
        })
    }
}

/// Returns the memory that a profile's name promises, in decimal gigabytes. Drivers give a
/// little more or less; used only where no source states the real figure.
fn nominal_memory(name: &str) -> Option<Bytes> {
    let digits = name.split_once("g.")?.1;
    let gigabytes: u64 = digits.get(..digits.find("gb")?)?.parse().ok()?;
    Some(Bytes::new(gigabytes * 1_000_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_found_by_key_and_by_the_drivers_name() {
        assert_eq!(find("A100-40GB").unwrap().key, "a100-40gb");
        assert_eq!(find("NVIDIA A30").unwrap().key, "a30-24gb");
    }

    #[test]
    fn a_slip_of_the_pen_is_answered_with_what_comes_near() {
        let near = |given: &str| match find(given).unwrap_err() {
            UnknownGpuModel::Unknown { near, .. } => near,
            UnknownGpuModel::NoPlacements { key } => panic!("{key} is known"),
        };

        assert_eq!(near("a100-40g"), ["a100-40gb", "a100-80gb"]);
        assert_eq!(near("a30"), ["a30-24gb"]);
        assert_eq!(near("h20-96bg"), ["h20-96gb"]);
        assert_eq!(near("nonsense").len(), models().len());
    }

    #[test]
    fn a_model_without_known_placements_differs_from_an_unknown_one() {
        let known = find("rtx-pro-4500-32gb").unwrap_err();

        assert_eq!(known, UnknownGpuModel::NoPlacements { key: "rtx-pro-4500-32gb".to_owned() });
    }
}
