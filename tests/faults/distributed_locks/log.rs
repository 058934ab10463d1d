//! What a client says about its locks: a line each, written at once, so that what a killed client has said stays said.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use crate::distributed_locks::clock::boot_micros;

/// Something that a client has done or learnt, and when by the clock that all share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub at: i64,
    /// Which of the client's asks it is about.
    pub ask: u64,
    pub said: Said,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Is about to ask for this lock.
    Asks(String),
    /// Has it under this fence; by its own clock, until then.
    Acquired { fence: u64, until: i64 },
    /// Still has it; by its own clock, until then.
    Holds { until: i64 },
    /// Is about to let it go.
    Releases,
    /// Knows that it is lost.
    Lost,
}

pub struct Log(File);

impl Log {
    pub fn at(path: &Path) -> Self {
        Log(File::create(path).expect("a file of the test's own"))
    }

    /// Says something of this very moment.
    pub fn now(&mut self, ask: u64, said: Said) {
        self.say(&Line { at: boot_micros(), ask, said });
    }

    pub fn say(&mut self, line: &Line) {
        let Line { at, ask, said } = line;
        let said = match said {
            Said::Asks(name) => format!("asks {name}"),
            Said::Acquired { fence, until } => format!("acquired {fence} {until}"),
            Said::Holds { until } => format!("holds {until}"),
            Said::Releases => "releases".into(),
            Said::Lost => "lost".into(),
        };
        // In one call to the system.
        self.0.write_all(format!("{at} {ask} {said}\n").as_bytes()).expect("writes");
    }
}

/// All that a client has said. A last line that was cut off by its death is left out.
pub fn read(path: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| parse(line).unwrap_or_else(|| panic!("{}: {line:?}", path.display()))).collect()
}

fn parse(line: &str) -> Option<Line> {
    let words: Vec<&str> = line.split(' ').collect();
    let (at, ask) = (words.first()?.parse().ok()?, words.get(1)?.parse().ok()?);
    let said = match words[2..] {
        ["asks", name] => Said::Asks(name.into()),
        ["acquired", fence, until] => Said::Acquired { fence: fence.parse().ok()?, until: until.parse().ok()? },
        ["holds", until] => Said::Holds { until: until.parse().ok()? },
        ["releases"] => Said::Releases,
        ["lost"] => Said::Lost,
        _ => return None,
    };
    Some(Line { at, ask, said })
}

#[test]
fn log_lines_parse_as_written() {
    let dir = test_support::temp_dir();
    let path = dir.path().join("log");
    let said = [
        Said::Asks("a".into()),
        Said::Acquired { fence: 7, until: 8 },
        Said::Holds { until: 9 },
        Said::Releases,
        Said::Lost,
    ];
    let lines: Vec<Line> = said.into_iter().zip(1..).map(|(said, at)| Line { at, ask: 3, said }).collect();
    let mut log = Log::at(&path);
    lines.iter().for_each(|line| log.say(line));
    log.0.write_all(b"12 3 hol").expect("writes");
    assert_eq!(read(&path), lines);
}
