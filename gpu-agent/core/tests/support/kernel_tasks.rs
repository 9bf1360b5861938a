//! Measured tasks, and attempts that share a slice.

use tessera_agent_core::kernel::Admission;
use tessera_kernel_queue::{KernelId, Nanos, TaskKey, TaskProfile};
use tessera_model::AttemptId;
use tessera_model::spec::{Class, Priority};

/// A task whose only kernel takes `took`, with `gap` after it.
pub fn measured(kernel: &KernelId, took: Nanos, gap: Nanos) -> TaskProfile {
    let mut profile = TaskProfile::default();
    let index = profile.intern(kernel).unwrap();
    for _ in 0..150 {
        let kernel = profile.kernel_mut(index).unwrap();
        kernel.took.add(took);
        kernel.gap.add(gap);
        profile.pairs.add(Some(index), index, gap);
    }
    profile.close_measuring();
    profile
}

/// An attempt of its own task, by number.
pub fn admission(number: u128, priority: u8) -> Admission {
    Admission {
        attempt: AttemptId::from_uuid(uuid::Uuid::from_u128(number)),
        gpu: "GPU-1".parse().unwrap(),
        slice: "GPU-1".parse().unwrap(),
        task: TaskKey::new(format!("task {number}")).unwrap(),
        priority: Priority::try_from(priority).unwrap(),
        class: Class::Offline,
        share_thousandths: 1_000,
        exclusive: false,
        owner: None,
    }
}
