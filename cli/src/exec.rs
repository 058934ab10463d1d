//! Runs jobs as processes: `command` jobs directly, other kinds with the program of `--exec`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::bounds::ERROR_BYTES_MAX;
use duly::{Ctx, Outcome};
use rustix::io::Errno;
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::Map;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use crate::child::{ChildSpec, ChildStdio, Spawner};
use crate::escape::escape_text;
use crate::events::short_id;
use crate::logs::{self, Level};
use crate::output::{DIM, paint};
use crate::printer::Printer;
use crate::sync::LockExt;

/// The kind of jobs that carry their own command.
pub(crate) const COMMAND_KIND: &str = "command";
/// The search path for programs if PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// The exit code that buries a job; 0 is an ack, and any other a retry.
const EXIT_BURY: i32 = 100;
/// Longer output lines of a child are printed in parts.
const LINE_BYTES_MAX: usize = 8 * 1024;
/// The buffer size for reading from a child.
const READ_BUFFER_BYTES: usize = 8 * 1024;
/// How long to read output after a child has ended: a background process may keep the pipe open for ever.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_millis(200);
/// How long a worker may take to notice its own stop signal.
const STOP_NOTICE_TIMEOUT: Duration = Duration::from_millis(200);
/// Children get SIGTERM this long before the grace time ends, or in its last fifth if that is shorter.
const TERM_NOTICE_MAX: Duration = Duration::from_secs(5);

/// The delay of a job whose process could not be started because the machine lacked descriptors, processes or memory.
const NO_RESOURCES_DELAY: Duration = Duration::from_secs(5);

/// The args of a `command` job.
#[derive(Deserialize)]
struct CommandArgs {
    argv: Vec<String>,
    /// The directory of the push, so that relative paths keep their meaning.
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
        let args = match parse_command_args(&ctx.job().args) {
            Ok(args) => args,
            Err(error) => return Ok(Outcome::bury(format!("the args of a command are {{\"argv\": [..]}}: {error}"))),
        };
        if args.argv.is_empty() {
            return Ok(Outcome::bury("the argv of the command is empty"));
        }
        let argv = args.argv.into_iter().map(OsString::from).collect();
        let spec = ChildSpec { argv, dir: args.dir, env: job_env(&ctx), stdio: ChildStdio::Captured };
        self.run_process(&ctx, spec).await
    }

    /// The handler of all other kinds.
    pub(crate) async fn run_program(self: Arc<Self>, ctx: Ctx) -> Result<Outcome, String> {
        let argv = self.program.iter().map(OsString::from).collect();
        let spec = ChildSpec { argv, dir: None, env: job_env(&ctx), stdio: ChildStdio::CapturedWithInput };
        self.run_process(&ctx, spec).await
    }

    async fn run_process(&self, ctx: &Ctx, spec: ChildSpec) -> Result<Outcome, String> {
        let in_dir = spec.dir.as_ref().map(|dir| format!(" in {}", dir.display())).unwrap_or_default();
        let mut process = match self.spawner.spawn(spec).await {
            Ok(process) => process,
            Err(error) if lacks_resources(&error) => {
                tracing::warn!(id = %ctx.job().id, %error, retry_in = ?NO_RESOURCES_DELAY, "cannot start a process");
                return Ok(Outcome::release(NO_RESOURCES_DELAY));
            }
            Err(error) => return Err(format!("cannot start{in_dir}: {error}")),
        };
        let tail = Mutex::new(Vec::new());
        let (stdin, stdout, stderr) =
            (process.child.stdin.take(), process.child.stdout.take(), process.child.stderr.take());
        let mut streams = pin!(async {
            let feed = async {
                if let Some(mut stdin) = stdin {
                    // A program may exit without reading its args.
                    let _ = stdin.write_all(ctx.job().args.as_bytes()).await;
                }
            };
            tokio::join!(feed, self.forward_output(stdout, ctx, None), self.forward_output(stderr, ctx, Some(&tail)));
        });
        let mut streams_closed = false;
        let mut grace_ending = pin!(async {
            ctx.stopping().await;
            tokio::time::sleep(self.grace - (self.grace / 5).min(TERM_NOTICE_MAX)).await;
        });
        let (mut stop_requested, mut cancel_sent) = (false, false);
        let status = loop {
            tokio::select! {
                status = process.wait() => break status.map_err(|error| format!("cannot wait for it: {error}"))?,
                () = &mut streams, if !streams_closed => streams_closed = true,
                () = &mut grace_ending, if !stop_requested => {
                    stop_requested = true;
                    process.send_signal(Signal::TERM);
                }
                () = ctx.cancelled(), if !cancel_sent => {
                    // Another node has the job: dropping `process` kills the whole group.
                    if !ctx.is_job_cancelled() {
                        return Ok(Outcome::release(Duration::ZERO));
                    }
                    // The job is cancelled. The process may exit before the worker ends the attempt.
                    cancel_sent = true;
                    process.send_signal(Signal::TERM);
                }
            }
        };
        if !streams_closed {
            let _ = tokio::time::timeout(OUTPUT_DRAIN_TIMEOUT, streams).await;
        }
        // A service manager may send SIGTERM to all processes at once, and the child may react before the worker.
        if status.signal() == Some(Signal::TERM.as_raw()) {
            stop_requested |= tokio::time::timeout(STOP_NOTICE_TIMEOUT, ctx.stopping()).await.is_ok();
        }
        // The signal of the cancel is no error of the command.
        if cancel_sent && status.signal() == Some(Signal::TERM.as_raw()) {
            return Ok(Outcome::release(Duration::ZERO));
        }
        let tail = tail.lock_unpoisoned();
        decide_outcome(status, stop_requested, &tail)
    }

    /// Prints and logs the output of a child line by line, and appends it to `tail`.
    async fn forward_output(&self, pipe: Option<impl AsyncRead + Unpin>, ctx: &Ctx, tail: Option<&Mutex<Vec<u8>>>) {
        let Some(mut pipe) = pipe else {
            return;
        };
        let mut chunk = vec![0; READ_BUFFER_BYTES];
        let mut line = Vec::new();
        loop {
            let bytes = match pipe.read(&mut chunk).await {
                Ok(0) | Err(_) => break,
                Ok(read) => &chunk[..read],
            };
            if let Some(tail) = tail {
                append_tail(&mut tail.lock_unpoisoned(), bytes);
            }
            for byte in bytes {
                if *byte != b'\n' {
                    line.push(*byte);
                }
                if *byte == b'\n' || line.len() >= LINE_BYTES_MAX {
                    self.log_output_line(ctx, &line);
                    line.clear();
                }
            }
        }
        if !line.is_empty() {
            self.log_output_line(ctx, &line);
        }
    }

    /// Adds a line of output to the log of the job, and prints it.
    fn log_output_line(&self, ctx: &Ctx, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end_matches('\r');
        // People see spaces instead of an escaped tab.
        let text = line.replace('\t', "    ");
        ctx.log(&text);
        if self.quiet {
            return;
        }
        let id = ctx.job().id;
        if logs::is_json() {
            let fields = Map::from_iter([("id".to_owned(), id.to_string().into())]);
            return self.printer.print_stderr(logs::format_line(Level::Info, "duly::job", line, fields));
        }
        let mark = paint(DIM, format!("{} |", short_id(id)));
        self.printer.print_stderr(format!("{mark}  {}", escape_text(&text)));
    }
}

