//! How an attempt's program is run in a container: the words of the runtime, and what it sees of the node. Pure.
//!
//! Podman gets its own folder for each attempt, with the user's image store below it that is only read. Nothing
//! that an attempt writes into its container outlives it, and attempts of one user don't wait for each other's locks.
//!
//! The container is not a wall: the attempt's account, control groups and device rules are. It therefore shares the
//! node's network, processes and shared memory, so that signals, ports, NCCL and MPS work as without it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tessera_model::container::{ContainerMount, ContainerRules};

/// The kind of CDI devices that agents describe.
pub const CDI_KIND: &str = "tessera.io/slice";
/// The version of CDI that descriptions are written in: what podman 4.3 reads.
const CDI_VERSION: &str = "0.5.0";
/// Where the driver's libraries are inside: away from the image's own.
pub const DRIVER_FOLDER: &str = "/run/tessera/driver";
/// Where the container's folder for files of the moment appears in podman's own mounts. Podman takes no path there of
/// more than 50 characters, which those of attempts exceed. This folder is on every system, and no job needs it.
pub const RUN_FOLDER: &str = "/boot";
/// The variable that holds a [`ContainerPlan`] as JSON.
pub const PLAN_VARIABLE: &str = "TESSERA_CONTAINER";
/// The name of the container in the attempt's own store.
const NAME: &str = "attempt";
/// First argument with which the shepherd's program becomes the one in front of a container.
pub const CONTAINER_COMMAND: &str = "container";
/// Where podman looks for specifications that exist until the next boot.
pub const CDI_FOLDER: &str = "/var/run/cdi";
/// How a sentence of the program in front of a container begins, by which its shepherd finds it in the output.
pub const REFUSAL: &str = "tessera: the container could not be started: ";
/// Exit code of what could not be started, as podman and docker use it.
pub const NOT_STARTED_CODE: u8 = 125;

/// What runs a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerRuntime {
    /// Podman, without privileges.
    Podman,
    /// Apptainer, or Singularity under its old name.
    Apptainer,
}

/// Where a node's runtimes are; `None` for one that it lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRuntimes {
    /// Podman's program.
    pub podman: Option<String>,
    /// Apptainer's program.
    pub apptainer: Option<String>,
}

/// Everything that the program in front of the runtime needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerPlan {
    /// What runs it.
    pub runtime: ContainerRuntime,
    /// The runtime's program.
    pub program: String,
    /// The reference or the file, as the user wrote it.
    pub image: String,
    /// The CDI device of the attempt's slice, or device nodes by their paths; none on a node without them.
    pub devices: Vec<String>,
    /// What its user mounts: it has to be there.
    pub mounts: Vec<ContainerMount>,
    /// What the node adds, if it is there.
    pub node_mounts: Vec<ContainerMount>,
    /// Folders of libraries in front of the image's.
    pub libraries: Vec<String>,
    /// The kernel shim, which is loaded before other libraries.
    pub preload: Option<String>,
    /// Where the program starts inside.
    pub work_dir: String,
    /// Where this container's files are on the node.
    pub folder: String,
}

/// A container that a node can't run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoContainer {
    /// There is no runtime for images by name.
    #[error(
        "this node has no podman: install it (apt-get install podman), or submit to nodes that have it (--nodelist, \
         --constraint)"
    )]
    NoPodman,
    /// There is no runtime for files.
    #[error(
        "this node has no apptainer, which runs {image}: install it, name an image of podman's, or submit to nodes \
         that have it (--nodelist, --constraint)"
    )]
    NoApptainer {
        /// The file.
        image: String,
    },
    /// The attempt is root's, which no wall holds.
    #[error(
        "jobs of root run in no container: it would have root's rights on the node; submit as a user"
    )]
    Root,
}

/// What an attempt brings along for its container.
#[derive(Clone, Debug)]
pub struct ContainerGround<'a> {
    /// The attempt's own folder.
    pub own: &'a str,
    /// The working folder of the job, if it names one.
    pub work_dir: Option<&'a str>,
    /// The attempt's complete environment.
    pub env: &'a BTreeMap<String, String>,
    /// The Python companion's folder.
    pub companion: Option<&'a str>,
    /// The CDI device of its slice.
    pub device: Option<String>,
    /// Whether it has its own `/tmp`.
    pub private_tmp: bool,
}

