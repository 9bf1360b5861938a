//! The options about containers, which jobs and steps have alike.

use std::path::{Path, PathBuf};

use clap::Args;
use tessera_api_types::ContainerRequest;

/// The container that a job's program, or each process of a step, runs in.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerOptions {
    /// Image of the container for the job, or for each process of a step: python:3.12 in the user's image store
    /// (rootless podman), or the path of a .sif file (apptainer)
    #[arg(id = "container", long = "container", alias = "container-image", value_name = "IMAGE")]
    pub image: Option<String>,
    /// Folders and files of the node that the container sees in addition to the working folder:
    /// SOURCE[:TARGET[:ro]], separated by commas
    #[arg(id = "container_mounts", long = "container-mounts", value_name = "MOUNTS")]
    pub mounts: Option<String>,
    /// Folder inside of the container in which the program starts; by default the working folder
    #[arg(id = "container_workdir", long = "container-workdir", value_name = "DIR")]
    pub work_dir: Option<String>,
    /// Let the container see the home folder, too
    #[arg(id = "container_mount_home", long = "container-mount-home")]
    pub mount_home: bool,
}

/// Options about containers that make no sense together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadContainerOptions {
    /// An option about a container, where there is none.
    #[error("{option} needs a container: write --container IMAGE as well")]
    NoContainer { option: &'static str },
    /// The path of an image is not text.
    #[error("the path {} is not valid UTF-8, and can't be sent", path.display())]
    PathNotText { path: PathBuf },
}

impl ContainerOptions {
    /// Overrides these options with stronger ones.
    pub fn under(self, stronger: Self) -> Self {
        Self {
            image: stronger.image.or(self.image),
            mounts: stronger.mounts.or(self.mounts),
            work_dir: stronger.work_dir.or(self.work_dir),
            mount_home: self.mount_home || stronger.mount_home,
        }
    }

    /// Returns the request; `None` without a container. The file of an image may be named relative to `folder`, as
    /// other files are.
    ///
    /// # Errors
    ///
    /// [`BadContainerOptions`].
    pub fn request(
        &self,
        folder: &Path,
        home: Option<&String>,
    ) -> Result<Option<ContainerRequest>, BadContainerOptions> {
        let Some(image) = self.image.clone() else {
            let idle = [
                ("--container-mounts", self.mounts.is_some()),
                ("--container-workdir", self.work_dir.is_some()),
                ("--container-mount-home", self.mount_home),
            ];
            return match idle.into_iter().find(|(_, given)| *given) {
                Some((option, _)) => Err(BadContainerOptions::NoContainer { option }),
                None => Ok(None),
            };
        };
        let image = match image.ends_with(".sif") && !image.contains("://") {
            true => {
                // Without its dots, so that it reads well in listings; links stay as they are.
                let path: PathBuf = folder.join(image).components().collect();
                let text = path.to_str().map(str::to_owned);
                text.ok_or(BadContainerOptions::PathNotText { path })?
            }
            false => image,
        };
        let mounts = self.mounts.iter().flat_map(|mounts| mounts.split(','));
        let mounts = mounts.map(str::trim).filter(|mount| !mount.is_empty()).map(str::to_owned);
        let home = home.filter(|_| self.mount_home).cloned();
        let work_dir = self.work_dir.clone();
        Ok(Some(ContainerRequest { image, mounts: mounts.chain(home).collect(), work_dir }))
    }

    /// Returns the words by which a command line states them.
    pub fn words(&self) -> Vec<String> {
        let named = [
            ("container", &self.image),
            ("container-mounts", &self.mounts),
            ("container-workdir", &self.work_dir),
        ];
        let given = named
            .into_iter()
            .filter_map(|(name, value)| value.as_ref().map(|value| format!("--{name}={value}")));
        given.chain(self.mount_home.then(|| "--container-mount-home".to_owned())).collect()
    }
}
