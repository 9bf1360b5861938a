//! The explanations of jobs whose sharing the controller decides.

use std::fmt::Write as _;

use tessera_model::JobId;

use super::hosts::Host;
use super::weigh::{Member, SharingRefusal};
use super::{ConsideredWay, Joiner, SharingWay, memory_of};
use crate::decision::Decision;
use crate::predictor::SpeedRange;
use crate::view::QueuedJob;

/// The job to which it is explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The job that has the slice.
    Host,
    /// The job that joins it.
    Joiner,
}

/// Returns the clause that a job shares its slice with another one.
pub(super) fn shares(other: JobId, considered: &ConsideredWay, side: Side) -> String {
    let way = match (considered.way, side) {
        (SharingWay::Mps([sm, _]), Side::Host) | (SharingWay::Mps([_, sm]), Side::Joiner) => {
            format!("under MPS with {sm} of the multiprocessors")
        }
        (SharingWay::Kernel, _) => "kernel by kernel".to_owned(),
    };
    let mut text = format!("; by share = auto it shares the slice with job {other} {way}");
    if let Some(figures) = considered.figures {
        let (own, others) = match side {
            Side::Host => (figures.host, figures.joiner),
            Side::Joiner => (figures.joiner, figures.host),
        };
        let _ = write!(text, ": it runs at {}, job {other} at {}", speed(own), speed(others));
    }
    if let Ok(least) = considered.verdict {
        let _ = write!(text, ", so that both do at least {} % of one job alone", least / 10);
    }
    text
}

/// Writes "71 % of its speed alone (60 to 80 %)".
fn speed(range: SpeedRange) -> String {
    let SpeedRange { low, expected, high } = range;
    format!("{} % of its speed alone ({} to {} %)", expected / 10, low / 10, high / 10)
}

/// Adds to the reason of a waiting job why it joins no other one.
pub(super) fn explain_wait(
    decisions: &mut [Decision],
    hosts: &[Host<'_>],
    joiner: Joiner<'_>,
    considered: &[(usize, ConsideredWay)],
) {
    let waiting = decisions.iter_mut().find_map(|decision| match decision {
        Decision::Wait { job, why, .. } if *job == joiner.job.id => Some(why),
        Decision::Wait { .. }
        | Decision::Start { .. }
        | Decision::Reshape { .. }
        | Decision::Preempt { .. } => None,
    });
    let Some(why) = waiting else { return };
    if considered.is_empty() {
        why.summary.push_str(
            "; by share = auto it could share, but no job of its user that could be joined starts or \
             shares a slice",
        );
        return;
    }
    for (at, way) in considered.iter().take(REFUSALS_MAX) {
        let Some(host) = hosts.get(*at) else { continue };
        why.summary.push_str(&refused(host.job, way));
    }
}

/// The most ways that one explanation names. Chosen: two hosts, each in both ways.
const REFUSALS_MAX: usize = 4;

/// Returns the clause that a way of sharing was refused, with its predictions.
fn refused(host: JobId, considered: &ConsideredWay) -> String {
    let Err(refusal) = considered.verdict else { return String::new() };
    let way = match considered.way {
        SharingWay::Mps(_) => "under MPS",
        SharingWay::Kernel => "kernel by kernel",
    };
    let figures = considered.figures.map_or_else(String::new, |figures| {
        format!(
            ", where it would run at {} and job {host} at {},",
            speed(figures.joiner),
            speed(figures.host)
        )
    });
    format!(
        "; by share = auto it doesn't join job {host} {way}{figures} since {}",
        why(refusal, host)
    )
}

fn why(refusal: SharingRefusal, host: JobId) -> String {
    let name = |member| match member {
        Member::Host => format!("job {host}"),
        Member::Joiner => "this job".to_owned(),
    };
    match refusal {
        SharingRefusal::Memory => "the slice has too little memory for both".to_owned(),
        SharingRefusal::NotOffered => "the node can't share slices in this way".to_owned(),
        SharingRefusal::NotMeasured(member) => {
            format!(
                "how busy the task of {} is was never measured; one run of it with --share kernel measures that",
                name(member)
            )
        }
        SharingRefusal::Bandwidth => "both may be bound by memory bandwidth (rule 1)".to_owned(),
        SharingRefusal::NotPredicted => "no trusted model predicts their speeds".to_owned(),
        SharingRefusal::NoRunTime(member) => {
            format!("the run time of {} is not known", name(member))
        }
        SharingRefusal::TimeLimit(member) => {
            format!("{} might not end within its time limit", name(member))
        }
        SharingRefusal::Deadline(member) => format!("{} has a deadline", name(member)),
        SharingRefusal::NoPartLeft => {
            format!("job {host} leaves too few of the multiprocessors")
        }
        SharingRefusal::TooSlow(member, low, least) => format!(
            "{} might run at {} % of its speed, and at least {} % are required",
            name(member),
            low / 10,
            least / 10
        ),
        SharingRefusal::Little(certain) => {
            format!("both together might do only {} % of one job alone", certain / 10)
        }
        SharingRefusal::Later => "both might end later than one after the other".to_owned(),
    }
}

/// Adds to the reasons of jobs that start alone that no other job shares their slices.
pub(super) fn explain_alone(decisions: &mut [Decision], queue: &[&QueuedJob], hosts: &[Host<'_>]) {
    for decision in decisions {
        let Decision::Start { job, place, why } = decision else { continue };
        let is_open = |queued: &&&QueuedJob| queued.id == *job && memory_of(queued).is_some();
        let is_host = hosts.iter().any(|host| host.job == *job);
        if place.share.is_none() && is_host && queue.iter().any(|queued| is_open(&queued)) {
            why.summary.push_str(
                "; by share = auto it has the slice to itself, since no job that waits may join it",
            );
        }
    }
}
