//! Retention of ended attempts' outputs: the oldest are removed first, by age, by total size, and
//! by number.

use std::collections::{BTreeMap, VecDeque};

use tessera_model::{AttemptId, Bytes, Millis, RetentionTime};

/// How much may be kept, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionLimits {
    /// How long outputs are kept after the end.
    pub age: RetentionTime,
    /// How much space all outputs may take.
    pub bytes: Bytes,
    /// Of how many attempts outputs are kept.
    pub attempts: usize,
}

/// Why an output was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalReason {
    /// It exceeded the age limit.
    Age,
    /// All outputs together exceeded the size limit.
    Bytes,
    /// There were outputs of too many attempts.
    Attempts,
}

/// The output of an ended attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptOutput {
    /// The attempt's id.
    pub attempt: AttemptId,
    /// When it ended, in milliseconds since 1970.
    pub over_unix: Millis,
    /// The size of its files.
    pub bytes: Bytes,
}

/// Maximum number of removals that are remembered for later readers.
const REMEMBERED_MAX: usize = 10_000;

/// The kept outputs of attempts whose ends were acknowledged, and recent removals.
#[derive(Debug)]
pub struct OutputRetention {
    limits: RetentionLimits,
    /// The kept outputs, the oldest first.
    left: VecDeque<KeptOutput>,
    bytes: u64,
    removed: BTreeMap<AttemptId, (RemovalReason, Millis)>,
    /// Recent removals, the oldest first.
    removals: VecDeque<AttemptId>,
}

impl OutputRetention {
    /// Begins with nothing.
    pub const fn new(limits: RetentionLimits) -> Self {
        Self {
            limits,
            left: VecDeque::new(),
            bytes: 0,
            removed: BTreeMap::new(),
            removals: VecDeque::new(),
        }
    }

    /// Adds the output of the attempt that ended last.
    pub fn add(&mut self, left: KeptOutput) {
        self.bytes = self.bytes.saturating_add(left.bytes.get());
        self.left.push_back(left);
    }

    /// Takes the attempts whose outputs must be removed now, at most `max` of them.
    pub fn due(&mut self, now_unix: Millis, max: usize) -> Vec<(KeptOutput, RemovalReason)> {
        let mut due = Vec::new();
        while due.len() < max
            && let Some(why) = self.why_oldest_goes(now_unix)
            && let Some(oldest) = self.left.pop_front()
        {
            self.bytes = self.bytes.saturating_sub(oldest.bytes.get());
            self.remember(oldest.attempt, why, now_unix);
            due.push((oldest, why));
        }
        due
    }

    fn why_oldest_goes(&self, now_unix: Millis) -> Option<RemovalReason> {
        let oldest = self.left.front()?;
        if self.limits.age.is_over(oldest.over_unix, now_unix) {
            Some(RemovalReason::Age)
        } else if self.bytes > self.limits.bytes.get() {
            Some(RemovalReason::Bytes)
        } else {
            (self.left.len() > self.limits.attempts).then_some(RemovalReason::Attempts)
        }
    }

    fn remember(&mut self, attempt: AttemptId, why: RemovalReason, now_unix: Millis) {
        self.removed.insert(attempt, (why, now_unix));
        self.removals.push_back(attempt);
        if self.removals.len() > REMEMBERED_MAX
            && let Some(forgotten) = self.removals.pop_front()
        {
            self.removed.remove(&forgotten);
        }
    }

    /// Returns why an output doesn't exist, for its reader; `now_unix` is the time from which its
    /// age is counted.
    pub fn explain(&self, attempt: AttemptId, now_unix: Millis) -> String {
        let RetentionLimits { age, bytes, attempts } = self.limits;
        if let Some((why, at)) = self.removed.get(&attempt) {
            let ago = ago(now_unix.minus(*at));
            return match why {
                RemovalReason::Age => {
                    format!("it was removed {ago}, after {age}; set --keep-outputs")
                }
                RemovalReason::Bytes => format!(
                    "it was removed {ago}: outputs took more than {bytes}; set --keep-outputs-bytes"
                ),
                RemovalReason::Attempts => format!(
                    "it was removed {ago}: there were outputs of more than {attempts} attempts; \
                     set keep_attempts"
                ),
            };
        }
        // Ids of attempts contain the time when they were made: before their ends.
        if let Some(made) = made_unix(attempt)
            && age.is_over(made, now_unix)
        {
            return format!(
                "it went to /dev/null, or was removed: outputs are kept for {age} after the end; \
                 set --keep-outputs"
            );
        }
        format!(
            "it went to /dev/null, or was removed: the newest are kept for {age}, up to {bytes} \
             in all; set --keep-outputs or --keep-outputs-bytes"
        )
    }
}

