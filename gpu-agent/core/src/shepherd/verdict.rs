//! Decides the outcome of an attempt from the evidence. Pure.

use tessera_frames::cluster::{HOST_MEMORY_DETAIL, StopCause};
use tessera_model::Millis;
use tessera_model::life::{Outcome, ProgramExit};
use tessera_model::sizing::OOM_EXIT_CODE;

use super::KillReason;
use crate::xids;

/// Why the shepherd itself signalled the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signalled {
    /// The controller requested its end.
    Stopped(StopCause),
    /// Its time limit was reached.
    TimeLimit(Millis),
    /// It was killed at once.
    Killed(KillReason),
}

/// The evidence about an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The exit status from the kernel.
    pub exit: ProgramExit,
    /// Whether, and why, the program was signalled before it ended.
    pub signalled: Option<Signalled>,
    /// Whether the kernel killed a process of the attempt for lack of memory.
    pub out_of_memory: bool,
    /// Whether the last lines of the program state that GPU memory ran out.
    pub out_of_gpu_memory: bool,
    /// Whether the machine ends all processes, since it shuts down.
    pub machine_stops: bool,
}

/// Decides how an attempt ended, with a sentence for users if the outcome is not enough.
///
/// A program that returns 0 after a cancel has done its work. After a pre-emption that can't be
/// reported from a program that saved a checkpoint, so that it counts as pre-empted and runs again. The same holds
/// while the machine shuts down: its SIGTERM reaches programs too, and an attempt that it ended is lost.
pub fn verdict(evidence: Evidence) -> (Outcome, String) {
    let plain = |outcome| (outcome, String::new());
    match (evidence.signalled, evidence.exit) {
        (None, _) if evidence.machine_stops => {
            (Outcome::Lost, "its node was shut down or restarted".to_owned())
        }
        (Some(Signalled::TimeLimit(limit)), _) => {
            (Outcome::TimedOut, format!("it ran longer than its time limit of {limit}"))
        }
        (Some(Signalled::Stopped(StopCause::Preempt)), _) => plain(Outcome::Preempted),
        (Some(Signalled::Stopped(StopCause::Reshare)), _) => {
            (Outcome::Preempted, "it is started again with another share".to_owned())
        }
        (Some(Signalled::Stopped(StopCause::Move)), _) => {
            (Outcome::Preempted, "it continues elsewhere".to_owned())
        }
        (Some(Signalled::Stopped(StopCause::Grow)), _) => {
            (Outcome::Preempted, "it continues with more GPU memory".to_owned())
        }
        (
            Some(Signalled::Stopped(StopCause::Cancel) | Signalled::Killed(_)) | None,
            ProgramExit::Code(0),
        ) => plain(Outcome::Succeeded),
        (
            Some(Signalled::Stopped(StopCause::Cancel)),
            ProgramExit::Code(_) | ProgramExit::Signal(_),
        ) => plain(Outcome::Cancelled),
        (Some(Signalled::Killed(reason)), ProgramExit::Signal(9)) => killed(reason),
        // A shell reports a killed command in this way.
        (None, ProgramExit::Signal(9) | ProgramExit::Code(137)) if evidence.out_of_memory => {
            (Outcome::OutOfMemory, HOST_MEMORY_DETAIL.to_owned())
        }
        (None, ProgramExit::Code(OOM_EXIT_CODE)) => {
            let detail =
                format!("it reported by its exit status {OOM_EXIT_CODE} that GPU memory ran out");
            (Outcome::OutOfMemory, detail)
        }
        (None, ProgramExit::Code(_) | ProgramExit::Signal(1..=8 | 10..))
            if evidence.out_of_gpu_memory =>
        {
            (Outcome::OutOfMemory, "it ran out of GPU memory".to_owned())
        }
        (Some(Signalled::Killed(_)) | None, ProgramExit::Code(_)) => plain(Outcome::Failed),
        (Some(Signalled::Killed(_)) | None, ProgramExit::Signal(number)) => {
            (Outcome::Failed, format!("killed by signal {number}{}", signal_name(number)))
        }
    }
}

/// Returns outcome and text of the end of an attempt that was killed.
pub fn killed(reason: KillReason) -> (Outcome, String) {
    let (outcome, detail) = match reason {
        KillReason::LeaseRanOut => (Outcome::Lost, "the node's lease expired"),
        KillReason::OldGeneration => (Outcome::Lost, "the node had been declared lost"),
        KillReason::Revoked => (Outcome::NotStarted, "the launch was revoked"),
        KillReason::Xid(xid) => {
            return (Outcome::Failed, format!("the GPU reported {} of it", xids::describe(xid)));
        }
        KillReason::GpuFailed { xid: Some(xid) } => {
            return (Outcome::Lost, format!("its GPU failed: {}", xids::describe(xid)));
        }
        KillReason::MpsFault => (Outcome::Collateral, "the slice's MPS server failed"),
        KillReason::GpuFailed { xid: None } => (Outcome::Lost, "its GPU failed"),
    };
    (outcome, detail.to_owned())
}

/// Splits a wait status.
pub fn exit_of(status: i32) -> ProgramExit {
    let [low, code, ..] = status.to_le_bytes();
    match low & 0x7f {
        0 => ProgramExit::Code(code),
        signal => ProgramExit::Signal(signal),
    }
}

