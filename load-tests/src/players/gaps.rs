//! The high program's gaps in the device's trace, and what the low one did in each.

use super::played::{Played, Ran};

/// One gap of the high program: from the end of a kernel until the next one was launched. Times are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlayedGap {
    /// When the high program's kernel ended.
    pub begin: u64,
    /// When its next one was launched.
    pub end: u64,
    /// When the first of the low program's kernels began that was launched for this gap.
    pub first: Option<u64>,
    /// The end of the low program's last kernel in it, at most the gap's own end.
    pub last: u64,
    /// How many of the low program's kernels began in it.
    pub kernels: u64,
    /// How long these ran in it.
    pub used: u64,
}

impl PlayedGap {
    /// Returns its length.
    pub const fn length(&self) -> u64 {
        self.end - self.begin
    }

    /// Returns for how long nothing ran between the low program's first kernel in it and the end of the last one.
    pub fn idle_between_kernels(&self) -> u64 {
        let first = self.first.unwrap_or(self.last);
        self.last.saturating_sub(first).saturating_sub(self.used)
    }

    /// Returns how much later than the gap the low program's first kernel began, without the context switch before it.
    /// `None` if the gap was not filled.
    pub fn wake_up(&self, switch: u64) -> Option<u64> {
        Some((self.first? - self.begin).saturating_sub(switch))
    }
}

impl Played {
    /// Returns the high program's gaps in their order, without those of no length.
    pub fn gaps(&self) -> Vec<PlayedGap> {
        let claimed = self.claimed();
        let mut low: Vec<&Ran> = self.low.iter().filter(|ran| !ran.spans.is_empty()).collect();
        low.sort_unstable_by_key(|ran| ran.spans[0].0);
        let mut low = low.into_iter().peekable();
        let mut gaps = Vec::new();
        for pair in claimed.windows(2) {
            let mut gap = PlayedGap { begin: pair[0].1, end: pair[1].0, ..PlayedGap::default() };
            if gap.end <= gap.begin {
                continue;
            }
            // Kernels that began before the gap were not launched for it.
            while low.next_if(|ran| ran.spans[0].0 < gap.begin).is_some() {}
            while let Some(ran) = low.next_if(|ran| ran.spans[0].0 < gap.end) {
                gap.take(ran);
            }
            gaps.push(gap);
        }
        gaps
    }
}

impl PlayedGap {
    fn take(&mut self, ran: &Ran) {
        self.first.get_or_insert(ran.spans[0].0);
        self.kernels += 1;
        for (from, until) in &ran.spans {
            let until = (*until).min(self.end);
            self.used += until.saturating_sub(*from);
            self.last = self.last.max(until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(queued: u64, spans: &[(u64, u64)]) -> Ran {
        Ran { queued, spans: spans.to_vec() }
    }

    #[test]
    fn kernels_count_for_the_gap_in_which_they_began() {
        let played = Played {
            window: (0, 1_000),
            tasks: Vec::new(),
            overslept: 0,
            // The second kernel waited from 300 to 350 for a low one; the third followed at once.
            high: vec![
                ran(0, &[(0, 100)]),
                ran(300, &[(350, 400)]),
                ran(390, &[(400, 450)]),
                ran(900, &[(900, 1_000)]),
            ],
            low: vec![
                ran(210, &[(210, 250)]),
                ran(120, &[(150, 200)]),
                ran(280, &[(280, 350)]),
                ran(500, &[(500, 600), (700, 800)]),
            ],
        };

        let gaps = played.gaps();

        let first =
            PlayedGap { begin: 100, end: 300, first: Some(150), last: 300, kernels: 3, used: 110 };
        let second =
            PlayedGap { begin: 450, end: 900, first: Some(500), last: 800, kernels: 1, used: 200 };
        assert_eq!(gaps, [first, second]);
        assert_eq!((first.wake_up(20), first.wake_up(80)), (Some(30), Some(0)));
        assert_eq!(PlayedGap { first: None, ..second }.wake_up(0), None);
    }
}
