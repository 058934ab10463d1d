//! Runs the commands of a page in one shell, as a reader would type them.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use test_support::servers::Server;

use super::blocks::CommandBlock;
use super::pages::Replacement;
use crate::sandbox::{RunOutput, Sandbox};

/// Makes commands that do not end on their own end: servers continue in the background, watching ends at the first line.
const FUNCTIONS: &str = r#"
duly() {
  case " $* " in
    *" serve "* | *" up "*)
      if [ -n "${server-}" ]; then kill "$server"; wait "$server" || :; fi
      command duly "$@" & server=$!
      command curl -sS --retry 60 --retry-delay 1 --retry-connrefused "http://$DULY_LISTEN/healthz" ;;
    *" --watch "*) command duly "$@" | head -n 1 ;;
    *) command duly "$@" ;;
  esac
}
# Workers continue in the background.
python3() { command python3 "$@" & }
curl() { command curl -sS --fail-with-body "$@"; }
"#;

/// How one page runs.
pub(super) struct Page<'p> {
    /// Shell lines that run first.
    pub(super) before: &'p str,
    /// The texts that a reader replaces.
    pub(super) replace: &'p [Replacement],
    /// The server of pages that need one.
    pub(super) server: Option<&'p Server>,
}

/// Runs blocks of a page, in order, in one shell in a directory of its own. A failing command fails the test.
pub(super) fn run(page: &Page<'_>, blocks: &[CommandBlock]) {
    let sandbox = Sandbox::new();
    let listen = format!("127.0.0.1:{}", test_support::servers::free_port());
    let mut script = format!("set -eu\n{FUNCTIONS}{}\n", page.before);
    for block in blocks {
        script += &format!("echo '## line {}' >&2\n{}\n", block.line, replaced(page, block, &listen));
    }
    let output = shell(&sandbox, &script, &listen);
    assert_eq!(output.code, Some(0), "{script}\n--- stdout\n{}\n--- stderr\n{}", output.out, output.err);
}

fn replaced(page: &Page<'_>, block: &CommandBlock, listen: &str) -> String {
    let mut commands = block.commands.clone();
    for (from, to) in page.replace {
        commands = commands.replace(from, to);
    }
    // The functions run servers in the background.
    commands = commands.replace("duly serve &", "duly serve").replace("cargo run --release --", "duly");
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../http/examples/");
    commands = commands.replace("http/examples/", examples);
    commands = commands.replace("127.0.0.1:7711", listen).replace("0.0.0.0:7711", listen);
    match page.server {
        None => commands,
        Some(server) => {
            let port = server.port();
            let commands = commands.replace("//redis.example.com", "//localhost").replace("//host", "//localhost");
            commands
                .replace("//localhost", &format!("//127.0.0.1:{port}"))
                .replace("redis-cli", &format!("redis-cli -p {port}"))
        }
    }
}

/// Runs a script, and ends everything that it has started.
fn shell(sandbox: &Sandbox, script: &str, listen: &str) -> RunOutput {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_duly"));
    let dir = binary.parent().expect("in a directory").display().to_string();
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(sandbox.path("")).env("DULY_LISTEN", listen);
    // Python would write compiled files into the source directory.
    command.env("DULY_URL", format!("http://{listen}")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("PATH", format!("{dir}:{}", std::env::var("PATH").unwrap_or_default()));
    for name in ["DULY_STORE", "DULY_FROM", "DULY_TO", "DULY_CLUSTER_KEY", "DULY_TOKEN", "DULY_LOG"] {
        command.env_remove(name);
    }
    // Files, because a server in the background would keep pipes open.
    let file = |name| std::fs::File::create(sandbox.path(name)).expect("a file");
    command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr")).process_group(0);
    let mut child = command.spawn().expect("a shell");
    let code = child.wait().expect("it ends").code();
    // Fails if nothing is left of the group.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    RunOutput { code, out: sandbox.read("stdout"), err: sandbox.read("stderr") }
}
