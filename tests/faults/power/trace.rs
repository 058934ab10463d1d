//! Runs the child under strace and parses the log: its writes, syncs and reports, in one order.
//!
//! Each call is ordered by its return. This is safe for syncs, since a sync only covers earlier writes. It is safe for
//! reports, since a reply precedes the report about it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::power::child::{self, Role};

/// All calls that can change a file or its name. An unexpected call on our files fails the run.
const CALLS: &str = "open,openat,openat2,creat,write,pwrite64,writev,pwritev,pwritev2,truncate,ftruncate,fallocate,\
                     fsync,fdatasync,sync_file_range,unlink,unlinkat,rename,renameat,renameat2,link,linkat,symlink,\
                     symlinkat,mmap,copy_file_range,sendfile,splice";
/// Maximum length of a write in the log; a longer one would be truncated, and fails the run.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// All kinds of writes, by two processes in sequence: the second one recovers the state of the first one.
pub const EVERYTHING: [Run; 2] = [Run { role: Role::Everything, sync: None }; 2];

/// One process. It is killed at its end, or before.
#[derive(Clone, Copy)]
pub struct Run {
    pub role: Role,
    /// The fault in the sync of this number in one of its threads.
    pub sync: Option<(usize, Sync)>,
}

/// The fault of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// The process is killed as the sync begins: written, but not synced.
    Kills,
    /// The disk fails: the state of the written data is unknown.
    Fails,
}

/// The files with persistent content. The shared memory file is recreated after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Main,
    Wal,
    Journal,
}

impl Part {
    const ALL: [Part; 3] = [Part::Main, Part::Wal, Part::Journal];

    /// Returns the suffix after the name of the main file.
    pub fn suffix(self) -> &'static str {
        match self {
            Part::Main => "",
            Part::Wal => "-wal",
            Part::Journal => "-journal",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The file exists from now on.
    Created(Part),
    Write {
        part: Part,
        offset: usize,
        bytes: Vec<u8>,
    },
    Truncate {
        part: Part,
        len: usize,
    },
    Sync(Part),
    /// Created and removed names are durable.
    SyncDir,
    Unlink(Part),
    Reported(String),
}

/// Runs children on a new file in `dir`, one after the other, and returns all events.
pub fn record(dir: &Path, options: &str, runs: &[Run]) -> Vec<Event> {
    let dir = dir.canonicalize().expect("is there");
    let main = dir.join("power.db");
    let mut log = Log::new(main.to_str().expect("a plain path"));
    for (number, run) in runs.iter().enumerate() {
        let file = dir.join(format!("strace-{number}"));
        let mut strace = Command::new("strace");
        strace.args(["-f", "-y", "-xx", "-s", &WRITE_BYTES_MAX.to_string(), "-e", &format!("trace={CALLS}")]);
        if let Some((sync_number, sync)) = run.sync {
            let fault = if sync == Sync::Kills { "signal=SIGKILL" } else { "error=EIO" };
            strace.args(["-e", &format!("inject=fsync,fdatasync:{fault}:when={sync_number}")]);
        }
        strace.arg("-o").arg(&file).arg(std::env::current_exe().expect("the path of this binary"));
        strace.args(test_support::child_test_args("power::child_process"));
        strace.envs(child::environment(run.role, &format!("{}{options}", main.display()), number));
        let status = strace.stdin(Stdio::null()).stdout(Stdio::null()).status();
        status.expect("strace is needed for this test; install it with `apt-get install strace`");
        for line in BufReader::new(std::fs::File::open(&file).expect("strace wrote a log")).lines() {
            let line = line.expect("plain text");
            log.read(&line).unwrap_or_else(|e| panic!("run {number}: {e}: {line:.300}"));
        }
        let is_complete = log.last_report() == Some(child::END);
        let is_killed = matches!(run.sync, Some((_, Sync::Kills)));
        assert_eq!(is_complete, !is_killed, "run {number} did not end as expected; is strace allowed to trace here?");
        std::fs::remove_file(file).expect("can go");
    }
    log.events
}

/// A parser of the log.
pub struct Log {
    main: String,
    dir: String,
    /// Calls that were interrupted by other threads' lines, by thread.
    unfinished: HashMap<String, String>,
    pub events: Vec<Event>,
}

impl Log {
    pub fn new(main: &str) -> Self {
        let dir = main.rsplit_once('/').map_or("", |(dir, _)| dir);
        Log { main: main.to_owned(), dir: dir.to_owned(), unfinished: HashMap::new(), events: Vec::new() }
    }

    fn last_report(&self) -> Option<&str> {
        self.events.iter().rev().find_map(|event| match event {
            Event::Reported(line) => Some(line.as_str()),
            _ => None,
        })
    }