/// Variables whose values are files or folders of the node that a program uses.
const PATH_VARIABLES: [&str; 6] = [
    // Steps have it; for a job's own program it is made later ([`ContainerPlan::observe`]).
    "TESSERA_MEMORY_PIPE",
    "TESSERA_CALLS",
    "TESSERA_KERNEL_CUDA",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "TESSERA_KERNEL_LOG",
];

/// Plans a container.
///
/// # Errors
///
/// The node has no runtime for it, or the attempt is root's.
pub fn plan(
    rules: &ContainerRules,
    runtimes: &NodeRuntimes,
    is_root: bool,
    ground: ContainerGround<'_>,
) -> Result<ContainerPlan, NoContainer> {
    if is_root {
        return Err(NoContainer::Root);
    }
    let (runtime, program) = if rules.is_image_file() {
        let missing = || NoContainer::NoApptainer { image: rules.image.clone() };
        (ContainerRuntime::Apptainer, runtimes.apptainer.clone().ok_or_else(missing)?)
    } else {
        (ContainerRuntime::Podman, runtimes.podman.clone().ok_or(NoContainer::NoPodman)?)
    };
    let shim = ground.env.get("TESSERA_KERNEL_ENDPOINT").and_then(|_| ground.env.get("LD_PRELOAD"));
    let shim = shim.and_then(|list| list.split(':').next()).map(str::to_owned);
    let shim_folder =
        shim.as_deref().and_then(|shim| shim.rsplit_once('/')).map(|(folder, _)| folder.to_owned());
    let work_dir = ground.work_dir.unwrap_or(ground.own);
    let tmp = match ground.private_tmp {
        true => "/tmp".to_owned(),
        false => format!("{}/tmp", ground.own),
    };
    let script = format!("{}/slurm_script", ground.own);
    let mut node_mounts: Vec<_> = [Some(script), Some(tmp), Some("/dev/shm".to_owned())]
        .into_iter()
        .flatten()
        .chain(ground.companion.map(str::to_owned))
        .chain(shim_folder.clone())
        .chain(PATH_VARIABLES.iter().filter_map(|name| ground.env.get(*name).cloned()))
        .map(ContainerMount::same)
        .collect();
    // The root is the image's.
    if work_dir != "/" {
        node_mounts.insert(0, ContainerMount::same(work_dir));
    }
    let mut libraries: Vec<String> = shim_folder.into_iter().collect();
    libraries.extend(ground.device.is_some().then(|| DRIVER_FOLDER.to_owned()));
    Ok(ContainerPlan {
        runtime,
        program,
        image: rules.image.clone(),
        devices: ground.device.into_iter().collect(),
        mounts: rules.mounts.clone(),
        node_mounts,
        libraries,
        preload: shim,
        work_dir: rules.work_dir.clone().unwrap_or_else(|| work_dir.to_owned()),
        folder: format!("{}/container", ground.own),
    })
}

/// The container of a step's process, as the caller of the step hands it on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepContainer {
    /// The reference or the file, as the user wrote it.
    pub image: String,
    /// Mounts, as `SOURCE[:TARGET[:ro]]`.
    pub mounts: Vec<String>,
    /// The folder inside.
    pub work_dir: Option<String>,
}

/// An image store of podman's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageStore {
    /// Path of the folder that has the images.
    pub folder: String,
    /// Its driver: `overlay` or `vfs`.
    pub driver: &'static str,
}

/// Variables of the node that mean nothing inside, or that the container has its own of.
const LEFT_OUT: [&str; 12] = [
    PLAN_VARIABLE,
    "PATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "CONTAINERS_CONF",
    "HOSTNAME",
];
/// Beginnings of variables of which the attempt's value counts, whatever the image sets.
const ATTEMPTS_OWN: [&str; 3] = ["TESSERA_", "SLURM_", "CUDA_"];

impl ContainerPlan {
    /// Adds the driver's device nodes and libraries by their places, where nothing describes them to the runtime.
    #[must_use]
    pub fn with_driver(mut self, nodes: Vec<String>, libraries: &[(String, String)]) -> Self {
        self.devices.extend(nodes);
        self.libraries.extend((!libraries.is_empty()).then(|| DRIVER_FOLDER.to_owned()));
        self.node_mounts.extend(libraries.iter().map(|(name, place)| ContainerMount {
            source: place.clone(),
            target: format!("{DRIVER_FOLDER}/{name}"),
            read_only: true,
        }));
        self
    }

