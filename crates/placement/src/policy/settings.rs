//! The settings of policies, written to text and read again.

use serde::Serialize;
use serde_json::{Map, Value};

use super::{NAMES, Policy, PolicyOptions, Tessera, on_terms};

/// Why no policy can be made of a name and settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSettings {
    /// No controller runs a policy of this name.
    #[error("no policy is called {name:?}: choose one of {}", NAMES.join(", "))]
    UnknownPolicy {
        /// The name that no policy has.
        name: String,
    },
    /// The policy has no such settings.
    #[error("{policy} has no such settings: {what}")]
    Refused {
        /// Name of the policy that doesn't know the setting.
        policy: String,
        /// What is wrong, and what is expected.
        what: String,
    },
}

/// Makes the policy of a name with its settings, as [`Policy::settings`] returns them; settings
/// that aren't named keep their defaults.
///
/// # Errors
///
/// [`BadSettings`] states which name is wrong, and which names exist.
pub fn with_settings(name: &str, settings: &Value) -> Result<Box<dyn Policy>, BadSettings> {
    let refused = |what: String| BadSettings::Refused { policy: name.to_owned(), what };
    let known = on_terms(name, PolicyOptions::DEFAULT)
        .ok_or_else(|| BadSettings::UnknownPolicy { name: name.to_owned() })?;
    match (name, settings) {
        (_, Value::Null) => Ok(known),
        ("tessera", settings) => {
            let mut all = known.settings();
            if let (Some(all), Some(set)) = (all.as_object_mut(), settings.as_object()) {
                all.extend(set.clone());
            }
            let set: Tessera =
                serde_json::from_value(all).map_err(|bad| refused(bad.to_string()))?;
            Ok(Box::new(set))
        }
        (_, Value::Object(none)) if none.is_empty() => Ok(known),
        _ => Err(refused("nothing can be set of it".to_owned())),
    }
}

/// Returns whether a policy of the simulator has settings; the others follow their papers exactly.
pub fn is_settable(policy: &dyn Policy) -> bool {
    policy.name() == "tessera"
}

/// Makes `tessera` as the simulator runs it, with other settings; settings that aren't named keep
/// their defaults.
///
/// # Errors
///
/// [`BadSettings::Refused`] states which name is wrong, and which names exist.
pub fn simulated_with(set: &Map<String, Value>) -> Result<Tessera, BadSettings> {
    let mut all = to_json(&Tessera::default());
    if let Some(all) = all.as_object_mut() {
        all.extend(set.clone());
    }
    let refused = |bad: serde_json::Error| BadSettings::Refused {
        policy: "tessera".to_owned(),
        what: bad.to_string(),
    };
    serde_json::from_value(all).map_err(refused)
}

/// Returns settings by name.
pub(super) fn to_json(settings: &impl Serialize) -> Value {
    serde_json::to_value(settings).unwrap_or_default()
}
