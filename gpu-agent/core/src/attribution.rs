//! Which instance an error struck. The driver names it by a small number that it gives anew to
//! later instances, so that the number only means something together with a time. Pure.

use std::collections::{BTreeMap, VecDeque};

use tessera_model::Millis;
use tessera_model::mig::Slot;

/// Layouts that are remembered: far more than a GPU can go through while an error is on its way.
const LAYOUTS_MAX: usize = 64;

/// The numbers of one GPU's instances, over time.
#[derive(Clone, Debug, Default)]
pub struct InstanceNumbers {
    /// When each was first seen, oldest first.
    layouts: VecDeque<(Millis, BTreeMap<u32, Slot>)>,
}

impl InstanceNumbers {
    /// Takes in what stands at `now`.
    pub fn saw(&mut self, now: Millis, standing: BTreeMap<u32, Slot>) {
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
    /// A layout counts from the moment at which it was read. Only idle instances are destroyed and
    /// nothing runs on a new one before it was read, so that an error in between belongs to the
    /// layout before.
    pub fn slot(&self, number: u32, at: Millis) -> Option<Slot> {
        let then = self.layouts.iter().rev().find(|(since, _)| *since <= at);
        // An error from before the first look: what stood then is the best that is known.
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
        numbers.saw(at(10), BTreeMap::from([(7, slot(0)), (8, slot(1))]));
        numbers.saw(at(20), BTreeMap::from([(8, slot(1))]));
        numbers.saw(at(30), BTreeMap::from([(8, slot(1)), (7, slot(5))]));

        assert_eq!(numbers.slot(7, at(5)), Some(slot(0)));
        assert_eq!(numbers.slot(7, at(19)), Some(slot(0)));
        assert_eq!(numbers.slot(7, at(25)), None);
        assert_eq!(numbers.slot(7, at(30)), Some(slot(5)));
        assert_eq!(numbers.slot(8, at(99)), Some(slot(1)));
        assert_eq!(numbers.slot(9, at(99)), None);
    }

    #[test]
    fn no_history_names_nothing_and_a_long_one_stays_bounded() {
        let mut numbers = InstanceNumbers::default();
        assert_eq!(numbers.slot(7, Millis::new(1)), None);
        for time in 0..1_000_u64 {
            let start = u8::try_from(time % 7).unwrap();
            numbers.saw(Millis::new(time), BTreeMap::from([(7, slot(start))]));
        }

        assert_eq!(numbers.layouts.len(), LAYOUTS_MAX);
        assert_eq!(numbers.slot(7, Millis::new(999)), Some(slot(5)));
    }
}
