//! Handles: numbers that name things of one kind, never addresses.
//!
//! A number that was freed is the next to be used, as a driver reuses addresses. So programs that
//! keep data about a handle beyond its life fail here, too.

use std::ptr;

use crate::abi::{CallResult, CudaCode, H};

/// The step between handles, so that they look aligned.
const STEP: usize = 16;

/// Things of one kind.
pub struct HandleSlab<T> {
    /// The upper half of its handles.
    kind: usize,
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> HandleSlab<T> {
    /// Begins the things of a kind.
    pub const fn new(kind: usize) -> Self {
        Self { kind, slots: Vec::new(), free: Vec::new() }
    }

    /// Adds a thing, and returns its handle.
    pub fn add(&mut self, thing: T) -> H {
        let index = self.free.pop().unwrap_or(self.slots.len());
        if index == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[index] = Some(thing);
        ptr::without_provenance_mut((self.kind << 32) + (index + 1) * STEP)
    }

    /// Finds a thing.
    pub fn get(&self, handle: H) -> CallResult<&T> {
        let slot = self.index(handle).and_then(|index| self.slots.get(index));
        slot.and_then(Option::as_ref).ok_or(CudaCode::INVALID_HANDLE)
    }

    /// Finds a thing.
    pub fn get_mut(&mut self, handle: H) -> CallResult<&mut T> {
        let slot = self.index(handle).and_then(|index| self.slots.get_mut(index));
        slot.and_then(Option::as_mut).ok_or(CudaCode::INVALID_HANDLE)
    }

    /// Removes a thing.
    pub fn remove(&mut self, handle: H) -> CallResult<T> {
        let index = self.index(handle).ok_or(CudaCode::INVALID_HANDLE)?;
        let slot = self.slots.get_mut(index).ok_or(CudaCode::INVALID_HANDLE)?;
        let thing = slot.take().ok_or(CudaCode::INVALID_HANDLE)?;
        self.free.push(index);
        Ok(thing)
    }

    /// Removes all things except those to be kept.
    pub fn retain(&mut self, stays: impl Fn(&T) -> bool) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if slot.as_ref().is_some_and(|thing| !stays(thing)) {
                *slot = None;
                self.free.push(index);
            }
        }
    }

    /// Does something with each thing.
    pub fn for_each(&mut self, change: impl FnMut(&mut T)) {
        self.slots.iter_mut().flatten().for_each(change);
    }

    fn index(&self, handle: H) -> Option<usize> {
        let number = handle.addr().checked_sub(self.kind << 32)?;
        (number % STEP == 0).then(|| (number / STEP).checked_sub(1)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_handle_comes_back_and_other_kinds_are_refused() {
        let mut names = HandleSlab::new(7);
        let first = names.add("first");
        names.remove(first).unwrap();
        assert_eq!(names.get(first), Err(CudaCode::INVALID_HANDLE));
        assert_eq!(names.add("second"), first);
        assert_eq!(names.get(first), Ok(&"second"));

        let other = HandleSlab::new(8).add(());
        assert_eq!(names.get(other), Err(CudaCode::INVALID_HANDLE));
        assert_eq!(names.get(ptr::null_mut()), Err(CudaCode::INVALID_HANDLE));
    }
}
