//! Runs the child under strace and reads the log: what it wrote, synced and said, in one order.
//!
//! Each call stands where it returned. That is safe for syncs (what counts as synced was), and for words
//! (whatever was answered had happened before the word began).

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::power::child::{self, Role};

/// Everything that can change a file or its name. What is not foreseen below, on our files, ends the run.
const CALLS: &str = "open,openat,openat2,creat,write,pwrite64,writev,pwritev,pwritev2,truncate,ftruncate,fallocate,\
                     fsync,fdatasync,sync_file_range,unlink,unlinkat,rename,renameat,renameat2,link,linkat,symlink,\
                     symlinkat,mmap,copy_file_range,sendfile,splice";
/// Longest write in the log; a longer one would be cut, and ends the run.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// Everything, by two processes one after the other: the second one recovers what the first one left.
pub const EVERYTHING: [Run; 2] = [Run { role: Role::Everything, sync: None }; 2];

/// One process. It is killed at its end, or before.
#[derive(Clone, Copy)]
pub struct Run {
    pub role: Role,
    /// What becomes of the sync of this number in one of its threads.
    pub sync: Option<(usize, Sync)>,
}

/// What becomes of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// The process is killed as it begins: written, and not synced.
    Dies,
    /// The disk fails: nobody knows what it has kept.
    Fails,
}

/// The files whose content survives. The shared memory beside them is made anew after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Main,
    Wal,
    Journal,
}

impl Part {
    const ALL: [Part; 3] = [Part::Main, Part::Wal, Part::Journal];

    /// What its name has behind that of the main file.
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
    /// It is there from now on, if it was not already.
    Made(Part),
    Write {
        part: Part,
        at: usize,
        bytes: Vec<u8>,
    },
    Cut {
        part: Part,
        len: usize,
    },
    Sync(Part),
    /// Names that were made or unlinked are durable.
    SyncDir,
    Unlink(Part),
    Said(String),
}

/// Lets children do their writes on a new file in `dir`, one after the other, and answers what happened.
pub fn record(dir: &Path, options: &str, runs: &[Run]) -> Vec<Event> {
    let dir = dir.canonicalize().expect("is there");
    let main = dir.join("power.db");
    let mut log = Log::new(main.to_str().expect("a plain path"));
    for (no, run) in runs.iter().enumerate() {
        let file = dir.join(format!("strace-{no}"));
        let mut strace = Command::new("strace");
        strace.args(["-f", "-y", "-xx", "-s", &WRITE_BYTES_MAX.to_string(), "-e", &format!("trace={CALLS}")]);
        if let Some((no, sync)) = run.sync {
            let what = if sync == Sync::Dies { "signal=SIGKILL" } else { "error=EIO" };
            strace.args(["-e", &format!("inject=fsync,fdatasync:{what}:when={no}")]);
        }
        strace.arg("-o").arg(&file).arg(std::env::current_exe().expect("knows itself"));
        strace.args(test_support::child_test_args("power::child_process"));
        strace.envs(child::environment(run.role, &format!("{}{options}", main.display()), no));
        let ended = strace.stdin(Stdio::null()).stdout(Stdio::null()).status();
        ended.expect("strace is needed for this test; install it with `apt-get install strace`");
        for line in BufReader::new(std::fs::File::open(&file).expect("strace wrote a log")).lines() {
            let line = line.expect("plain text");
            log.read(&line).unwrap_or_else(|e| panic!("run {no}: {e}: {line:.300}"));
        }
        let whole = log.last_word() == Some(child::END);
        let dies = matches!(run.sync, Some((_, Sync::Dies)));
        assert_eq!(whole, !dies, "run {no} came to its end; may strace trace here?");
        std::fs::remove_file(file).expect("can go");
    }
    log.events
}

/// A log that is being read.
pub struct Log {
    main: String,
    dir: String,
    /// Calls that other threads' lines have interrupted, by thread.
    unfinished: HashMap<String, String>,
    pub events: Vec<Event>,
}

impl Log {
    pub fn new(main: &str) -> Self {
        let dir = main.rsplit_once('/').map_or("", |(dir, _)| dir);
        Log { main: main.to_owned(), dir: dir.to_owned(), unfinished: HashMap::new(), events: Vec::new() }
    }

