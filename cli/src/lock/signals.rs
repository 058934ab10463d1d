//! The signals that matter while a command runs, in the order in which they come.

use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Passed on to the command.
const FORWARDED_SIGNALS: [Signal; 7] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::ALARM];
/// Signals that may wait to be looked at; each kind is one more at most.
const QUEUED_SIGNALS_MAX: usize = 16;

pub(super) struct OsSignals(mpsc::Receiver<Signal>);

impl OsSignals {
    /// Those to be passed on, that the command has ended or stopped, and the wish of somebody at the terminal to stop it.
    pub(super) fn listen() -> std::io::Result<OsSignals> {
        let (sender, receiver) = mpsc::channel(QUEUED_SIGNALS_MAX);
        let ignored = ignored_signals_mask();
        let wanted = FORWARDED_SIGNALS.into_iter().chain([Signal::CHILD, Signal::TSTP]);
        // What whoever started us wants ignored (such as nohup) is ignored by the command, too.
        for wanted in wanted.filter(|wanted| *wanted == Signal::CHILD || ignored >> (wanted.as_raw() - 1) & 1 == 0) {
            let mut heard = signal(SignalKind::from_raw(wanted.as_raw()))?;
            let sender = sender.clone();
            tokio::spawn(async move { while heard.recv().await.is_some() && sender.send(wanted).await.is_ok() {} });
        }
        Ok(OsSignals(receiver))
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            // Never comes: the tasks that listen do not end before us.
            None => std::future::pending().await,
        }
    }

    /// The next one that would have ended us, while there is no command. One that would have stopped us does.
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

/// The signals that this process ignores, a bit for each; none where that cannot be told.
fn ignored_signals_mask() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
