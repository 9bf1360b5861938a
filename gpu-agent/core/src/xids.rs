//! The driver's numbered errors (XIDs), and the action that each requires.
//!
//! # Source
//!
//! NVIDIA's catalogue of XIDs, docs.nvidia.com/deploy/xid-errors, by its resolution buckets.

use tessera_frames::cluster::FaultAction;

use FaultAction::{Record, ResetGpu, RestartApp, RestartNode};

/// Number, required action, and description.
const CATALOGUE: [(u32, FaultAction, &str); 31] = [
    (13, RestartApp, "graphics engine exception"),
    (31, RestartApp, "memory page fault"),
    (32, RestartApp, "invalid or corrupted push buffer stream"),
    (39, RestartApp, "copy engine exception"),
    (40, RestartApp, "copy engine exception"),
    (41, RestartApp, "copy engine exception"),
    (43, Record, "a program's channel was stopped"),
    (44, Record, "graphics engine fault during context switch"),
    (46, ResetGpu, "the GPU stopped processing"),
    (62, ResetGpu, "internal micro-controller halt"),
    (63, Record, "a memory page or row was retired"),
    (64, ResetGpu, "retiring a memory page or row failed"),
    (66, Record, "illegal access by the driver"),
    (67, Record, "illegal access by the driver"),
    (68, RestartApp, "video processor exception"),
    (69, RestartApp, "graphics engine class error"),
    (79, RestartNode, "the GPU has fallen off the bus"),
    (92, Record, "many correctable memory errors"),
    (94, RestartApp, "contained memory error"),
    (95, ResetGpu, "uncontained memory error"),
    (109, ResetGpu, "context switch timeout"),
    (110, ResetGpu, "security fault"),
    (119, ResetGpu, "the GPU's system processor doesn't answer"),
    (120, ResetGpu, "the GPU's system processor failed"),
    (136, ResetGpu, "link training failed"),
    (140, ResetGpu, "unrecovered memory error"),
    (143, ResetGpu, "initialising the GPU failed"),
    (155, ResetGpu, "an NVLink went down"),
    (156, ResetGpu, "resource retirement"),
    (158, ResetGpu, "fatal timeout"),
    (48, Record, "double-bit memory error; another error shows whether it was contained"),
];

/// Returns the catalogue's description of an error, if it is listed.
pub fn look_up(xid: u32) -> Option<(FaultAction, &'static str)> {
    CATALOGUE.iter().find(|row| row.0 == xid).map(|row| (row.1, row.2))
}

/// Describes an error for messages.
pub fn describe(xid: u32) -> String {
    match look_up(xid) {
        Some((_, message)) => format!("XID {xid} ({message})"),
        None => format!("XID {xid} (not in the catalogue)"),
    }
}

/// Decides which action an error requires: the driver's own advice has precedence, then the
/// catalogue; an unknown error is only recorded.
pub fn action(xid: u32, recovery: Option<u32>) -> FaultAction {
    advised(recovery).unwrap_or_else(|| look_up(xid).map_or(Record, |(action, _)| action))
}

/// Reads the driver's recovery action (field 230): none, reset, reboot, drain peer-to-peer
/// traffic, drain and reset. "None" is ignored: an error may be reported before its advice is set.
pub const fn advised(recovery: Option<u32>) -> Option<FaultAction> {
    match recovery {
        Some(1) => Some(ResetGpu),
        Some(2) => Some(RestartNode),
        Some(3 | 4) => Some(FaultAction::Drain),
        Some(_) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_the_action_of_its_bucket() {
        for (xids, expected) in [
            (&[13, 31, 32, 39, 40, 41, 68, 69, 94][..], RestartApp),
            (&[46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158], ResetGpu),
            (&[79], RestartNode),
            (&[43, 44, 63, 66, 67, 92], Record),
            (&[1, 48, 999], Record),
        ] {
            for xid in xids {
                assert_eq!(action(*xid, None), expected, "{xid}");
                assert_eq!(action(*xid, Some(0)), expected, "no advice: {xid}");
            }
        }
    }

    #[test]
    fn the_drivers_advice_comes_first() {
        assert_eq!(action(79, Some(1)), ResetGpu);
        assert_eq!(action(31, Some(2)), RestartNode);
        assert_eq!(action(999, Some(4)), FaultAction::Drain);
    }
}