    fn last_word(&self) -> Option<&str> {
        self.events.iter().rev().find_map(|event| match event {
            Event::Said(line) => Some(line.as_str()),
            _ => None,
        })
    }

    /// Takes one line of the log.
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
        if let Some(begin) = rest.strip_suffix("<unfinished ...>") {
            self.unfinished.insert(thread.to_owned(), begin.trim_end().to_owned());
            return Ok(());
        }
        let Some(resumed) = rest.strip_prefix("<... ") else {
            return self.call(rest);
        };
        let (_, end) = resumed.split_once(" resumed>").ok_or("a call that goes on, but how")?;
        let begin = self.unfinished.remove(thread).ok_or("the end of a call that did not begin")?;
        self.call(&format!("{begin}{end}"))
    }

    /// Takes a whole call: `name(args) = answer`.
    fn call(&mut self, call: &str) -> Result<(), String> {
        let (name, rest) = call.split_once('(').ok_or("no call")?;
        let (args, answer) = rest.rsplit_once(" = ").ok_or("no answer")?;
        if answer.starts_with(['-', '?']) {
            return Ok(()); // It failed, or its process was killed before it was done.
        }
        let args: Vec<&str> = args.trim_end().trim_end_matches(')').split(", ").collect();
        let event = match (name, &args[..]) {
            ("write", [out, bytes, _]) if out.starts_with("1<") => {
                return text(bytes).map(|said| self.hear(&said));
            }
            ("pwrite64", [fd, bytes, _, at]) => match self.part(fd) {
                Some(part) => {
                    self.check_alone(fd)?;
                    let mut bytes = unhex(bytes)?;
                    bytes.truncate(number(answer)?);
                    Event::Write { part, at: number(at)?, bytes }
                }
                None => return Ok(()),
            },
            ("ftruncate", [fd, len]) => match self.part(fd) {
                Some(part) => Event::Cut { part, len: number(len)? },
                None => return Ok(()),
            },
            ("fsync" | "fdatasync", [fd]) => match self.part(fd) {
                Some(part) => Event::Sync(part),
                None if path(fd).as_deref() == Some(&self.dir) => Event::SyncDir,
                None => return Ok(()),
            },
            ("openat", [_, file, flags, ..]) => match self.part(file) {
                Some(_) if flags.contains("O_TRUNC") => return Err("a file is emptied".into()),
                Some(part) if flags.contains("O_CREAT") => Event::Made(part),
                _ => return Ok(()),
            },
            ("unlink", [file]) => match self.part(file) {
                Some(part) => Event::Unlink(part),
                None => return Ok(()),
            },
            ("mmap", args) if !args.contains(&"MAP_SHARED") => return Ok(()),
            (_, args) if args.iter().any(|arg| self.part(arg).is_some()) => {
                return Err(format!("{name} on a file is not foreseen"));
            }
            _ => return Ok(()),
        };
        self.events.push(event);
        Ok(())
    }

    fn hear(&mut self, said: &str) {
        self.events.extend(said.lines().filter(|line| !line.is_empty()).map(|line| Event::Said(line.to_owned())));
    }

    /// The file that an argument names, be it a descriptor or a path.
    fn part(&self, arg: &str) -> Option<Part> {
        let path = path(arg)?;
        let suffix = path.strip_prefix(&self.main)?;
        Part::ALL.into_iter().find(|part| part.suffix() == suffix)
    }

    /// A write that ends while another thread syncs the same file may or may not be part of that sync.
    /// duly has one thread that writes, so this does not happen; if it ever does, the order here is not the truth.
    fn check_alone(&self, fd: &str) -> Result<(), String> {
        let name = fd.trim_start_matches(|c: char| c.is_ascii_digit());
        let syncs = |call: &String| call.starts_with('f') && call.contains("sync(") && call.contains(name);
        match self.unfinished.values().any(syncs) {
            true => Err("written while it is synced".into()),
            false => Ok(()),
        }
    }
}

/// The path in `9<\x2f...>` or `"\x2f..."`.
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

/// The bytes of `"\x00\xff"`.
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
