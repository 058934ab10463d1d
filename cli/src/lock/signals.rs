//! The signals that are handled while a command runs, in order of arrival.

use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Signals that are forwarded to the command.
const FORWARDED_SIGNALS: [Signal; 7] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::ALARM];
/// Signals that may be queued; each kind may have one more pending.
const QUEUED_SIGNALS_MAX: usize = 16;

pub(super) struct OsSignals(mpsc::Receiver<Signal>);

impl OsSignals {
    /// Listens for forwarded signals, for SIGCHLD, and for SIGTSTP from the terminal.
    pub(super) fn listen() -> std::io::Result<OsSignals> {
        let (sender, receiver) = mpsc::channel(QUEUED_SIGNALS_MAX);
        let ignored = ignored_signals_mask();
        let wanted = FORWARDED_SIGNALS.into_iter().chain([Signal::CHILD, Signal::TSTP]);
        // Signals that the parent ignores, as nohup does, stay ignored in the command.
        for wanted in wanted.filter(|wanted| *wanted == Signal::CHILD || ignored >> (wanted.as_raw() - 1) & 1 == 0) {
            let mut stream = signal(SignalKind::from_raw(wanted.as_raw()))?;
            let sender = sender.clone();
            tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(wanted).await.is_ok() {} });
        }
        Ok(OsSignals(receiver))
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            // Unreachable: the listening tasks live as long as this receiver.
            None => std::future::pending().await,
        }
    }

    /// Waits for the next signal that ends this process while there is no command; SIGTSTP stops it meanwhile.
    pub(super) async fn next_terminating(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if FORWARDED_SIGNALS.contains(&signal) {
                return signal;
            }
            if signal == Signal::TSTP {
                let _ = kill_process(getpid(), Signal::STOP);
            }
        }
    }
}

/// Returns the ignored signals of this process as a bit mask; zero if the system does not provide it.
fn ignored_signals_mask() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
