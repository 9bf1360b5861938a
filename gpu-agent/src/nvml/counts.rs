//! How often the driver was queried, and with which results.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::client::NvmlFailed;
use super::messages::{NvmlReply, NvmlRequest};

/// Maximum number of counters: far more than there are requests and codes of the driver.
const COUNTERS_MAX: usize = 256;

/// Counters by what was queried and how it ended: `ok`, `no_answer`, or the driver's code.
#[derive(Clone, Debug, Default)]
pub struct RequestCounts(Arc<Mutex<BTreeMap<(&'static str, String), u64>>>);

impl RequestCounts {
    /// Counts one request.
    pub fn count(&self, request: &NvmlRequest, replied: &Result<NvmlReply, NvmlFailed>) {
        let result = match replied {
            Ok(NvmlReply::Failed(fault)) => format!("code {}", fault.code),
            Ok(_) => "ok".to_owned(),
            Err(NvmlFailed::Refused(fault)) => format!("code {}", fault.code),
            Err(NvmlFailed::NoAnswer) => "no_answer".to_owned(),
        };
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (request.as_str(), result);
        if counts.len() < COUNTERS_MAX || counts.contains_key(&key) {
            *counts.entry(key).or_default() += 1;
        }
    }

    /// Returns the counters.
    pub fn all(&self) -> BTreeMap<(&'static str, String), u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_agent_core::nvml::error::NvmlCallError;

    #[test]
    fn requests_are_counted_by_what_came_of_them() {
        let counts = RequestCounts::default();
        let fault = NvmlCallError { call: "nvmlDeviceGetUUID".to_owned(), code: 15 };

        counts.count(&NvmlRequest::List, &Ok(NvmlReply::Done));
        counts.count(&NvmlRequest::List, &Ok(NvmlReply::Done));
        counts.count(&NvmlRequest::List, &Ok(NvmlReply::Failed(fault)));
        counts.count(&NvmlRequest::List, &Err(NvmlFailed::NoAnswer));

        let all: Vec<_> = counts.all().into_iter().map(|((_, how), times)| (how, times)).collect();
        let expected = [("code 15", 1), ("no_answer", 1), ("ok", 2)];
        assert_eq!(all, expected.map(|(how, times)| (how.to_owned(), times)));
    }
}
