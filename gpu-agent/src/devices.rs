//! Which device nodes an attempt may open: those that all programs need, its GPU's, and its instance's.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use tessera_model::mig::Slot;

use crate::messages::gpu::GpuNumbers;
use crate::shepherd::protocol::DeviceNumbers;
use crate::sys::holders::{DeviceFiles, minors};

/// Nodes that every program on any GPU needs.
const COMMON: [&str; 3] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"];

/// Returns which nodes are guarded and which of them are open for an attempt with these GPUs and instances;
/// `None` on a machine without any.
pub fn rules(files: &DeviceFiles, held: &[(&GpuNumbers, Option<Slot>)]) -> Option<DeviceNumbers> {
    let nodes = nodes(&files.folder);
    let table = fs::read_to_string(&files.minors).unwrap_or_default();
    choose(&nodes, &table, held)
}

/// Lists the paths of the nodes that an attempt with these GPUs and instances may open.
pub fn own_nodes(files: &DeviceFiles, held: &[(&GpuNumbers, Option<Slot>)]) -> Vec<String> {
    let nodes = nodes(&files.folder);
    let table = fs::read_to_string(&files.minors).unwrap_or_default();
    let rules = choose(&nodes, &table, held).unwrap_or_default();
    let is_open = |major: u32, minor: u32| rules.open.contains(&(major, minor));
    let open = nodes.iter().filter(|(_, major, minor)| is_open(*major, *minor));
    open.map(|(name, ..)| files.folder.join(name).display().to_string()).collect()
}

/// Lists the paths of the driver's nodes that this process may open.
pub fn openable_nodes() -> Vec<String> {
    let files = DeviceFiles::default();
    let paths = nodes(&files.folder).into_iter().map(|(name, ..)| files.folder.join(name));
    paths
        .filter(|path| fs::File::options().read(true).write(true).open(path).is_ok())
        .map(|path| path.display().to_string())
        .collect()
}

fn choose(
    nodes: &[(String, u32, u32)],
    table: &str,
    held: &[(&GpuNumbers, Option<Slot>)],
) -> Option<DeviceNumbers> {
    if nodes.is_empty() {
        return None;
    }
    let mut open: Vec<String> = COMMON.map(str::to_owned).into();
    for (gpu, slot) in held {
        open.push(format!("nvidia{}", gpu.minor));
        let instance = gpu.instances.iter().find(|(of, _)| Some(*of) == *slot);
        if let Some((_, instance)) = instance {
            let caps = minors(table, gpu.minor, *instance).into_iter();
            open.extend(caps.map(|minor| format!("nvidia-caps/nvidia-cap{minor}")));
        }
    }
    let mut guarded: Vec<u32> = nodes.iter().map(|(_, major, _)| *major).collect();
    guarded.sort_unstable();
    guarded.dedup();
    let open = nodes.iter().filter(|(name, ..)| open.contains(name));
    Some(DeviceNumbers { guarded, open: open.map(|(_, major, minor)| (*major, *minor)).collect() })
}

/// Lists the driver's device nodes with their numbers.
fn nodes(folder: &Path) -> Vec<(String, u32, u32)> {
    let mut found = Vec::new();
    for inner in ["", "nvidia-caps"] {
        for entry in fs::read_dir(folder.join(inner)).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let Ok(node) = entry.metadata() else { continue };
            if name.starts_with("nvidia") && node.file_type().is_char_device() {
                let (major, minor) =
                    (rustix::fs::major(node.rdev()), rustix::fs::minor(node.rdev()));
                let name = if inner.is_empty() { name } else { format!("{inner}/{name}") };
                found.push((name, major, minor));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_model::mig::ProfileId;

    #[test]
    fn an_attempt_gets_its_gpus_nodes_and_its_instances_capabilities() {
        let node = |name: &str, major, minor| (name.to_owned(), major, minor);
        let nodes = [
            node("nvidiactl", 195, 255),
            node("nvidia0", 195, 0),
            node("nvidia1", 195, 1),
            node("nvidia-modeset", 195, 254),
            node("nvidia-uvm", 505, 0),
            node("nvidia-caps/nvidia-cap1", 237, 1),
            node("nvidia-caps/nvidia-cap12", 237, 12),
            node("nvidia-caps/nvidia-cap13", 237, 13),
            node("nvidia-caps/nvidia-cap21", 237, 21),
        ];
        let table = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n\
                     gpu0/gi2/access 21\ngpu1/gi1/access 148\n";
        let slot = |start| Slot { profile: ProfileId(19), start };
        let gpu = GpuNumbers { minor: 0, instances: vec![(slot(0), 1), (slot(1), 2)] };

        let whole = choose(&nodes, table, &[(&gpu, None)]).unwrap();
        assert_eq!(whole.guarded, [195, 237, 505]);
        assert_eq!(whole.open, [(195, 255), (195, 0), (505, 0)]);
        let first = choose(&nodes, table, &[(&gpu, Some(slot(0)))]).unwrap();
        assert_eq!(first.open, [(195, 255), (195, 0), (505, 0), (237, 12), (237, 13)]);
        let second = choose(&nodes, table, &[(&gpu, Some(slot(1)))]).unwrap();
        assert_eq!(second.open, [(195, 255), (195, 0), (505, 0), (237, 21)]);
        let other = GpuNumbers { minor: 1, instances: Vec::new() };
        let both = choose(&nodes, table, &[(&gpu, None), (&other, None)]).unwrap();
        assert_eq!(both.open, [(195, 255), (195, 0), (195, 1), (505, 0)]);
        assert_eq!(choose(&[], table, &[(&gpu, None)]), None);
    }
}