    /// Parses one line of the log.
    pub fn read(&mut self, line: &str) -> Result<(), String> {
        let (thread, rest) = line.split_once(' ').ok_or("no thread")?;
        let rest = rest.trim_start();
        if rest.starts_with("+++") {
            self.unfinished.remove(thread);
            return Ok(());
        }
        if rest.starts_with("---") {
            return Ok(());
        }
        if let Some(start) = rest.strip_suffix("<unfinished ...>") {
            self.unfinished.insert(thread.to_owned(), start.trim_end().to_owned());
            return Ok(());
        }
        let Some(resumed) = rest.strip_prefix("<... ") else {
            return self.call(rest);
        };
        let (_, end) = resumed.split_once(" resumed>").ok_or("a malformed resumed call")?;
        let start = self.unfinished.remove(thread).ok_or("the end of a call that did not begin")?;
        self.call(&format!("{start}{end}"))
    }

    /// Parses a complete call: `name(args) = result`.
    fn call(&mut self, call: &str) -> Result<(), String> {
        let (name, rest) = call.split_once('(').ok_or("no call")?;
        let (args, result) = rest.rsplit_once(" = ").ok_or("no result")?;
        if result.starts_with(['-', '?']) {
            return Ok(()); // It failed, or its process was killed first.
        }
        let args: Vec<&str> = args.trim_end().trim_end_matches(')').split(", ").collect();
        let event = match (name, &args[..]) {
            ("write", [out, bytes, _]) if out.starts_with("1<") => {
                return text(bytes).map(|output| self.add_reports(&output));
            }
            ("pwrite64", [fd, bytes, _, offset]) => match self.part(fd) {
                Some(part) => {
                    self.check_alone(fd)?;
                    let mut bytes = unhex(bytes)?;
                    bytes.truncate(number(result)?);
                    Event::Write { part, offset: number(offset)?, bytes }
                }
                None => return Ok(()),
            },
            ("ftruncate", [fd, len]) => match self.part(fd) {
                Some(part) => Event::Truncate { part, len: number(len)? },
                None => return Ok(()),
            },
            ("fsync" | "fdatasync", [fd]) => match self.part(fd) {
                Some(part) => Event::Sync(part),
                None if path(fd).as_deref() == Some(&self.dir) => Event::SyncDir,
                None => return Ok(()),
            },
            ("openat", [_, file, flags, ..]) => match self.part(file) {
                Some(_) if flags.contains("O_TRUNC") => return Err("a file is emptied".into()),
                Some(part) if flags.contains("O_CREAT") => Event::Created(part),
                _ => return Ok(()),
            },
            // Such a handle can neither read nor write.
            ("open", [_, flags, ..]) if flags.contains("O_PATH") => return Ok(()),
            ("unlink", [file]) => match self.part(file) {
                Some(part) => Event::Unlink(part),
                None => return Ok(()),
            },
            ("mmap", args) if !args.contains(&"MAP_SHARED") => return Ok(()),
            (_, args) if args.iter().any(|arg| self.part(arg).is_some()) => {
                return Err(format!("{name} on a file is an unexpected call"));
            }
            _ => return Ok(()),
        };
        self.events.push(event);
        Ok(())
    }

    fn add_reports(&mut self, output: &str) {
        self.events.extend(output.lines().filter(|line| !line.is_empty()).map(|line| Event::Reported(line.to_owned())));
    }

    /// Returns the file of an argument, which is a descriptor or a path.
    fn part(&self, arg: &str) -> Option<Part> {
        let path = path(arg)?;
        let suffix = path.strip_prefix(&self.main)?;
        Part::ALL.into_iter().find(|part| part.suffix() == suffix)
    }

    /// A write that returns while another thread syncs the same file may or may not be part of that sync. duly has
    /// only one writing thread, so this is an error: the order of the log would be wrong.
    fn check_alone(&self, fd: &str) -> Result<(), String> {
        let name = fd.trim_start_matches(|c: char| c.is_ascii_digit());
        let is_sync = |call: &String| call.starts_with('f') && call.contains("sync(") && call.contains(name);
        match self.unfinished.values().any(is_sync) {
            true => Err("written while it is synced".into()),
            false => Ok(()),
        }
    }
}

/// Returns the path in `9<\x2f...>` or `"\x2f..."`.
fn path(arg: &str) -> Option<String> {
    let hex = match arg.split_once('<') {
        Some((_, rest)) => rest.strip_suffix('>')?,
        None => arg.strip_prefix('"')?.strip_suffix('"')?,
    };
    String::from_utf8(unhex(&format!("\"{hex}\"")).ok()?).ok()
}

fn text(arg: &str) -> Result<String, String> {
    String::from_utf8(unhex(arg)?).map_err(|e| e.to_string())
}

/// Returns the bytes of `"\x00\xff"`.
fn unhex(arg: &str) -> Result<Vec<u8>, String> {
    let hex = arg.strip_prefix('"').and_then(|arg| arg.strip_suffix('"')).ok_or("a string is cut short")?;
    let digit = |c: u8| char::from(c).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |escape: &[u8]| match escape {
        [b'\\', b'x', high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    hex.as_bytes().chunks(4).map(byte).collect::<Option<_>>().ok_or_else(|| "not hex".into())
}

fn number(arg: &str) -> Result<usize, String> {
    arg.trim().parse().map_err(|e| format!("{arg:?}: {e}"))
}
