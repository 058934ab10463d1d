//! Jobs run by programs: `command` jobs as they stand, any other kind by the program of `--exec`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use duly::store::ERROR_BYTES_MAX;
use duly::{Ctx, Outcome};
use rustix::process::Signal;
use serde::Deserialize;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use crate::child::{ChildSpec, ChildStdio, Spawner};
use crate::escape::escape_text;
use crate::events::short_id;
use crate::output::{DIM, paint};
use crate::printer::Printer;

/// The kind of jobs that carry their own command.
pub(crate) const COMMAND_KIND: &str = "command";
/// Where programs are looked for if there is no PATH.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// The exit code that buries a job; 0 is an ack, and any other a retry.
const EXIT_BURY: i32 = 100;
/// Longer lines of a child are shown in parts.
const LINE_BYTES_MAX: usize = 8 * 1024;
/// How much is read from a child at once.
const READ_BUFFER_BYTES: usize = 8 * 1024;
/// How long output is read on after a child has ended: what it left running may hold the pipe for ever.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_millis(200);
/// How long a worker may take to notice that it was told to stop as well.
const STOP_NOTICE_TIMEOUT: Duration = Duration::from_millis(200);
/// Children are asked to end (SIGTERM) this long before the grace time is over, or at its last fifth.
const TERM_NOTICE_MAX: Duration = Duration::from_secs(5);

/// The args of a `command` job.
#[derive(Deserialize)]
struct CommandArgs {
    argv: Vec<String>,
    /// Where it was pushed, so that relative paths mean what they meant there.
    dir: Option<PathBuf>,
}

/// Runs jobs as processes.
pub(crate) struct JobProcessRunner {
    pub(crate) spawner: Spawner,
    pub(crate) printer: Printer,
    pub(crate) quiet: bool,
    pub(crate) grace: Duration,
    /// The program for kinds other than `command`, with its arguments.
    pub(crate) program: Vec<String>,
}

impl JobProcessRunner {
    /// The handler of `command` jobs.
    pub(crate) async fn run_command(self: Arc<Self>, ctx: Ctx) -> Result<Outcome, String> {
        let args: CommandArgs = match serde_json::from_str(&ctx.job().args) {
            Ok(args) => args,
            Err(why) => return Ok(Outcome::bury(format!("the args of a command are {{\"argv\": [..]}}: {why}"))),
        };
        if args.argv.is_empty() {
            return Ok(Outcome::bury("the argv of the command is empty"));
        }
        let argv = args.argv.into_iter().map(OsString::from).collect();
        let start = ChildSpec { argv, dir: args.dir, env: job_env(&ctx), stdio: ChildStdio::Captured };
        self.run_process(&ctx, start).await
    }

    /// The handler of all other kinds.
    pub(crate) async fn run_program(self: Arc<Self>, ctx: Ctx) -> Result<Outcome, String> {
        let argv = self.program.iter().map(OsString::from).collect();
        let start = ChildSpec { argv, dir: None, env: job_env(&ctx), stdio: ChildStdio::CapturedWithInput };
        self.run_process(&ctx, start).await
    }

    async fn run_process(&self, ctx: &Ctx, start: ChildSpec) -> Result<Outcome, String> {
        let place = start.dir.as_ref().map(|dir| format!(" in {}", dir.display())).unwrap_or_default();
        let mut running = self.spawner.spawn(start).await.map_err(|error| format!("cannot start{place}: {error}"))?;
        let tail = Mutex::new(Vec::new());
        let (stdin, stdout, stderr) =
            (running.child.stdin.take(), running.child.stdout.take(), running.child.stderr.take());
        let id = short_id(ctx.job().id);
        let mut talking = pin!(async {
            let feed = async {
                if let Some(mut stdin) = stdin {
                    // A program that does not read its args may end without them.
                    let _ = stdin.write_all(ctx.job().args.as_bytes()).await;
                }
            };
            tokio::join!(feed, self.forward_output(stdout, &id, None), self.forward_output(stderr, &id, Some(&tail)));
        });
        let mut talked = false;
        let mut notice = pin!(async {
            ctx.stopping().await;
            tokio::time::sleep(self.grace - (self.grace / 5).min(TERM_NOTICE_MAX)).await;
        });
        let (mut asked, mut told) = (false, false);
        let status = loop {
            tokio::select! {
                status = running.wait() => break status.map_err(|error| format!("cannot wait for it: {error}"))?,
                () = &mut talking, if !talked => talked = true,
                () = &mut notice, if !asked => {
                    asked = true;
                    running.send_signal(Signal::TERM);
                }
                () = ctx.cancelled(), if !told => {
                    // The job is another node's: what still runs here is killed with `running`.
                    if !ctx.is_job_cancelled() {
                        return Ok(Outcome::release(Duration::ZERO));
                    }
                    // Cancelled: it may end by itself, for as long as the worker lets it.
                    told = true;
                    running.send_signal(Signal::TERM);
                }
            }
        };
        if !talked {
            let _ = tokio::time::timeout(OUTPUT_DRAIN_TIMEOUT, talking).await;
        }
        // A service manager may send SIGTERM to everything at once, and the child may be quicker than the worker.
        if status.signal() == Some(Signal::TERM.as_raw()) {
            asked |= tokio::time::timeout(STOP_NOTICE_TIMEOUT, ctx.stopping()).await.is_ok();
        }
        let tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        decide_outcome(status, asked, &tail)
    }

