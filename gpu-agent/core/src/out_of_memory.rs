//! Recognises that a program ran out of GPU memory, from all evidence about its end. Pure.
//!
//! There are four kinds of evidence: the program's output ([`text`]), refused allocations, the exit
//! status, and the observed memory. Text alone is weak: programs quote, catch and retry. A refusal
//! alone doesn't prove it either. PyTorch frees its cache and tries again, cuDNN and XLA probe, and
//! TensorFlow prints "not a failure".

pub mod lines;
pub mod text;

use tessera_model::life::ProgramExit;
use tessera_model::{Bytes, Millis};

use self::text::TextEvidence;

/// The program survived refusals that were longer than this before its end. A program that can't
/// continue ends within seconds, even if it writes a trace and waits for its other ranks.
pub const REFUSED_BEFORE_END_MAX: Millis = Millis::from_secs(30);

/// The observed peak that makes text credible, in thousandths of the slice. Samples miss short
/// peaks, and a refused allocation is never part of a peak.
const CREDIBLE_PEAK: u64 = 500;

/// The observed peak that counts as full although no observer saw a refusal, in thousandths of the slice.
const FULL_PEAK: u64 = 900;

/// Refusals of GPU memory that an observer inside the program saw: a framework's allocator that
/// gave up, or the driver's error 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedMemory {
    /// How many requests were finally refused: the allocator had freed its cache and tried again.
    pub given_up: u32,
    /// The time from the last refusal to the end.
    pub before_end: Millis,
    /// Iterations that the program completed after it.
    pub iterations_after: u64,
}

/// The evidence about an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEvidence<'e> {
    /// The exit status.
    pub exit: ProgramExit,
    /// The output that names the error; `None` if there is none.
    pub text: Option<&'e TextEvidence>,
    /// What an observer inside it saw; `None` without an observer.
    pub refused: Option<RefusedMemory>,
    /// The peak GPU memory that it was observed to have; `None` if it was never observed.
    pub peak: Option<Bytes>,
    /// The memory of its slice, or its limit there; `None` if that is unknown.
    pub slice: Option<Bytes>,
}

/// How certain it is that a program ran out of GPU memory, the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvidenceStrength {
    /// Only its text. This is a reason to run the job again, but not to learn a size.
    Text,
    /// Its text, and a peak of at least half of its memory.
    TextAndMemory,
    /// A refusal that it did not survive.
    Refused,
}

/// Decides whether a program ran out of GPU memory; `None` if it did not.
///
/// A program that returns 0 never did: it may have survived a refusal.
pub fn recognise(evidence: &MemoryEvidence<'_>) -> Option<EvidenceStrength> {
    if evidence.exit == ProgramExit::Code(0) {
        return None;
    }
    let reaches = |thousandths: u64| {
        let (Some(peak), Some(slice)) = (evidence.peak, evidence.slice) else { return false };
        u128::from(peak.get()) * 1_000 >= u128::from(slice.get()) * u128::from(thousandths)
    };
    match (evidence.refused, evidence.text) {
        (Some(refused), text) if is_final(&refused, text.is_some()) => {
            Some(EvidenceStrength::Refused)
        }
        // The observer saw all requests of its process, and none was refused at the end. A request
        // of another process may have been refused, or a limit below the slice was reached.
        (Some(_), Some(text)) => {
            (reaches(FULL_PEAK) || text.is_own_limit).then_some(EvidenceStrength::TextAndMemory)
        }
        (None, Some(_)) if reaches(CREDIBLE_PEAK) => Some(EvidenceStrength::TextAndMemory),
        (None, Some(_)) => Some(EvidenceStrength::Text),
        (Some(_) | None, None) => None,
    }
}

/// Returns whether a program ended by a refusal. A program that writes nothing about it must have
/// ended at once.
const fn is_final(refused: &RefusedMemory, is_named: bool) -> bool {
    let within = if is_named { REFUSED_BEFORE_END_MAX.get() } else { AT_ONCE.get() };
    refused.given_up > 0 && refused.iterations_after == 0 && refused.before_end.get() <= within
}

/// How soon a program ends after a refusal if it writes nothing about it.
const AT_ONCE: Millis = Millis::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn text(is_own_limit: bool) -> TextEvidence {
        TextEvidence { line: "CUDA out of memory".into(), stack: "CUDA", is_own_limit }
    }

    fn evidence<'e>(
        text: Option<&'e TextEvidence>,
        refused: Option<RefusedMemory>,
        peak_mib: u64,
    ) -> MemoryEvidence<'e> {
        MemoryEvidence {
            exit: ProgramExit::Code(1),
            text,
            refused,
            peak: Some(Bytes::from_mib(peak_mib)),
            slice: Some(Bytes::from_mib(10_000)),
        }
    }

    const AT_THE_END: RefusedMemory =
        RefusedMemory { given_up: 1, before_end: Millis::from_secs(2), iterations_after: 0 };

    #[test]
    fn a_refusal_at_the_end_is_enough_whatever_the_program_writes() {
        let silent = evidence(None, Some(AT_THE_END), 3_000);

        assert_eq!(recognise(&silent), Some(EvidenceStrength::Refused));
    }

    #[test]
    fn a_survived_refusal_does_not_count_even_if_the_text_names_it() {
        let named = text(false);
        for survived in [
            RefusedMemory { iterations_after: 40, ..AT_THE_END },
            RefusedMemory { before_end: Millis::from_secs(600), ..AT_THE_END },
            RefusedMemory::default(),
        ] {
            assert_eq!(recognise(&evidence(Some(&named), Some(survived), 4_000)), None);
            assert_eq!(recognise(&evidence(None, Some(survived), 4_000)), None);
        }
    }

    #[test]
    fn text_alone_is_weak_and_stronger_with_a_peak_of_half_of_the_slice() {
        let named = text(false);

        assert_eq!(recognise(&evidence(Some(&named), None, 4_999)), Some(EvidenceStrength::Text));
        let credible = recognise(&evidence(Some(&named), None, 5_000));
        assert_eq!(credible, Some(EvidenceStrength::TextAndMemory));
        let unseen = MemoryEvidence { peak: None, ..evidence(Some(&named), None, 0) };
        assert_eq!(recognise(&unseen), Some(EvidenceStrength::Text));
    }

    #[test]
    fn an_exhausted_pool_below_the_slice_is_out_of_memory_without_a_refusal() {
        let limited = text(true);
        let none = Some(RefusedMemory::default());

        assert!(recognise(&evidence(Some(&limited), none, 3_000)).is_some());
        assert!(recognise(&evidence(Some(&text(false)), none, 3_000)).is_none());
        assert!(recognise(&evidence(Some(&text(false)), none, 9_500)).is_some(), "another process");
    }

    #[test]
    fn a_program_that_returned_0_did_not_run_out_of_memory() {
        let named = text(false);
        let done = MemoryEvidence {
            exit: ProgramExit::Code(0),
            ..evidence(Some(&named), Some(AT_THE_END), 10_000)
        };

        assert_eq!(recognise(&done), None);
    }
}