/// Parses the args of a `command` job. A list is rejected, although it has the fields by position. A job of another
/// program with a class of this name has a list, and must not start a process.
fn parse_command_args(text: &str) -> Result<CommandArgs, serde_json::Error> {
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text)?;
    serde_json::from_value(serde_json::Value::Object(object))
}

/// Returns true if the program is an executable file: a path, or a name in PATH.
pub(crate) fn is_executable(program: &str) -> bool {
    let can_run =
        |path: &Path| path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    if program.contains('/') {
        return can_run(Path::new(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    std::env::split_paths(&path).any(|dir| can_run(&dir.join(program)))
}

/// Returns the environment variables that describe the job.
fn job_env(ctx: &Ctx) -> Vec<(&'static str, String)> {
    let jid = duly::compat::jid_of_id(ctx.job().id).map(|jid| ("DULY_JID", jid));
    let mut env = vec![
        ("DULY_ID", ctx.job().id.to_string()),
        ("DULY_KIND", ctx.job().kind.clone()),
        ("DULY_QUEUE", ctx.job().queue.clone()),
        ("DULY_ATTEMPT", ctx.attempt().to_string()),
        ("DULY_FENCE", ctx.fence().to_string()),
    ];
    env.extend(jid);
    env
}

fn append_tail(tail: &mut Vec<u8>, bytes: &[u8]) {
    tail.extend_from_slice(bytes);
    if tail.len() > ERROR_BYTES_MAX {
        tail.drain(..tail.len() - ERROR_BYTES_MAX);
    }
}

/// Returns whether a process could not be started for want of descriptors, processes or memory. That is no failure of
/// the job.
fn lacks_resources(error: &std::io::Error) -> bool {
    let lacking = [Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| lacking.contains(&errno))
}

/// Turns the exit status into an outcome.
fn decide_outcome(status: ExitStatus, stop_requested: bool, stderr: &[u8]) -> Result<Outcome, String> {
    if status.success() {
        return Ok(Outcome::Ack);
    }
    // It ended because the worker stopped it: not a failure of the job.
    if stop_requested {
        return Ok(Outcome::release(Duration::ZERO));
    }
    let ending = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    };
    let error = format_failure(&ending, stderr);
    if status.code() == Some(EXIT_BURY) { Ok(Outcome::bury(error)) } else { Err(error) }
}

/// Formats how the process ended and the end of its stderr, within the store's maximum.
fn format_failure(ending: &str, stderr: &[u8]) -> String {
    let output = String::from_utf8_lossy(stderr);
    let output = output.trim();
    if output.is_empty() {
        return ending.to_owned();
    }
    let mut start = output.len().saturating_sub(ERROR_BYTES_MAX - ending.len() - 2);
    while !output.is_char_boundary(start) {
        start += 1;
    }
    format!("{ending}: {}", &output[start..])
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
    fn only_an_object_is_a_command() {
        let args = parse_command_args(r#"{"argv":["echo","x"],"dir":"/tmp"}"#).expect("valid");
        assert_eq!(args.argv, ["echo", "x"]);
        for other in [r#"[["touch","x"],null]"#, r#"[["touch","x"],"/tmp"]"#, r#"[{"argv":["touch"]}]"#, "null", "{}"] {
            assert!(parse_command_args(other).is_err(), "{other}");
        }
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
