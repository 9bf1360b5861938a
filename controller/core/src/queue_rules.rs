//! Users' rules for waiting jobs: permitted nodes and models, and a time before which they may not
//! start. They also limit how many tasks of an array run at a time, and name the jobs that a job
//! waits for.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tessera_model::Millis;
use tessera_model::batch::ArrayLimit;
use tessera_model::dependency::Dependency;
use tessera_model::place::PlaceFilter;
use tessera_model::spec::JobSpec;

/// The rules of one submission; they are stored with its facts for placement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueRules {
    /// Where it may run.
    #[serde(skip_serializing_if = "PlaceFilter::is_open")]
    pub place: PlaceFilter,
    /// The earliest start, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begin: Option<Millis>,
    /// How many tasks of its array may run at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array_limit: Option<ArrayLimit>,
    /// The jobs that it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dependency: Option<Dependency>,
}

impl QueueRules {
    /// Returns the rules of a specification.
    pub fn of(spec: &JobSpec) -> Self {
        let JobSpec { place, begin, array, dependency, .. } = spec;
        Self {
            place: place.clone(),
            begin: *begin,
            array_limit: array.limit,
            dependency: dependency.clone(),
        }
    }

    /// Returns whether a job may have to wait for a time, for another task of its array, or for
    /// other jobs.
    pub const fn has_gate(&self) -> bool {
        self.begin.is_some() || self.array_limit.is_some() || self.dependency.is_some()
    }

    /// Returns whether they restrict nothing.
    pub fn is_open(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns the job's restriction to nodes or models, if it has one.
pub fn place_of(spec: &JobSpec) -> Option<Arc<PlaceFilter>> {
    (!spec.place.is_open()).then(|| Arc::new(spec.place.clone()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn rules_that_restrict_nothing_are_not_written() {
        let spec = crate::predictions::TaskFacts::default();

        assert!(spec.rules.is_open());
        assert!(!serde_json::to_string(&spec).unwrap().contains("rules"));
    }
}
