//! Faults of this process, from `TESSERA_SIM_CUDA_FAULTS`.

use std::sync::atomic::{AtomicU32, Ordering};

use tessera_stand_in::faults::{FaultAction, FaultError, FaultRule};

use crate::table::SYMBOLS;

/// The faults, with how many calls each has met.
#[derive(Default)]
pub struct CallFaults(Vec<(FaultRule, AtomicU32)>);

/// A fault list that can't be used, with what would be right.
#[derive(Debug, thiserror::Error)]
pub enum CallFaultsError {
    #[error("TESSERA_SIM_CUDA_FAULTS: {0}")]
    Rule(#[from] FaultError),
    #[error(
        "TESSERA_SIM_CUDA_FAULTS: `{line}`: use call, nth and times with code, hang, delay_ms or crash"
    )]
    NotOfCuda { line: String },
}

impl CallFaults {
    /// Reads a list in the grammar of [`tessera_stand_in::faults`]: calls by their exported names,
    /// conditions `nth` and `times`, effects `code`, `hang`, `delay_ms` and `crash`.
    ///
    /// # Errors
    ///
    /// [`CallFaultsError`].
    pub fn parse(text: &str) -> Result<Self, CallFaultsError> {
        let names: Vec<_> = SYMBOLS.iter().map(|symbol| symbol.symbol).collect();
        let rules = FaultRule::parse_list(text, &names)?;
        for rule in &rules {
            let ours = matches!(
                rule.action,
                FaultAction::Fail(_)
                    | FaultAction::Hang
                    | FaultAction::Delay(_)
                    | FaultAction::Crash
            );
            if !ours || rule.gpu.is_some() {
                return Err(CallFaultsError::NotOfCuda { line: rule.line.clone() });
            }
        }
        Ok(Self(rules.into_iter().map(|rule| (rule, AtomicU32::new(0))).collect()))
    }

    /// Returns the faults that affect this call.
    pub fn strike(&self, name: &str) -> Vec<FaultAction> {
        let concerned =
            self.0.iter().filter(|(rule, _)| rule.call.as_deref().is_none_or(|call| call == name));
        concerned
            .filter(|(rule, count)| {
                let call = count.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                rule.hits.is_none_or(|hits| call >= hits.first && call - hits.first < hits.times)
            })
            .map(|(rule, _)| rule.action)
            .collect()
    }
}
