//! Which of NVIDIA's control programs the stand-in is like, where they differ.

/// A release of NVIDIA's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverRelease {
    /// Like 535.261.03: no `get_server_status`, no file with the daemon's process id.
    R535,
    /// Like 550.163.01; 555.58.02 prints the same.
    R550,
    /// Like 580.159.04: after a fault its log names every client of the device, and not which one caused it.
    R580,
}

impl DriverRelease {
    /// Reads the number of a driver's branch.
    pub const fn from_branch(branch: u64) -> Option<Self> {
        match branch {
            535 => Some(Self::R535),
            550 | 555 => Some(Self::R550),
            580 => Some(Self::R580),
            _ => None,
        }
    }

    /// Returns whether the daemon knows `get_server_status`.
    pub const fn reports_status(self) -> bool {
        matches!(self, Self::R550 | Self::R580)
    }

    /// Returns whether the daemon leaves its process id in a file.
    pub const fn writes_pid(self) -> bool {
        matches!(self, Self::R550 | Self::R580)
    }

    /// Returns whether a server's log names the client that caused a fault.
    pub const fn names_the_cause(self) -> bool {
        matches!(self, Self::R535 | Self::R550)
    }
}
