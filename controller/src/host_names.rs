//! The names by which programs and browsers may call this controller.

/// The names by which this controller may be called, without ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNames(Vec<String>);

impl HostNames {
    /// The names that every controller has, which only programs on its machine can call it by.
    const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

    /// Returns the local names and these.
    pub fn with(others: impl IntoIterator<Item = String>) -> Self {
        let mut names: Vec<String> = Self::LOCAL.map(str::to_owned).into();
        names.extend(others.into_iter().map(|name| name.to_ascii_lowercase()));
        names.dedup();
        Self(names)
    }

    /// Returns the names for people.
    pub(crate) fn listed(&self) -> String {
        self.0.join(", ")
    }

    /// Returns whether a host with or without a port is this controller.
    pub(crate) fn has(&self, authority: &str) -> bool {
        let name = match authority.rsplit_once(':') {
            Some((name, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
                name
            }
            _ => authority,
        };
        self.0.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}
