//! What systemd learns of a daemon (`Type=notify`). Without systemd nothing is sent.

use sd_notify::NotifyState;

/// Reports that the daemon serves, with a line for `systemctl status`.
pub fn notify_ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports that the daemon reads its settings again.
pub fn notify_reloading() {
    notify(&[NotifyState::Reloading]);
}

/// Reports that the daemon serves after a reload, with a line for `systemctl status`.
pub fn notify_reloaded(status: &str) {
    notify_ready(status);
}

/// Reports that the daemon stops.
pub fn notify_stopping() {
    notify(&[NotifyState::Stopping]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd was not notified");
    }
}
