//! Input from the terminal and from pipes: confirmation prompts, and args on stdin.

use std::io::{BufRead, IsTerminal, Read, Write};

use anyhow::Context as _;

use crate::exit::{self, CliError};

/// The longest reply to a prompt that is read.
const REPLY_BYTES_MAX: u64 = 64;

/// Asks for confirmation on the terminal; without a terminal, returns a usage error that names `--yes`.
pub(crate) fn confirm(question: &str) -> anyhow::Result<bool> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Err(CliError::new(exit::USAGE, format!("{question} not a terminal; pass --yes to confirm")));
    }
    write!(anstream::stderr(), "{question} [y/N] ")?;
    let mut reply = String::new();
    std::io::stdin().lock().take(REPLY_BYTES_MAX).read_line(&mut reply)?;
    Ok(matches!(reply.trim(), "y" | "Y" | "yes"))
}

/// Reads args from stdin: at most one byte more than allowed, to detect args that are too large.
pub(crate) fn read_args_from_stdin(bytes_max: usize) -> anyhow::Result<String> {
    let stdin = std::io::stdin().lock();
    if stdin.is_terminal() {
        let _ = anstream::stderr().write_all(b"args as JSON, then Ctrl-D:\n");
    }
    let mut bytes = Vec::new();
    stdin.take(bytes_max as u64 + 1).read_to_end(&mut bytes).context("cannot read stdin")?;
    if bytes.len() > bytes_max {
        return Err(CliError::new(
            exit::USAGE,
            format!("args: more than {bytes_max} bytes on stdin; store large data elsewhere and pass a reference"),
        ));
    }
    String::from_utf8(bytes).map_err(|_| CliError::new(exit::USAGE, "args: stdin is not UTF-8 text"))
}