    /// Shows what a child writes, line by line, and keeps the end of it.
    async fn forward_output(&self, from: Option<impl AsyncRead + Unpin>, id: &str, tail: Option<&Mutex<Vec<u8>>>) {
        let Some(mut from) = from else {
            return;
        };
        let mut chunk = vec![0; READ_BUFFER_BYTES];
        let mut line = Vec::new();
        // Ends with the pipe.
        loop {
            let bytes = match from.read(&mut chunk).await {
                Ok(0) | Err(_) => break,
                Ok(read) => &chunk[..read],
            };
            if let Some(tail) = tail {
                append_tail(&mut tail.lock().unwrap_or_else(PoisonError::into_inner), bytes);
            }
            for byte in bytes {
                if *byte != b'\n' {
                    line.push(*byte);
                }
                if *byte == b'\n' || line.len() >= LINE_BYTES_MAX {
                    self.print_output_line(id, &line);
                    line.clear();
                }
            }
        }
        if !line.is_empty() {
            self.print_output_line(id, &line);
        }
    }

    fn print_output_line(&self, id: &str, line: &[u8]) {
        if !self.quiet {
            let text = String::from_utf8_lossy(line).replace('\t', "    ");
            self.printer.print_stderr(format!(
                "{}  {}",
                paint(DIM, format!("{id} |")),
                escape_text(text.trim_end_matches('\r'))
            ));
        }
    }
}

/// Whether there is such a program: a path from here, or a name in PATH, of a file that may be run.
pub(crate) fn is_executable(program: &str) -> bool {
    let can_run =
        |path: &Path| path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    if program.contains('/') {
        return can_run(Path::new(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    std::env::split_paths(&path).any(|dir| can_run(&dir.join(program)))
}

/// What a program gets to know of its job.
fn job_env(ctx: &Ctx) -> Vec<(&'static str, String)> {
    vec![
        ("DULY_ID", ctx.job().id.to_string()),
        ("DULY_KIND", ctx.job().kind.clone()),
        ("DULY_QUEUE", ctx.job().queue.clone()),
        ("DULY_ATTEMPT", ctx.attempt().to_string()),
        ("DULY_FENCE", ctx.fence().to_string()),
    ]
}

fn append_tail(tail: &mut Vec<u8>, bytes: &[u8]) {
    tail.extend_from_slice(bytes);
    if tail.len() > ERROR_BYTES_MAX {
        tail.drain(..tail.len() - ERROR_BYTES_MAX);
    }
}

/// From the exit code to the outcome.
fn decide_outcome(status: ExitStatus, asked: bool, stderr: &[u8]) -> Result<Outcome, String> {
    if status.success() {
        return Ok(Outcome::Ack);
    }
    // It ended because we asked it to: not its fault.
    if asked {
        return Ok(Outcome::release(Duration::ZERO));
    }
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    };
    let error = format_failure(&how, stderr);
    if status.code() == Some(EXIT_BURY) { Ok(Outcome::bury(error)) } else { Err(error) }
}

/// How it ended and the last it said, within what the store keeps.
fn format_failure(how: &str, stderr: &[u8]) -> String {
    let said = String::from_utf8_lossy(stderr);
    let said = said.trim();
    if said.is_empty() {
        return how.to_owned();
    }
    let mut from = said.len().saturating_sub(ERROR_BYTES_MAX - how.len() - 2);
    while !said.is_char_boundary(from) {
        from += 1;
    }
    format!("{how}: {}", &said[from..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_decides_outcome() {
        let exited = |code: i32| ExitStatus::from_raw(code << 8);
        assert_eq!(decide_outcome(exited(0), false, b""), Ok(Outcome::Ack));
        assert_eq!(decide_outcome(exited(0), true, b""), Ok(Outcome::Ack));
        assert_eq!(decide_outcome(exited(100), false, b"no\n"), Ok(Outcome::bury("exit code 100: no")));
        assert_eq!(decide_outcome(exited(3), false, b""), Err("exit code 3".to_owned()));
        assert_eq!(decide_outcome(exited(3), true, b""), Ok(Outcome::release(Duration::ZERO)));
        assert_eq!(decide_outcome(ExitStatus::from_raw(9), false, b""), Err("killed by signal 9".to_owned()));
    }

    #[test]
    fn programs_are_found_by_name_and_by_path() {
        assert!(is_executable("sh") && is_executable("/bin/sh"));
        assert!(
            !is_executable("/etc")
                && !is_executable("/etc/passwd")
                && !is_executable("no-such-program")
                && !is_executable("./none")
        );
    }

    #[test]
    fn end_of_long_stderr_is_kept() {
        let mut tail = Vec::new();
        for _ in 0..1_000 {
            append_tail(&mut tail, "täglich ".as_bytes());
        }
        append_tail(&mut tail, b"the end");
        let error = format_failure("exit code 1", &tail);
        assert!(error.len() <= ERROR_BYTES_MAX && error.ends_with("the end"), "{}", error.len());
    }
}
