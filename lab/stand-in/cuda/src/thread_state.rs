//! What the driver keeps for each thread of the program.

use std::cell::{Cell, RefCell};

thread_local! {
    /// Contexts of this thread, the current one last.
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    /// Whether the thread runs a host function, in which no call is allowed.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Returns the id of the thread's current context, alive or not.
pub fn current_id() -> Option<u64> {
    STACK.with_borrow(|stack| stack.last().copied())
}

/// Makes a context the thread's current one, instead of what was; `None` for no context.
pub fn set_current(id: Option<u64>) {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        stack.extend(id);
    });
}

/// Puts a context above the thread's current one.
pub fn push_current(id: u64) {
    STACK.with_borrow_mut(|stack| stack.push(id));
}

/// Takes the thread's current context off.
pub fn pop_current() -> Option<u64> {
    STACK.with_borrow_mut(Vec::pop)
}

/// Runs a host function, in which no call is allowed.
pub fn run_host_function(run: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    run();
    IN_HOST_FUNCTION.set(false);
}

/// Returns whether the thread runs a host function.
pub fn is_in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}
