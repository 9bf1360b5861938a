//! What a GPU must not forget: the newest plan that it obeyed, and the step it was at.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tessera_model::mig::Step;
use tessera_model::{GpuId, PlanId};

use crate::disk::{self, DiskError};

/// A GPU's file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuFile {
    /// The newest layout plan's number.
    pub layout_gen: u64,
    /// The plan of that number.
    pub plan: Option<PlanId>,
    /// The step that was about to be made; `None` once the plan is over. For people: after a
    /// crash the driver is asked what is true.
    pub intent: Option<Step>,
}

impl GpuFile {
    /// Reads the file of a GPU; a new one's if there is none.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    pub fn load(data: &Path, gpu: &GpuId) -> Result<Self, DiskError> {
        disk::load(&path(data, gpu)).map(Option::unwrap_or_default)
    }

    /// Puts the file on disk; it is there when this returns.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    pub fn save(&self, data: &Path, gpu: &GpuId) -> Result<(), DiskError> {
        disk::save(&path(data, gpu), self)
    }

    /// Judges a plan by its number: older ones are refused; the same one may be repeated, since
    /// its steps skip what is done.
    ///
    /// # Errors
    ///
    /// Why it is refused, for people.
    pub fn judge(&self, layout_gen: u64, plan: PlanId) -> Result<(), String> {
        if layout_gen > self.layout_gen
            || (layout_gen == self.layout_gen && self.plan == Some(plan))
        {
            return Ok(());
        }
        Err(format!("plan number {layout_gen}: number {} was obeyed before", self.layout_gen))
    }
}

fn path(data: &Path, gpu: &GpuId) -> PathBuf {
    // A GPU's UUID holds letters, digits, dashes and slashes only.
    data.join("gpus").join(format!("{}.json", gpu.as_str().replace('/', "_")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(number: u128) -> PlanId {
        PlanId::from_uuid(uuid::Uuid::from_u128(number))
    }

    #[test]
    fn an_older_plan_is_refused_and_the_same_one_may_be_repeated() {
        let file = GpuFile { layout_gen: 5, plan: Some(plan(1)), intent: None };

        assert!(file.judge(6, plan(2)).is_ok());
        assert!(file.judge(5, plan(1)).is_ok());
        assert!(file.judge(5, plan(2)).is_err());
        assert!(file.judge(4, plan(1)).is_err());
    }
}
