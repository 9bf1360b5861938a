//! FIKIT's measuring stage: a program alone, each kernel and each gap sampled.

use tessera_kernel_queue::{
    Join, KernelIndex, KernelQueue, KernelSample, Nanos, QueueAction, QueueEvent, QueueRules,
    SessionId, TaskKey, TaskProfile,
};
use tessera_model::spec::{Class, Priority};

use super::program::{AfterLaunch, ProgramCourse, SimulatedProgram, TimeNoise};

/// Returns what the queue calls a program's task.
pub(super) fn task(program: &SimulatedProgram, at: usize) -> TaskKey {
    TaskKey::new(format!("{at} {}", program.name)).expect("the name is short and not empty")
}

/// Measures a program alone, as the queue has it done with every new task, and returns its
/// profile and the number of tasks that it took.
pub fn measure(program: &SimulatedProgram, seed: u64, noise: TimeNoise) -> (TaskProfile, usize) {
    let session = SessionId::new(1);
    let key = task(program, 0);
    let mut queue = KernelQueue::new(QueueRules::default());
    let priority = Priority::DEFAULT;
    let join = Join {
        session,
        task: key.clone(),
        priority,
        class: Class::Offline,
        share_thousandths: 1_000,
        exclusive: None,
    };
    queue.step(QueueEvent::Join(join), Nanos::ZERO);
    for kernel in 0..program.kernels() {
        let kernel = Box::new(program.kernel_id(kernel));
        queue.step(QueueEvent::Define { session, kernel }, Nanos::ZERO);
    }
    let mut course = ProgramCourse::new(program.clone(), seed, noise);
    let mut launches = 0;
    let (mut host, mut device, mut tasks) = (Nanos::ZERO, Nanos::ZERO, 0);
    let (mut before, mut last): (Option<KernelIndex>, Option<(KernelIndex, Nanos)>) = (None, None);
    loop {
        let launch = course.launch();
        let start = host.max(device);
        if let Some((kernel, took)) = last.take() {
            let sample = KernelSample { kernel, before, took, gap: Some(start.minus(device)) };
            queue.step(QueueEvent::Sample { session, sample }, start);
            let next = KernelIndex::new(launch.kernel);
            launches += 1;
            let event =
                QueueEvent::Launch { session, launch: launches, kernel: next, count: launches };
            let actions = queue.step(event, start);
            if actions.iter().any(|action| matches!(action, QueueAction::Measured { .. })) {
                return (queue.profile(&key).cloned().unwrap_or_default(), tasks);
            }
            before = Some(kernel);
        }
        device = start.plus(launch.took);
        host = match launch.next {
            AfterLaunch::AfterDevice(gap) => device.plus(gap),
            AfterLaunch::After(work) => host.plus(work),
        };
        last = Some((KernelIndex::new(launch.kernel), launch.took));
        tasks += usize::from(launch.is_last);
    }
}
