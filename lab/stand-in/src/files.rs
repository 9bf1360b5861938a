//! The files by which other programs see a node's clients: device files that they hold open,
//! the driver's table of capability minors, and the name of the machine's boot.
//!
//! They are plain files in the node's folder, laid out as on a real machine: `dev/nvidia0`,
//! `dev/nvidia-caps/nvidia-cap12`, `proc/driver/nvidia-caps/mig-minors`, `boot_id`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::device::{ClaimPlace, DeviceState};

/// Name of the fault list (see [`crate::faults`]).
pub(crate) const FAULT_LIST: &str = "faults";
/// GPU instances for which a driver keeps minors, on each GPU.
const INSTANCES: u32 = 15;
/// Compute instances of each.
const COMPUTE_INSTANCES: u32 = 8;
/// First minor of an instance; 1 and 2 are `config` and `monitor`.
const FIRST_MINOR: u32 = 3;

/// Lays out the files that exist as long as the node does.
pub(crate) fn lay_out(folder: &Path, gpus: usize) -> io::Result<()> {
    fs::create_dir_all(folder.join("dev/nvidia-caps"))?;
    fs::create_dir_all(folder.join("proc/driver/nvidia-caps"))?;
    let mut table = "config 1\nmonitor 2\n".to_owned();
    for gpu in (0..).take(gpus) {
        for instance in 0..INSTANCES {
            let minor = minor(gpu, instance, None);
            table.push_str(&format!("gpu{gpu}/gi{instance}/access {minor}\n"));
            for compute in 0..COMPUTE_INSTANCES {
                let minor = self::minor(gpu, instance, Some(compute));
                table.push_str(&format!("gpu{gpu}/gi{instance}/ci{compute}/access {minor}\n"));
            }
        }
    }
    fs::write(folder.join("proc/driver/nvidia-caps/mig-minors"), table)?;
    renew_boot(folder)
}

/// Gives the machine's boot a new id, as a restart does.
pub(crate) fn renew_boot(folder: &Path) -> io::Result<()> {
    fs::write(folder.join("boot_id"), format!("{}\n", Uuid::new_v4()))
}

/// Opens what a client of a place holds open.
pub(crate) fn open(folder: &Path, state: &DeviceState, place: ClaimPlace) -> io::Result<Vec<File>> {
    let mut paths = Vec::new();
    let gpu = state.gpu_of(place).ok_or(io::ErrorKind::NotFound)?;
    let gpu = u32::try_from(gpu).map_err(io::Error::other)?;
    paths.push(folder.join(format!("dev/nvidia{gpu}")));
    if let ClaimPlace::Compute(serial) = place
        && let Some((_, instance, compute)) = state.compute_instance(serial)
    {
        paths.push(cap(folder, minor(gpu, instance.id, None)));
        paths.push(cap(folder, minor(gpu, instance.id, Some(compute.id))));
    }
    let open = |path: &PathBuf| File::options().create(true).append(true).open(path);
    paths.iter().map(open).collect()
}

fn cap(folder: &Path, minor: u32) -> PathBuf {
    folder.join(format!("dev/nvidia-caps/nvidia-cap{minor}"))
}

fn minor(gpu: u32, instance: u32, compute: Option<u32>) -> u32 {
    let each = 1 + COMPUTE_INSTANCES;
    FIRST_MINOR + (gpu * INSTANCES + instance) * each + compute.map_or(0, |compute| 1 + compute)
}
