//! What a session is to be sent, between the queue that decides and the task that writes.

use std::cell::{Cell, RefCell};

use tessera_wire::kernel::{Ended, ToShim};
use tokio::sync::Notify;

/// Most frames that may wait for one shim. A shim that doesn't read for so long that this many
/// grants, roles and facts pile up is of no use to its program: it is sent away.
const FRAMES_MAX: usize = 8_192;

/// One session's frames.
#[derive(Debug, Default)]
pub struct Outbox {
    frames: RefCell<Vec<ToShim>>,
    end: Cell<Option<Ended>>,
    bell: Notify,
    over: Notify,
}

impl Outbox {
    /// Adds a frame.
    pub fn push(&self, frame: ToShim) {
        let mut frames = self.frames.borrow_mut();
        if frames.len() >= FRAMES_MAX {
            drop(frames);
            self.close(Ended::TooMuch);
            return;
        }
        frames.push(frame);
        self.bell.notify_one();
    }

    /// Ends the session after what is there; the first reason counts.
    pub fn close(&self, why: Ended) {
        if self.end.get().is_none() {
            self.end.set(Some(why));
        }
        self.bell.notify_one();
        self.over.notify_one();
    }

    /// Returns why the session is over, if it is.
    pub const fn end(&self) -> Option<Ended> {
        self.end.get()
    }

    /// Waits for something to write; frames, and why it is over after them.
    pub async fn take(&self, into: &mut Vec<ToShim>) -> Option<Ended> {
        loop {
            into.append(&mut self.frames.borrow_mut());
            if !into.is_empty() || self.end.get().is_some() {
                return self.end.get();
            }
            self.bell.notified().await;
        }
    }

    /// Waits until the session is over.
    pub async fn closed(&self) {
        while self.end.get().is_none() {
            self.over.notified().await;
        }
    }
}