    /// Lets the observers in the program's processes reach their pipe, and loads the shim where it watches.
    pub fn observe(&mut self, pipe: &str, shim: Option<&str>) {
        self.node_mounts.push(ContainerMount::same(pipe));
        let Some((shim, (folder, _))) = shim.and_then(|shim| Some((shim, shim.rsplit_once('/')?)))
        else {
            return;
        };
        self.node_mounts.push(ContainerMount::same(folder));
        self.preload = Some(shim.to_owned());
        if !self.libraries.iter().any(|known| known == folder) {
            self.libraries.insert(0, folder.to_owned());
        }
    }

    /// Returns the variables that the program has inside: the attempt's, unless the image sets them. `image` holds
    /// the image's, as `NAME=value`.
    pub fn environment(
        &self,
        attempt: &BTreeMap<String, String>,
        image: &[String],
    ) -> BTreeMap<String, String> {
        let image: BTreeMap<&str, &str> =
            image.iter().filter_map(|variable| variable.split_once('=')).collect();
        let is_ours = |name: &str| ATTEMPTS_OWN.iter().any(|own| name.starts_with(own));
        let is_passed_on = |name: &str| {
            !LEFT_OUT.contains(&name)
                && !name.starts_with("BASH_FUNC_")
                && (is_ours(name) || !image.contains_key(name))
        };
        let mut all: BTreeMap<_, _> = attempt
            .iter()
            .filter(|(name, _)| is_passed_on(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let mut prepend = |name: &str, own: &[String]| {
            let image = image.get(name).filter(|paths| !paths.is_empty());
            let paths = own.iter().map(String::as_str).chain(image.copied());
            let paths: Vec<_> = paths.collect();
            if !own.is_empty() {
                all.insert(name.to_owned(), paths.join(":"));
            }
        };
        prepend("LD_LIBRARY_PATH", &self.libraries);
        prepend("LD_PRELOAD", self.preload.as_slice());
        // The companion is found with the image's own packages.
        let companion: Vec<_> = attempt.get("PYTHONPATH").cloned().into_iter().collect();
        prepend("PYTHONPATH", &companion);
        all
    }

    /// Returns what is mounted: what the user names, and what the node adds and `exists`. The user's mounts are last,
    /// so that they lie over the others.
    pub fn all_mounts(&self, exists: impl Fn(&str) -> bool) -> Vec<ContainerMount> {
        let mut seen: BTreeSet<&str> =
            self.mounts.iter().map(|mount| mount.target.as_str()).collect();
        let node = self.node_mounts.iter();
        let node = node.filter(|mount| exists(&mount.source) && seen.insert(&mount.target));
        let mut all: Vec<_> = node.cloned().collect();
        all.extend(self.mounts.iter().cloned());
        all
    }

    /// Returns podman's words that are the same for all of its commands.
    pub fn podman(&self, store: &ImageStore) -> Vec<String> {
        let Self { program, folder, .. } = self;
        let ImageStore { folder: images, driver } = store;
        vec![
            program.clone(),
            "--log-level=error".into(),
            format!("--root={folder}/store"),
            format!("--runroot={RUN_FOLDER}/containers"),
            format!("--tmpdir={RUN_FOLDER}/libpod"),
            format!("--storage-driver={driver}"),
            format!("--storage-opt={driver}.imagestore={images}"),
            format!("--storage-opt={driver}.ignore_chown_errors=true"),
            "--cgroup-manager=cgroupfs".into(),
            "--events-backend=none".into(),
        ]
    }

    /// Returns the words that show an image's variables as JSON, and fail without it.
    pub fn inspect_words(&self, store: &ImageStore) -> Vec<String> {
        let mut words = self.podman(store);
        words.extend(["image", "inspect", "--format={{json .Config.Env}}"].map(str::to_owned));
        words.push(self.image.clone());
        words
    }

    /// Returns the words that run a program in the container. Its variables are those of podman's own environment.
    pub fn run_words(
        &self,
        store: &ImageStore,
        variables: &BTreeMap<String, String>,
        mounts: &[ContainerMount],
        (words, streams): (&[String], ContainerStreams),
    ) -> Vec<String> {
        let mut all = self.podman(store);
        all.extend(
            [
                "run",
                "--rm",
                "--pull=never",
                "--log-driver=none",
                "--network=host",
                "--pid=host",
                "--uts=host",
                "--cgroupns=host",
                "--security-opt=label=disable",
                "--sig-proxy=false",
                "--entrypoint=",
            ]
            .map(str::to_owned),
        );
        all.push(format!("--name={NAME}"));
        all.push(format!("--pidfile={}/pid", self.folder));
        all.extend(self.devices.iter().map(|device| format!("--device={device}")));
        all.extend(mounts.iter().map(|mount| {
            let ContainerMount { source, target, read_only } = mount;
            format!("--volume={source}:{target}:{}", if *read_only { "ro" } else { "rw" })
        }));
        all.extend(self.inside(variables, streams));
        all.push(self.image.clone());
        all.extend_from_slice(words);
        all
    }

    /// Returns the words that run a program in a container that runs.
    pub fn exec_words(
        &self,
        store: &ImageStore,
        variables: &BTreeMap<String, String>,
        (words, streams): (&[String], ContainerStreams),
    ) -> Vec<String> {
        let mut all = self.podman(store);
        all.push("exec".to_owned());
        all.extend(self.inside(variables, streams));
        all.push(NAME.to_owned());
        all.extend_from_slice(words);
        all
    }

    fn inside(
        &self,
        variables: &BTreeMap<String, String>,
        streams: ContainerStreams,
    ) -> Vec<String> {
        let mut all = vec![format!("--workdir={}", self.work_dir)];
        all.extend(streams.has_input.then(|| "--interactive".to_owned()));
        all.extend(streams.is_terminal.then(|| "--tty".to_owned()));
        // The runtime's own linker would read these: they are given by value, all others by name.
        all.extend(variables.iter().map(|(name, value)| match name.starts_with("LD_") {
            true => format!("--env={name}={value}"),
            false => format!("--env={name}"),
        }));
        all
    }

    /// Returns apptainer's words for a program. It shares the node's devices and processes of its own accord, and its
    /// `--nv` finds the driver's libraries.
    pub fn apptainer_words(&self, mounts: &[ContainerMount], words: &[String]) -> Vec<String> {
        let mut all = vec![self.program.clone(), "exec".to_owned(), "--nv".to_owned()];
        for mount in mounts {
            let ContainerMount { source, target, read_only } = mount;
            all.push("--bind".to_owned());
            all.push(format!("{source}:{target}:{}", if *read_only { "ro" } else { "rw" }));
        }
        all.push("--pwd".to_owned());
        all.push(self.work_dir.clone());
        all.push(self.image.clone());
        all.extend_from_slice(words);
        all
    }
}

/// What a program in a container is connected to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerStreams {
    /// Whether there may be something to read.
    pub has_input: bool,
    /// Whether it is a terminal.
    pub is_terminal: bool,
}

/// A description of devices, as the Container Device Interface has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiSpecification {
    cdi_version: &'static str,
    kind: &'static str,
    devices: Vec<CdiDevice>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct CdiDevice {
    name: String,
    container_edits: CdiEdits,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct CdiEdits {
    env: Vec<String>,
    device_nodes: Vec<CdiNode>,
    mounts: Vec<CdiMount>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct CdiNode {
    path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct CdiMount {
    host_path: String,
    container_path: String,
    options: [&'static str; 3],
}

/// Describes an attempt's slice: its device nodes, and the driver's libraries by their names and places. `visible` is
/// what CUDA and NVIDIA's own tools read.
pub fn describe_slice(
    name: &str,
    nodes: Vec<String>,
    libraries: &[(String, String)],
    visible: &str,
) -> CdiSpecification {
    let mounts = libraries.iter().map(|(library, place)| CdiMount {
        host_path: place.clone(),
        container_path: format!("{DRIVER_FOLDER}/{library}"),
        options: ["ro", "rbind", "nosuid"],
    });
    CdiSpecification {
        cdi_version: CDI_VERSION,
        kind: CDI_KIND,
        devices: vec![CdiDevice {
            name: name.to_owned(),
            container_edits: CdiEdits {
                env: vec![
                    format!("CUDA_VISIBLE_DEVICES={visible}"),
                    format!("NVIDIA_VISIBLE_DEVICES={visible}"),
                ],
                device_nodes: nodes.into_iter().map(|path| CdiNode { path }).collect(),
                mounts: mounts.collect(),
            },
        }],
    }
}

#[cfg(test)]
mod tests;
