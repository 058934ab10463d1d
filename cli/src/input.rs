//! What people and pipes tell us: answers to questions, and args on stdin.

use std::io::{BufRead, IsTerminal, Read, Write};

use anyhow::Context as _;

use crate::exit::{self, CliError};

/// The longest answer to a question that is read.
const ANSWER_BYTES_MAX: u64 = 64;

/// Asks somebody at a terminal; nobody there is a no that says what to do.
pub(crate) fn confirm(question: &str) -> anyhow::Result<bool> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Err(CliError::new(exit::USAGE, format!("{question} Nobody is there to ask: say --yes")));
    }
    write!(anstream::stderr(), "{question} [y/N] ")?;
    let mut answer = String::new();
    std::io::stdin().lock().take(ANSWER_BYTES_MAX).read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Args from stdin: one byte more than is allowed is read, to see that it is too much.
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
            format!("args: more than {bytes_max} bytes on stdin; put large data elsewhere and pass on where it is"),
        ));
    }
    String::from_utf8(bytes).map_err(|_| CliError::new(exit::USAGE, "args: what came on stdin is not UTF-8 text"))
}
