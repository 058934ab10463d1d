//! Notifies systemd, if it started this process: ready, stopping, alive.

use std::time::Duration;

use sd_notify::NotifyState;

/// Variables for this process, which the commands of jobs must not inherit.
pub(crate) const SYSTEMD_ENV: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// Reports that the worker has joined and starts to claim.
pub(crate) fn notify_ready(queues: &str) {
    send_states(&[NotifyState::Ready, NotifyState::Status(&format!("working {queues}"))]);
}

/// Reports that the server listens for requests.
pub(crate) fn notify_serving(url: &str) {
    send_states(&[NotifyState::Ready, NotifyState::Status(&format!("serving {url}"))]);
}

/// Reports that the worker claims no more and waits for running jobs.
pub(crate) fn notify_stopping(running: usize) {
    send_states(&[NotifyState::Stopping, NotifyState::Status(&format!("stopping, {running} running"))]);
}

/// Returns how often to notify the watchdog, if it is enabled: twice per watchdog interval.
pub(crate) fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|interval| interval / 2)
}

/// Reports that the worker's run loop is alive.
pub(crate) fn notify_alive() {
    send_states(&[NotifyState::Watchdog]);
}

fn send_states(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
