//! What a GPU must not forget: the newest plan that it obeyed, its current step, the instances that
//! the node owns, and its record of faults.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tessera_model::mig::PlanStep;
use tessera_model::{GpuId, PlanId};

use crate::disk::twin::Twin;
use crate::disk::{self, DiskError};
use tessera_agent_core::health::FaultHistory;
use tessera_agent_core::nvml::facts::GpuFacts;
use tessera_agent_core::ownership::InstanceOwnership;

/// What an agent keeps about a GPU over its restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuFile {
    /// The newest layout plan's number.
    pub layout_gen: u64,
    /// The plan of that number.
    pub plan: Option<PlanId>,
    /// The step that was about to be made; `None` once the plan has ended. For people: after a
    /// crash the driver reports the actual state.
    pub intent: Option<PlanStep>,
    /// What the node owns.
    #[serde(default)]
    pub ownership: InstanceOwnership,
    /// Its record of faults.
    #[serde(default)]
    pub health: FaultHistory,
}

impl GpuFile {
    /// Reads the file of a GPU; that of a new one if there is none.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    pub fn load(data: &Path, gpu: &GpuId) -> Result<Self, DiskError> {
        let path = path(data, gpu);
        match Twin::read(&path).map_err(DiskError::at(&path))? {
            Some(text) => serde_json::from_slice(&text)
                .map_err(|cause| DiskError::Damaged { path: path.display().to_string(), cause }),
            // As agents of earlier versions wrote it.
            None => disk::load(&path.with_extension("json")).map(Option::unwrap_or_default),
        }
    }

    /// Checks a plan by its number: older ones are refused; the same one may be repeated, since
    /// completed steps are skipped.
    ///
    /// # Errors
    ///
    /// A newer plan was obeyed before.
    pub fn judge(&self, layout_gen: u64, plan: PlanId) -> Result<(), SupersededPlan> {
        if layout_gen > self.layout_gen
            || (layout_gen == self.layout_gen && self.plan == Some(plan))
        {
            return Ok(());
        }
        Err(SupersededPlan { layout_gen, obeyed: self.layout_gen })
    }
}

/// A layout plan that is older than one that the GPU obeyed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plan number {layout_gen}: number {obeyed} was obeyed before")]
pub struct SupersededPlan {
    /// The number of the plan.
    pub layout_gen: u64,
    /// The number of the plan that was obeyed.
    pub obeyed: u64,
}

/// The writer of one GPU's file.
#[derive(Debug)]
pub struct GpuFileWriter {
    path: PathBuf,
    /// Opened with the first write.
    twin: Option<Twin>,
}

impl GpuFileWriter {
    /// Keeps the file of a GPU in a data folder.
    pub fn new(data: &Path, gpu: &GpuId) -> Self {
        Self { path: path(data, gpu), twin: None }
    }

    /// Puts the file on disk; it is there when this returns.
    ///
    /// # Errors
    ///
    /// [`DiskError`]: what should have been remembered must not be acted on.
    pub fn save(&mut self, file: &GpuFile) -> Result<(), DiskError> {
        let put = |twin: &mut Option<Twin>| {
            let text = serde_json::to_vec(file).map_err(io::Error::other)?;
            let twin = match twin {
                Some(twin) => twin,
                None => twin.insert(Twin::open(&self.path, &text)?),
            };
            twin.put(&text)
        };
        put(&mut self.twin).map_err(DiskError::at(&self.path))
    }
}

/// Suffix of the files with the last known state of GPUs.
const SEEN: &str = ".seen.json";

/// Stores the last known state of a GPU: if its driver is gone at the next start, the node still
/// knows what it has. Nothing else depends on it.
pub fn keep_seen(data: &Path, facts: &GpuFacts) -> std::io::Result<()> {
    let path = seen_path(data, &facts.gpu);
    let temporary = path.with_extension("tmp");
    std::fs::write(&temporary, serde_json::to_vec(facts)?)?;
    std::fs::rename(temporary, path)
}

/// Returns the last known state of every GPU of the node.
pub fn all_seen(data: &Path) -> Vec<GpuFacts> {
    let Ok(entries) = std::fs::read_dir(data.join("gpus")) else { return Vec::new() };
    let named = entries.flatten().map(|entry| entry.path());
    named
        .filter(|path| path.to_str().is_some_and(|path| path.ends_with(SEEN)))
        .filter_map(|path| serde_json::from_slice(&std::fs::read(path).ok()?).ok())
        .collect()
}

/// Removes the last known state of a GPU.
pub fn forget_seen(data: &Path, gpu: &GpuId) {
    // Fails only if there is none.
    let _ = std::fs::remove_file(seen_path(data, gpu));
}

fn seen_path(data: &Path, gpu: &GpuId) -> PathBuf {
    data.join("gpus").join(format!("{}{SEEN}", file_name(gpu)))
}

fn path(data: &Path, gpu: &GpuId) -> PathBuf {
    data.join("gpus").join(format!("{}.state", file_name(gpu)))
}

/// A GPU's UUID holds letters, digits, dashes and slashes only.
fn file_name(gpu: &GpuId) -> String {
    gpu.as_str().replace('/', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(number: u128) -> PlanId {
        PlanId::from_uuid(uuid::Uuid::from_u128(number))
    }

    #[test]
    fn what_was_saved_reads_back_and_what_an_earlier_version_wrote_counts_until_then() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("gpus")).unwrap();
        let gpu: GpuId = "GPU-1".parse().unwrap();
        assert_eq!(GpuFile::load(folder.path(), &gpu).unwrap(), GpuFile::default());
        let older = GpuFile { layout_gen: 4, ..GpuFile::default() };
        disk::save(&folder.path().join("gpus/GPU-1.json"), &older).unwrap();
        assert_eq!(GpuFile::load(folder.path(), &gpu).unwrap(), older);

        for layout_gen in 5..8 {
            let file = GpuFile { layout_gen, plan: Some(plan(1)), ..GpuFile::default() };
            GpuFileWriter::new(folder.path(), &gpu).save(&file).unwrap();
            assert_eq!(GpuFile::load(folder.path(), &gpu).unwrap(), file);
        }
    }

    #[test]
    fn an_older_plan_is_refused_and_the_same_one_may_be_repeated() {
        let file = GpuFile { layout_gen: 5, plan: Some(plan(1)), ..GpuFile::default() };

        assert!(file.judge(6, plan(2)).is_ok());
        assert!(file.judge(5, plan(1)).is_ok());
        assert!(file.judge(5, plan(2)).is_err());
        assert!(file.judge(4, plan(1)).is_err());
    }
}