fn signal_name(number: u8) -> &'static str {
    match number {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL) from outside",
        11 => " (SIGSEGV)",
        13 => " (SIGPIPE)",
        15 => " (SIGTERM) from outside",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The evidence of an ordinary end.
    const fn seen(exit: ProgramExit, signalled: Option<Signalled>) -> Evidence {
        let (out_of_memory, out_of_gpu_memory) = (false, false);
        Evidence { exit, signalled, out_of_memory, out_of_gpu_memory, machine_stops: false }
    }

    fn outcome(exit: ProgramExit, signalled: Option<Signalled>, out_of_memory: bool) -> Outcome {
        verdict(Evidence { out_of_memory, ..seen(exit, signalled) }).0
    }

    #[test]
    fn an_attempt_that_the_shutdown_of_its_machine_ended_is_lost_whatever_its_program_returned() {
        let cancel = Some(Signalled::Stopped(StopCause::Cancel));
        for exit in [ProgramExit::Code(0), ProgramExit::Code(143), ProgramExit::Signal(15)] {
            let ended =
                |signalled| verdict(Evidence { machine_stops: true, ..seen(exit, signalled) }).0;
            assert_eq!(ended(None), Outcome::Lost, "{exit:?}");
            assert_ne!(ended(cancel), Outcome::Lost, "{exit:?}: it was to end anyway");
        }
        assert_eq!(outcome(ProgramExit::Signal(15), None, false), Outcome::Failed);
    }

    #[test]
    fn a_program_that_reports_lack_of_gpu_memory_ran_out_of_it() {
        let outcome = |exit, signalled| {
            let (out_of_memory, out_of_gpu_memory) = (true, true);
            verdict(Evidence { out_of_memory, out_of_gpu_memory, ..seen(exit, signalled) })
        };
        let cancel = Some(Signalled::Stopped(StopCause::Cancel));
        for exit in [ProgramExit::Code(1), ProgramExit::Signal(6)] {
            assert_eq!(outcome(exit, None).0, Outcome::OutOfMemory, "{exit:?}");
            assert!(outcome(exit, None).1.contains("GPU memory"));
            assert_eq!(outcome(exit, cancel).0, Outcome::Cancelled, "{exit:?}");
        }
        assert_eq!(
            outcome(ProgramExit::Code(0), None).0,
            Outcome::Succeeded,
            "it succeeded without it"
        );
        // The kernel's report about the host's memory has precedence.
        assert!(outcome(ProgramExit::Signal(9), None).1.contains("host memory"));
    }

    #[test]
    fn each_end_has_its_outcome() {
        let cancel = Some(Signalled::Stopped(StopCause::Cancel));
        let preempt = Some(Signalled::Stopped(StopCause::Preempt));
        let late = Some(Signalled::TimeLimit(Millis::from_secs(1)));
        let lease = Some(Signalled::Killed(KillReason::LeaseRanOut));
        let xid = Some(Signalled::Killed(KillReason::Xid(31)));
        let gpu = Some(Signalled::Killed(KillReason::GpuFailed { xid: Some(79) }));
        let revoked = Some(Signalled::Killed(KillReason::Revoked));
        for (exit, signalled, memory, expected) in [
            (ProgramExit::Code(0), None, false, Outcome::Succeeded),
            (ProgramExit::Code(3), None, false, Outcome::Failed),
            (ProgramExit::Signal(11), None, false, Outcome::Failed),
            (ProgramExit::Signal(9), None, true, Outcome::OutOfMemory),
            (ProgramExit::Code(1), None, true, Outcome::Failed),
            (ProgramExit::Code(137), None, true, Outcome::OutOfMemory),
            (ProgramExit::Code(137), None, false, Outcome::Failed),
            (ProgramExit::Code(112), None, false, Outcome::OutOfMemory),
            (ProgramExit::Code(112), cancel, false, Outcome::Cancelled),
            (ProgramExit::Code(112), preempt, false, Outcome::Preempted),
            (ProgramExit::Code(0), cancel, false, Outcome::Succeeded),
            (ProgramExit::Code(1), cancel, false, Outcome::Cancelled),
            (ProgramExit::Signal(15), cancel, false, Outcome::Cancelled),
            (ProgramExit::Code(0), preempt, false, Outcome::Preempted),
            (ProgramExit::Signal(9), preempt, false, Outcome::Preempted),
            (ProgramExit::Signal(15), late, false, Outcome::TimedOut),
            (ProgramExit::Code(0), late, false, Outcome::TimedOut),
            (ProgramExit::Signal(9), lease, false, Outcome::Lost),
            (ProgramExit::Code(0), lease, false, Outcome::Succeeded),
            (ProgramExit::Code(2), lease, false, Outcome::Failed),
            (ProgramExit::Signal(9), revoked, false, Outcome::NotStarted),
            (ProgramExit::Signal(9), xid, false, Outcome::Failed),
            (ProgramExit::Signal(9), gpu, false, Outcome::Lost),
            (ProgramExit::Code(0), gpu, false, Outcome::Succeeded),
        ] {
            assert_eq!(outcome(exit, signalled, memory), expected, "{exit:?} {signalled:?}");
        }
    }

    #[test]
    fn wait_statuses_are_split_as_the_kernel_packs_them() {
        assert_eq!(exit_of(0), ProgramExit::Code(0));
        assert_eq!(exit_of(3 << 8), ProgramExit::Code(3));
        assert_eq!(exit_of(255 << 8), ProgramExit::Code(255));
        assert_eq!(exit_of(9), ProgramExit::Signal(9));
        assert_eq!(exit_of(11 | 0x80), ProgramExit::Signal(11));
    }
}
