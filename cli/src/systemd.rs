//! Signs to systemd, if it has started us: ready, stopping, and that we are alive.

use std::time::Duration;

use sd_notify::NotifyState;

/// Variables that are meant for us and not for the commands we run.
pub(crate) const SYSTEMD_ENV: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// We have joined and begin to claim.
pub(crate) fn notify_ready(queues: &str) {
    send_states(&[NotifyState::Ready, NotifyState::Status(&format!("working {queues}"))]);
}

/// We listen for requests.
pub(crate) fn notify_serving(url: &str) {
    send_states(&[NotifyState::Ready, NotifyState::Status(&format!("serving {url}"))]);
}

/// We claim no more and wait for what runs.
pub(crate) fn notify_stopping(running: usize) {
    send_states(&[NotifyState::Stopping, NotifyState::Status(&format!("stopping, {running} running"))]);
}

/// How often the watchdog wants to be told that we are alive, if there is one: twice in each of its intervals.
pub(crate) fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|interval| interval / 2)
}

/// The worker's loop turns.
pub(crate) fn notify_alive() {
    send_states(&[NotifyState::Watchdog]);
}

fn send_states(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd could not be told");
    }
}