fn made_unix(attempt: AttemptId) -> Option<Millis> {
    let (secs, nanos) = attempt.as_uuid().get_timestamp()?.to_unix();
    Some(Millis::from_secs(secs).plus(Millis::new(u64::from(nanos / 1_000_000))))
}

fn ago(span: Millis) -> String {
    match span.get() / 1_000 {
        secs @ 0..=119 => format!("{secs} s ago"),
        secs @ 120..=7_199 => format!("{} minutes ago", secs / 60),
        secs @ 7_200..=172_799 => format!("{} hours ago", secs / 3_600),
        secs => format!("{} days ago", secs / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY: u64 = 86_400_000;

    fn id(number: u64) -> AttemptId {
        AttemptId::from_uuid(uuid::Uuid::from_u128(number.into()))
    }

    fn left(number: u64, over: u64, bytes: u64) -> KeptOutput {
        KeptOutput { attempt: id(number), over_unix: Millis::new(over), bytes: Bytes::new(bytes) }
    }

    fn outputs(limits: RetentionLimits, all: &[KeptOutput]) -> OutputRetention {
        let mut outputs = OutputRetention::new(limits);
        all.iter().for_each(|left| outputs.add(*left));
        outputs
    }

    fn limits(days: u64, bytes: u64, attempts: usize) -> RetentionLimits {
        RetentionLimits { age: RetentionTime::days(days), bytes: Bytes::new(bytes), attempts }
    }

    #[test]
    fn each_limit_removes_the_oldest_and_names_itself() {
        let now = Millis::new(8 * DAY);
        let all = [left(1, 0, 10), left(2, 5 * DAY, 60), left(3, 7 * DAY, 30), left(4, 8 * DAY, 1)];
        let mut outputs = outputs(limits(7, 80, 1), &all);

        let due = outputs.due(now, 10);

        let gone: Vec<_> = due.iter().map(|(left, why)| (left.attempt, *why)).collect();
        assert_eq!(
            gone,
            [
                (id(1), RemovalReason::Age),
                (id(2), RemovalReason::Bytes),
                (id(3), RemovalReason::Attempts)
            ]
        );
        let later = now.plus(Millis::from_secs(3_600));
        for (number, words) in
            [(1, "60 minutes ago, after 7d"), (2, "more than 80 B"), (3, "1 att")]
        {
            let text = outputs.explain(id(number), later);
            assert!(text.contains(words) && text.contains("set "), "{text}");
        }
    }

    #[test]
    fn a_forgotten_removal_is_reported_by_the_ids_age() {
        let outputs = OutputRetention::new(limits(7, 80, 1));
        let stamp = uuid::Timestamp::from_unix(uuid::NoContext, 1_000_000, 0);
        let old = AttemptId::from_uuid(uuid::Uuid::new_v7(stamp));
        let made = Millis::from_secs(1_000_000);

        let text = outputs.explain(old, made.plus(Millis::new(8 * DAY)));
        assert!(text.contains("kept for 7d after the end"), "{text}");
        let text = outputs.explain(old, made.plus(Millis::new(DAY)));
        assert!(text.contains("up to 80 B in all"), "{text}");
    }

    proptest! {
        #[test]
        fn kept_outputs_keep_every_limit_and_removed_ones_exceeded_one(
            sizes in prop::collection::vec((0_u64..10, 0_u64..100), 0..50),
            days in 0_u64..10,
            bytes in 0_u64..2_000,
            attempts in 0_usize..50,
            max in 1_usize..60,
        ) {
            let mut over = 0;
            let all: Vec<_> = (0..).zip(&sizes).map(|(number, (gap, bytes))| {
                over += gap * DAY / 4;
                left(number, over, *bytes)
            }).collect();
            let now = Millis::new(over + DAY);
            let mut outputs = outputs(limits(days, bytes, attempts), &all);

            let due = outputs.due(now, max);

            // Removals are the oldest first, without repetition or omission, and bounded.
            let gone: Vec<_> = due.iter().map(|(left, _)| *left).collect();
            prop_assert_eq!(&gone[..], &all[..gone.len()]);
            prop_assert!(gone.len() <= max);
            let stays = &all[gone.len()..];
            let taken: u64 = stays.iter().map(|left| left.bytes.get()).sum();
            let kept = stays.len() <= attempts && taken <= bytes
                && stays.iter().all(|left| !RetentionTime::days(days).is_over(left.over_unix, now));
            prop_assert!(kept || gone.len() == max);
            // The last removal was necessary: with that output a limit was exceeded.
            if let Some((last, why)) = due.last() {
                let before = taken + last.bytes.get();
                let broken = match why {
                    RemovalReason::Age => RetentionTime::days(days).is_over(last.over_unix, now),
                    RemovalReason::Bytes => before > bytes,
                    RemovalReason::Attempts => stays.len() + 1 > attempts,
                };
                prop_assert!(broken);
            }
        }
    }
}
