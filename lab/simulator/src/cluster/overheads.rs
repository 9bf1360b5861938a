//! What it costs to move jobs and to cut GPUs.

use serde::{Deserialize, Serialize};
use tessera_placement::migration_cooldown::MIGRATION_COOLDOWN;
use tessera_placement::preemption::PreemptionRules;

use super::job::SimulatedJob;

/// The cost of stopping a job and continuing it elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MigrationCost {
    /// The measured time to restore its own checkpoint.
    #[default]
    Recover,
    /// The same for every job.
    FixedMs(u64),
}

/// The cost of cutting a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RepartitionTime {
    /// The co-execution study's times ([`tessera_model::mig::cost`]).
    #[default]
    Measured,
    /// Nothing, for bounds and for tables that leave it out.
    Free,
}

/// How the speeds of jobs under kernel-level sharing are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum KernelSharingModel {
    /// By priority, as the model has it ([`tessera_placement::kernel_sharing`]).
    #[default]
    Modelled,
    /// By priority; of two the kernel queue itself is run in virtual time
    /// ([`crate::kernel_device::rates`]). More than two follow the model.
    Queue,
    /// Without a queue, as drivers share by default: in time slices without priorities.
    Slices,
}

/// Which jobs share slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SimulatedSharing {
    /// Those that the policy pairs.
    #[default]
    Policy,
    /// None.
    Exclusive,
    /// Those for which the rules of `--share auto` predict a certain benefit, as in a controller to
    /// which all jobs are submitted that way.
    Auto,
}

/// How jobs that share an instance under MPS slow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ContentionTruth {
    /// As ParvaGPU measured processes on an A100-80GB; on an A30 as the co-execution study's model has it. Policies
    /// predict by another model.
    #[default]
    Measured,
    /// As the study's model has it, which was fitted to its pairs on an A30.
    Study,
    /// As policies predict it: for rules that assume that predictions are true.
    Predicted,
}

/// What policies know about run times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunTimeKnowledge {
    /// The true time of each job on each slice, with the error of predictions.
    #[default]
    Known,
    /// What a new controller learns during the run: the times of earlier jobs of the same user
    /// with the same name, by the estimator of the controller.
    Learned,
    /// Nothing.
    Unknown,
}

/// The overheads of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Overheads {
    /// Moving a job.
    #[serde(default)]
    pub moving: MigrationCost,
    /// Cutting a GPU.
    #[serde(default)]
    pub cutting: RepartitionTime,
    /// Start-up of every job, in milliseconds; each job's own if missing.
    #[serde(default)]
    pub start_up_ms: Option<u64>,
    /// Error of predicted times, in thousandths: each prediction is off by a factor from 1 less
    /// this to 1 plus this, by the seed, the job and the size.
    #[serde(default)]
    pub prediction_error: u16,
    /// What policies know about run times.
    #[serde(default)]
    pub times: RunTimeKnowledge,
    /// How kernel-level sharing is simulated.
    #[serde(rename = "turns", default)]
    pub kernel_sharing: KernelSharingModel,
    /// Which jobs share slices.
    #[serde(default)]
    pub sharing: SimulatedSharing,
    /// Which online jobs send offline jobs back to the queue; none by default.
    #[serde(default = "no_preemption")]
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub preemption: PreemptionRules,
    /// How jobs slow each other under MPS.
    #[serde(default)]
    pub contention: ContentionTruth,
    /// How long a job runs at least before a policy of controllers may migrate it (again), in milliseconds; the
    /// default of controllers if missing. The papers' policies have no such rule.
    #[serde(default = "migration_cooldown_ms")]
    pub migration_cooldown_ms: u64,
}

const fn migration_cooldown_ms() -> u64 {
    MIGRATION_COOLDOWN.get()
}

const fn no_preemption() -> PreemptionRules {
    PreemptionRules::OFF
}

impl Default for Overheads {
    fn default() -> Self {
        Self {
            moving: MigrationCost::Recover,
            cutting: RepartitionTime::Measured,
            start_up_ms: None,
            prediction_error: 0,
            times: RunTimeKnowledge::Known,
            kernel_sharing: KernelSharingModel::Modelled,
            sharing: SimulatedSharing::Policy,
            preemption: PreemptionRules::OFF,
            contention: ContentionTruth::Measured,
            migration_cooldown_ms: migration_cooldown_ms(),
        }
    }
}

