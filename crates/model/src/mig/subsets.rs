//! Small sets of numbers, in order of size.

use super::geometry::Slot;

/// Every set of `size` of the first `of` numbers, in lexical order.
pub struct Subsets {
    next: Option<Vec<usize>>,
    of: usize,
}

impl Subsets {
    /// Begins with the first `size` numbers.
    pub fn new(of: usize, size: usize) -> Self {
        Self { next: (size <= of).then(|| (0..size).collect()), of }
    }
}

impl Iterator for Subsets {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let current = self.next.take()?;
        let size = current.len();
        let mut following = current.clone();
        let movable = (0..size).rev().find(|i| current[*i] < self.of - size + i);
        if let Some(i) = movable {
            let from = current[i] + 1;
            for (offset, place) in following[i..].iter_mut().enumerate() {
                *place = from + offset;
            }
            self.next = Some(following);
        }
        Some(current)
    }
}

/// Parts the slots into those with a chosen number and the others.
pub fn split(slots: &[Slot], chosen: &[usize]) -> (Vec<Slot>, Vec<Slot>) {
    let (mut out, mut stay) = (Vec::new(), Vec::new());
    for (number, slot) in slots.iter().enumerate() {
        if chosen.contains(&number) { out.push(*slot) } else { stay.push(*slot) }
    }
    (out, stay)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_of_a_size_comes_once_and_in_order() {
        let found: Vec<_> = Subsets::new(4, 2).collect();

        assert_eq!(found, [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]);
        assert_eq!(Subsets::new(3, 0).collect::<Vec<_>>(), [Vec::<usize>::new()]);
        assert_eq!(Subsets::new(2, 3).count(), 0);
    }
}
