//! The driver: versions, modes, permissions.

use tessera_frames::cluster::{Finding, FindingLevel};

use super::{DoctorFacts, DriverAnswer, GpuCheckup, finding, ok, with_remedy};
use crate::nvml::error::{ErrorHandling, NvmlCallError};

/// `NVML_ERROR_NO_PERMISSION`.
const NO_PERMISSION: u32 = 4;

pub(super) fn findings(facts: &DoctorFacts) -> Vec<Finding> {
    let driver = match &facts.driver {
        DriverAnswer::Reported(driver) => driver,
        DriverAnswer::Refused(fault) => return vec![unusable(facts, fault)],
        DriverAnswer::Silent => {
            return vec![with_remedy(
                "driver",
                FindingLevel::Blocks,
                "the driver doesn't answer",
                "search the output of dmesg for Xid; if the driver stays silent: reboot",
            )];
        }
    };
    let unknown = || "an unknown version".to_owned();
    let version = driver.driver.clone().unwrap_or_else(unknown);
    let library = driver.library.clone().unwrap_or_else(unknown);
    let mut found = vec![match &facts.machine.module {
        Some(module) if driver.driver.as_ref().is_some_and(|driver| driver != module) => {
            with_remedy(
                "driver",
                FindingLevel::Blocks,
                format!("the library is of driver {version}, the loaded module is {module}"),
                "drain the node, then reload the modules (rmmod nvidia_uvm nvidia && modprobe nvidia) \
             or reboot",
            )
        }
        _ => ok("driver", format!("driver {version}, library {library}")),
    }];
    if driver.gpus.is_empty() && driver.lost.is_empty() {
        let text = "the driver lists no GPU";
        found.push(with_remedy(
            "gpus",
            FindingLevel::Blocks,
            text,
            "lspci | grep -i nvidia; dmesg",
        ));
    }
    for (index, fault) in &driver.lost {
        let lost = with_remedy(
            "gpus",
            FindingLevel::Blocks,
            format!("the GPU doesn't answer: {fault}"),
            format!("nvidia-smi --gpu-reset -i {index}; if that fails: reboot"),
        );
        found.push(Finding { gpu: Some(*index), ..lost });
    }
    for gpu in &driver.gpus {
        let of_gpu = [mode(gpu), permission(facts, gpu), persistence(gpu), display(gpu)];
        let about = |finding: Finding| Finding { gpu: Some(gpu.index), ..finding };
        found.extend(of_gpu.into_iter().flatten().map(about));
    }
    found
}

fn unusable(facts: &DoctorFacts, fault: &NvmlCallError) -> Finding {
    let blocks =
        |text: String, remedy: &str| with_remedy("driver", FindingLevel::Blocks, text, remedy);
    match fault.code {
        9 => blocks(
            "the driver's kernel module is not loaded".to_owned(),
            "modprobe nvidia; if that fails: install the driver for this kernel",
        ),
        12 => blocks(
            "libnvidia-ml.so.1 was not found".to_owned(),
            "install NVIDIA's driver, or name the library: tessera-agent --nvml PATH",
        ),
        18 => blocks(
            match &facts.machine.module {
                Some(module) => {
                    format!("the library is of another version than the loaded module ({module})")
                }
                None => "the library is of another version than the loaded module".to_owned(),
            },
            "drain the node, then reload the modules (rmmod nvidia_uvm nvidia && modprobe nvidia) \
             or reboot",
        ),
        NO_PERMISSION => blocks(
            "this account may not use the driver".to_owned(),
            "run tessera-agent as root, or give it access to /dev/nvidiactl and /dev/nvidia0",
        ),
        _ => blocks(format!("the driver's library can't be used: {fault}"), "dmesg | grep -i nvrm"),
    }
}

fn mode(gpu: &GpuCheckup) -> Option<Finding> {
    let index = gpu.index;
    Some(match &gpu.mig {
        Ok(None) => ok("mig_mode", format!("{} has no MIG: jobs get the whole GPU", gpu.model)),
        Ok(Some((now, pending))) if now != pending => with_remedy(
            "mig_mode",
            FindingLevel::Blocks,
            format!(
                "MIG mode is {}, and {} as soon as the GPU is reset",
                on_or_off(*now),
                on_or_off(*pending)
            ),
            format!("while nothing runs there: nvidia-smi --gpu-reset -i {index}"),
        ),
        Ok(Some((true, _))) => ok("mig_mode", format!("{}: MIG mode is on", gpu.model)),
        Ok(Some((false, _))) => with_remedy(
            "mig_mode",
            FindingLevel::Warn,
            format!("{}: MIG mode is off, so jobs get the whole GPU", gpu.model),
            format!("while nothing runs there: tessera mig-mode NODE:{index} on"),
        ),
        Err(fault) => finding("mig_mode", FindingLevel::Blocks, format!("can't be read: {fault}")),
    })
}

fn permission(facts: &DoctorFacts, gpu: &GpuCheckup) -> Option<Finding> {
    let Ok(Some((on, _))) = gpu.mig else { return None };
    let remedy = "run tessera-agent as root, or give its account the /dev/nvidia-caps file of \
                  /proc/driver/nvidia/capabilities/mig/config";
    Some(match (&gpu.may_cut, on) {
        _ if may_cut(facts, gpu) => ok("mig_permission", "may create and destroy instances"),
        (Err(fault), true) => with_remedy(
            "mig_permission",
            FindingLevel::Blocks,
            format!("is partitioned, and this account may neither partition nor use it: {fault}"),
            remedy,
        ),
        _ => with_remedy(
            "mig_permission",
            FindingLevel::Warn,
            "runs jobs on the whole GPU; this account may not switch MIG mode",
            remedy,
        ),
    })
}

/// Returns whether instances may be created and destroyed, as far as that is known without trying.
pub(super) fn may_cut(facts: &DoctorFacts, gpu: &GpuCheckup) -> bool {
    let machine = &facts.machine;
    let account = machine.root || machine.nvml_worker || machine.mig_config_file == Some(true);
    match &gpu.may_cut {
        Ok(()) => account || matches!(gpu.mig, Ok(Some((true, _)))),
        // The driver was queried with this account's rights, and the worker has root's.
        Err(fault) if fault.code == NO_PERMISSION => machine.nvml_worker,
        // With MIG off the driver can't answer this, so the account decides.
        Err(fault) => {
            account && matches!(fault.handling(), ErrorHandling::Replan | ErrorHandling::Bug)
        }
    }
}

fn persistence(gpu: &GpuCheckup) -> Option<Finding> {
    Some(match gpu.persistence? {
        true => ok("persistence", "persistence mode is on"),
        false => with_remedy(
            "persistence",
            FindingLevel::Warn,
            "persistence mode is off: the driver shuts the GPU down while no process uses it",
            format!(
                "systemctl enable --now nvidia-persistenced, or: nvidia-smi -i {} -pm 1",
                gpu.index
            ),
        ),
    })
}

fn display(gpu: &GpuCheckup) -> Option<Finding> {
    Some(match gpu.display? {
        false => ok("display", "drives no display"),
        true => with_remedy(
            "display",
            FindingLevel::Warn,
            "drives a display: MIG mode can't change while it does",
            "systemctl isolate multi-user.target",
        ),
    })
}

const fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}
