//! The frames of a session, between the queue that decides and the task that writes.

use std::cell::{Cell, RefCell};

use tessera_frames::kernel::{SessionEnd, ToShim};
use tokio::sync::Notify;

/// Most frames that wait for one shim, in its mailbox and to be written. The session of a shim that does not read
/// for so long is ended.
pub const FRAMES_MAX: usize = 8_192;

/// The frames of one session.
#[derive(Debug, Default)]
pub struct FrameOutbox {
    frames: RefCell<Vec<ToShim>>,
    end: Cell<Option<SessionEnd>>,
    bell: Notify,
    over: Notify,
}

impl FrameOutbox {
    /// Adds a frame.
    pub fn push(&self, frame: ToShim) {
        let mut frames = self.frames.borrow_mut();
        if frames.len() >= FRAMES_MAX {
            drop(frames);
            self.close(SessionEnd::TooMuch);
            return;
        }
        frames.push(frame);
        self.bell.notify_one();
    }

    /// Ends the session after the waiting frames. The first reason counts.
    pub fn close(&self, why: SessionEnd) {
        if self.end.get().is_none() {
            self.end.set(Some(why));
        }
        self.bell.notify_one();
        self.over.notify_one();
    }

    /// Returns why the session ended, if it did.
    pub const fn end(&self) -> Option<SessionEnd> {
        self.end.get()
    }

    /// Waits for frames or the end of the session. Returns why the session ended, if it did.
    pub async fn take(&self, into: &mut Vec<ToShim>) -> Option<SessionEnd> {
        loop {
            into.append(&mut self.frames.borrow_mut());
            if !into.is_empty() || self.end.get().is_some() {
                return self.end.get();
            }
            self.bell.notified().await;
        }
    }

    /// Waits until the session ends.
    pub async fn closed(&self) {
        while self.end.get().is_none() {
            self.over.notified().await;
        }
    }
}
