//! Finds the instance that an error affects. The driver names it by a small number that it reuses
//! for later instances, so a number is only meaningful together with a time. Pure.

use std::collections::{BTreeMap, VecDeque};

use tessera_model::Millis;
use tessera_model::mig::Slot;

/// How many layouts are remembered: far more than a GPU can have while an error report is delayed.
const LAYOUTS_MAX: usize = 64;

/// The numbers of one GPU's instances, over time.
#[derive(Clone, Debug, Default)]
pub struct InstanceNumbers {
    /// When each layout was first seen, the oldest first.
    layouts: VecDeque<(Millis, BTreeMap<u32, Slot>)>,
}

impl InstanceNumbers {
    /// Records the instances that exist at `now`.
    pub fn record_standing(&mut self, now: Millis, standing: BTreeMap<u32, Slot>) {
        if self.layouts.back().is_some_and(|(_, known)| *known == standing) {
            return;
        }
        if self.layouts.len() >= LAYOUTS_MAX {
            self.layouts.pop_front();
        }
        self.layouts.push_back((now, standing));
    }

    /// Returns the slot whose instance had this number at a time.
    ///
    /// A layout applies from the time at which it was read. Only idle instances are destroyed, and
    /// no program runs on a new one before it was read. So an error in between belongs to the
    /// layout before.
    pub fn slot(&self, number: u32, at: Millis) -> Option<Slot> {
        let then = self.layouts.iter().rev().find(|(since, _)| *since <= at);
        // For an error before the first reading, the first layout is the best guess.
        let (_, standing) = then.or_else(|| self.layouts.front())?;
        standing.get(&number).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_model::mig::ProfileId;

    fn slot(start: u8) -> Slot {
        Slot { start, profile: ProfileId(19) }
    }

    #[test]
    fn an_error_goes_to_the_instance_that_had_the_number_when_it_happened() {
        let mut numbers = InstanceNumbers::default();
        let at = Millis::new;
        numbers.record_standing(at(10), BTreeMap::from([(7, slot(0)), (8, slot(1))]));
        numbers.record_standing(at(20), BTreeMap::from([(8, slot(1))]));
        numbers.record_standing(at(30), BTreeMap::from([(8, slot(1)), (7, slot(5))]));

        assert_eq!(numbers.slot(7, at(5)), Some(slot(0)));
        assert_eq!(numbers.slot(7, at(19)), Some(slot(0)));
        assert_eq!(numbers.slot(7, at(25)), None);
        assert_eq!(numbers.slot(7, at(30)), Some(slot(5)));
        assert_eq!(numbers.slot(8, at(99)), Some(slot(1)));
        assert_eq!(numbers.slot(9, at(99)), None);
    }

    #[test]
    fn without_history_no_instance_is_named_and_history_is_bounded() {
        let mut numbers = InstanceNumbers::default();
        assert_eq!(numbers.slot(7, Millis::new(1)), None);
        for time in 0..1_000_u64 {
            let start = u8::try_from(time % 7).unwrap();
            numbers.record_standing(Millis::new(time), BTreeMap::from([(7, slot(start))]));
        }

        assert_eq!(numbers.layouts.len(), LAYOUTS_MAX);
        assert_eq!(numbers.slot(7, Millis::new(999)), Some(slot(5)));
    }
}
