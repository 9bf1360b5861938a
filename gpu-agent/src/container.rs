//! Attempts in containers: what the agent does for them. It finds the runtimes, and describes each attempt's slice to
//! them by a CDI specification, which exists as long as the attempt.

pub mod wrapper;

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tessera_agent_core::container::{CDI_KIND, NodeRuntimes, describe_slice};
use tessera_model::AttemptId;
use tessera_model::mig::Slot;

use crate::config::AgentConfig;
use crate::devices;
use crate::messages::gpu::GpuNumbers;
use crate::shepherd::files;
use crate::sys::holders::DeviceFiles;

/// First argument with which the shepherd's program starts a process of a step in a container.
pub const STEP_COMMAND: &str = "container-step";
/// The variable that names that program, for steps.
pub const RUNNER_VARIABLE: &str = "TESSERA_CONTAINER_RUNNER";
/// Where the driver's libraries are on usual systems.
const LIBRARY_FOLDERS: [&str; 4] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
/// How the names of the driver's libraries for computing begin.
const LIBRARY_NAMES: [&str; 4] =
    ["libcuda.so.", "libcudadebugger.so.", "libnvidia-", "libnvcuvid.so."];
/// Parts of names of the driver's libraries for drawing, which need more than themselves.
const GRAPHICS: [&str; 5] = ["-egl", "-gl", "-gtk", "-glsi", "-wayland"];
/// Folders that are searched for runtimes.
const PROGRAM_FOLDERS: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

/// What a node has for containers.
#[derive(Clone, Debug)]
pub struct ContainerFacts {
    /// What can run containers on this node.
    pub runtimes: NodeRuntimes,
    cdi_folder: PathBuf,
    device_files: DeviceFiles,
    libraries: Vec<(String, String)>,
    /// The program that starts steps in containers.
    pub runner: String,
}

impl ContainerFacts {
    /// Looks at the node.
    pub fn find(config: &AgentConfig) -> Self {
        let named = |named: &Option<PathBuf>, name: &str| match named {
            Some(path) => Some(path.clone()).filter(|path| is_program(path)),
            None => find_program(name),
        };
        let text = |path: Option<PathBuf>| path.map(|path| path.display().to_string());
        let facts = Self {
            runtimes: NodeRuntimes {
                podman: text(named(&config.podman, "podman")),
                apptainer: text(named(&config.apptainer, "apptainer")),
            },
            cdi_folder: config.cdi_folder.clone(),
            device_files: config.device_files.clone(),
            libraries: find_libraries(config.driver_libraries.as_deref()),
            runner: config.shepherd.display().to_string(),
        };
        tracing::info!(runtimes = ?facts.runtimes, libraries = facts.libraries.len(), "containers");
        facts
    }

    /// Describes an attempt's slice, and returns the device's name; `None` on a node without device nodes and
    /// libraries.
    ///
    /// # Errors
    ///
    /// The folder of specifications can't be written.
    pub fn describe(
        &self,
        attempt: AttemptId,
        held: &[(&GpuNumbers, Option<Slot>)],
        visible: &str,
    ) -> io::Result<Option<String>> {
        let nodes = devices::own_nodes(&self.device_files, held);
        if nodes.is_empty() && self.libraries.is_empty() {
            return Ok(None);
        }
        let name = attempt.as_uuid().hyphenated().to_string();
        let specification = describe_slice(&name, nodes, &self.libraries, visible);
        let text = serde_json::to_vec_pretty(&specification).map_err(io::Error::other)?;
        std::fs::create_dir_all(&self.cdi_folder)?;
        let path = self.path(attempt);
        // Podman reads the whole folder: it must not find half a file.
        let new = path.with_extension("new");
        std::fs::write(&new, text)?;
        std::fs::set_permissions(&new, PermissionsExt::from_mode(0o644))?;
        std::fs::rename(&new, &path)?;
        Ok(Some(format!("{CDI_KIND}={name}")))
    }

    /// Removes the description of an attempt's slice.
    pub fn forget(&self, attempt: AttemptId) {
        // There is none of an attempt without a container.
        let _ = std::fs::remove_file(self.path(attempt));
    }

    /// Returns the attempts of this node whose slices are described. Another agent on this machine has its attempts in
    /// another data folder.
    pub fn described(&self, data: &Path) -> BTreeSet<AttemptId> {
        let files = std::fs::read_dir(&self.cdi_folder).into_iter().flatten().flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        let attempts = names.filter_map(|name| {
            let id = name.strip_prefix("tessera-")?.strip_suffix(".json")?;
            id.parse().ok().map(AttemptId::from_uuid)
        });
        attempts.filter(|attempt| files::folder(data, *attempt).exists()).collect()
    }

    /// Returns the folder of specifications.
    pub fn cdi_folder(&self) -> &Path {
        &self.cdi_folder
    }

    fn path(&self, attempt: AttemptId) -> PathBuf {
        self.cdi_folder.join(format!("tessera-{}.json", attempt.as_uuid().hyphenated()))
    }
}

/// Looks for the runtimes where they usually are.
pub(crate) fn find_runtimes() -> NodeRuntimes {
    let text = |name| find_program(name).map(|path| path.display().to_string());
    NodeRuntimes { podman: text("podman"), apptainer: text("apptainer") }
}

fn find_program(name: &str) -> Option<PathBuf> {
    let found = PROGRAM_FOLDERS.iter().map(|folder| Path::new(folder).join(name));
    found.into_iter().find(|path| is_program(path))
}

/// Lists the driver's libraries: in `folder`, or where they usually are.
pub(crate) fn find_libraries(folder: Option<&Path>) -> Vec<(String, String)> {
    let folders = match folder {
        Some(folder) => vec![folder.to_owned()],
        None => LIBRARY_FOLDERS.map(PathBuf::from).to_vec(),
    };
    let mut found = folders.iter().map(|folder| driver_libraries(folder));
    found.find(|found| !found.is_empty()).unwrap_or_default()
}

fn is_program(path: &Path) -> bool {
    let found = std::fs::metadata(path);
    found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Lists the driver's libraries in a folder, with their places.
fn driver_libraries(folder: &Path) -> Vec<(String, String)> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    let mut found: Vec<_> = names
        .filter(|name| {
            LIBRARY_NAMES.iter().any(|begin| name.starts_with(begin))
                && name.contains(".so.")
                && !GRAPHICS.iter().any(|part| name.contains(part))
        })
        .map(|name| {
            let place = folder.join(&name).display().to_string();
            (name, place)
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_libraries_for_computing_are_found_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "libcuda.so",
            "libcuda.so.1",
            "libcuda.so.550.54",
            "libnvidia-ml.so.1",
            "libnvidia-egl-wayland.so.1",
            "libnvidia-glcore.so.550.54",
            "libnvcuvid.so.1",
            "libc.so.6",
        ] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }

        let found = driver_libraries(folder.path());

        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["libcuda.so.1", "libcuda.so.550.54", "libnvcuvid.so.1", "libnvidia-ml.so.1"]
        );
    }
}