/// Largest error of predictions, in thousandths: a job is predicted to take nothing, or twice its time.
const ERROR_MAX: u16 = 1_000;

/// Why a text does not name overheads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} does not name overheads: write `recover` (each job's own), a time such as `30s` or \
     `500ms`, or a JSON file like {{\"moving\": {{\"fixed_ms\": 30000}}, \"cutting\": \
     \"measured\"}}"
)]
pub struct OverheadsError {
    /// What was read.
    pub text: String,
}

/// Why a file has no overheads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverheadsFileError {
    /// It is not JSON with these keys.
    #[error(
        "{problem}; write such as {{\"moving\": {{\"fixed_ms\": 30000}}, \"cutting\": \"measured\", \
         \"start_up_ms\": 10000, \"prediction_error\": 150, \"turns\": \"modelled\"}}, each of which may be \
         left out"
    )]
    NoOverheads {
        /// What is wrong.
        problem: String,
    },
    /// Predictions can't be off by more than their own size.
    #[error("prediction_error is {found}: thousandths of the time, at most {ERROR_MAX}")]
    PredictionError {
        /// The value.
        found: u16,
    },
}

impl Overheads {
    /// Reads `recover`, or the time that every move takes.
    ///
    /// # Errors
    ///
    /// [`OverheadsError`] states what would be right.
    pub fn parse(text: &str) -> Result<Self, OverheadsError> {
        let bad = || OverheadsError { text: text.to_owned() };
        let moving = match text {
            "recover" => MigrationCost::Recover,
            _ => MigrationCost::FixedMs(duration_ms(text).ok_or_else(bad)?),
        };
        Ok(Self { moving, ..Self::default() })
    }

    /// Reads a file's JSON.
    ///
    /// # Errors
    ///
    /// [`OverheadsFileError`] states what is wrong and what would be right.
    pub fn from_json(text: &str) -> Result<Self, OverheadsFileError> {
        let known: Self = serde_json::from_str(text).map_err(|bad| {
            let problem = bad.to_string().replace("expected u64", "expected a whole number");
            OverheadsFileError::NoOverheads { problem }
        })?;
        match known.prediction_error {
            0..=ERROR_MAX => Ok(known),
            found => Err(OverheadsFileError::PredictionError { found }),
        }
    }

    /// Returns the cost of stopping the job and continuing it elsewhere; `None` if that is
    /// impossible.
    pub fn move_ms(&self, job: &SimulatedJob) -> Option<u64> {
        match self.moving {
            MigrationCost::Recover => job.restore_ms,
            MigrationCost::FixedMs(ms) => job.restore_ms.map(|_| ms),
        }
    }

    /// Returns how long the job takes until it works.
    pub fn start_ms(&self, job: &SimulatedJob) -> u64 {
        self.start_up_ms.unwrap_or(job.start_up_ms)
    }
}

/// Reads `30s`, `500ms`, `2m`.
pub fn duration_ms(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit = match &text[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overheads_are_recover_or_a_time() {
        assert_eq!(Overheads::parse("30s").unwrap().moving, MigrationCost::FixedMs(30_000));
        assert_eq!(Overheads::parse("recover").unwrap().moving, MigrationCost::Recover);
        let refused = Overheads::parse("quick").unwrap_err().to_string();
        assert!(refused.contains("30s"), "{refused}");
    }

    #[test]
    fn a_file_of_overheads_names_what_differs_and_a_bad_one_is_refused_with_the_right_form() {
        let known = Overheads::from_json("{\"prediction_error\": 150}").unwrap();
        assert_eq!(known, Overheads { prediction_error: 150, ..Overheads::default() });
        for bad in ["", "{\"moving\": {\"fixd_ms\": 3}}", "{\"moving\": {\"fixed_ms\": -1}}"] {
            let refused = Overheads::from_json(bad).unwrap_err().to_string();
            assert!(refused.contains("{\"fixed_ms\": 30000}"), "{bad}: {refused}");
        }
        let refused = Overheads::from_json("{\"prediction_error\": 1001}").unwrap_err().to_string();
        assert!(refused.contains("at most 1000"), "{refused}");
    }
}
