//! Turns the text of a script and its parts into the code that a server runs. `lua/README.md` describes the format.
//!
//! This file uses nothing but the standard library, so that tests can read scripts exactly as the store does.

use std::collections::BTreeSet;

/// A script with its parts in place of the lines that include them, and with positions in place of names.
#[derive(Debug)]
pub(crate) struct AssembledScript {
    pub(crate) code: String,
    /// The names of its keys in their order, `ready[1]` to `ready[4]` for `ready[4]`. The keys of a name that ends in `...` follow.
    pub(crate) keys: Vec<String>,
    /// The names of its arguments, in the same way.
    #[cfg(test)]
    pub(crate) args: Vec<String>,
}

/// How many keys or arguments a name stands for.
#[derive(Clone, Copy, PartialEq)]
enum Count {
    One,
    Several(usize),
    /// All that are left.
    Rest,
}

/// A name of a header, and its position from 1.
struct Name {
    name: String,
    first: usize,
    count: Count,
}

/// The names of one header line.
struct Names {
    /// `KEYS` or `ARGV`.
    table: &'static str,
    names: Vec<Name>,
}

/// Assembles a script; `part` returns the text of a part. The error lists everything that is wrong with the script.
pub(crate) fn assemble<'p>(body: &str, part: impl Fn(&str) -> Option<&'p str>) -> Result<AssembledScript, String> {
    let mut assembler = Assembler::from_header(body);
    let mut code = String::new();
    let mut included = BTreeSet::new();
    for line in body.lines() {
        match line.strip_prefix("-- include ") {
            None => assembler.write_line(line, &mut code),
            Some(names) => {
                for name in names.split(", ") {
                    let text = part(name);
                    assembler.check(text.is_some(), || format!("there is no part {name}"));
                    assembler.write_part(name, text.unwrap_or_default(), &included, &mut code);
                    included.insert(name.to_owned());
                }
            }
        }
    }
    assembler.check_all_used();
    assembler.finish(code).map(|code| AssembledScript {
        code,
        keys: assembler.keys.expand(),
        #[cfg(test)]
        args: assembler.args.expand(),
    })
}

/// Replaces the names in a piece of code by the positions that a header gives them.
#[cfg(test)]
pub(crate) fn expand(header: &str, text: &str) -> Result<String, String> {
    let (mut assembler, mut code) = (Assembler::from_header(header), String::new());
    assembler.expand(text, &mut code);
    assembler.finish(code)
}

/// Writes the code and remembers which names it uses.
struct Assembler {
    keys: Names,
    args: Names,
    used: BTreeSet<(&'static str, String)>,
    problems: Vec<String>,
}

impl Assembler {
    fn from_header(body: &str) -> Self {
        Assembler {
            keys: Names::parse(body, "-- keys: ", "KEYS"),
            args: Names::parse(body, "-- args: ", "ARGV"),
            used: BTreeSet::new(),
            problems: Vec::new(),
        }
    }

    /// Returns the code, or everything that is wrong with it.
    fn finish(&self, code: String) -> Result<String, String> {
        if self.problems.is_empty() { Ok(code) } else { Err(self.problems.join("; ")) }
    }

    fn check(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.problems.push(problem());
        }
    }

    fn check_all_used(&mut self) {
        for (sign, names) in [('@', &self.keys), ('$', &self.args)] {
            for name in &names.names {
                if !self.used.contains(&(names.table, name.name.clone())) {
                    self.problems.push(format!("{sign}{} is declared and not used", name.name));
                }
            }
        }
    }

    /// Writes a part. Its line that begins with `-- needs: ` lists the parts that must be included before it.
    fn write_part(&mut self, name: &str, text: &str, included: &BTreeSet<String>, code: &mut String) {
        for line in text.lines() {
            for needed in line.strip_prefix("-- needs: ").into_iter().flat_map(|names| names.split(", ")) {
                self.check(included.contains(needed), || {
                    format!("{name} needs {needed}, which is not included before it")
                });
            }
            self.check(!line.starts_with("-- include "), || format!("the part {name} includes another part"));
            self.write_line(line, code);
        }
    }

    fn write_line(&mut self, line: &str, code: &mut String) {
        match line.trim_start().starts_with("--") {
            true => code.push_str(line),
            false => self.expand(line, code),
        }
        code.push('\n');
    }

    /// Replaces every name outside of texts.
    fn expand(&mut self, line: &str, code: &mut String) {
        let mut rest = line;
        while let Some(at) = rest.find(['@', '$', '&', '\'']) {
            let (before, behind) = rest.split_at(at);
            code.push_str(before);
            let (sign, behind) = behind.split_at(1);
            let name: String = behind.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            rest = match sign {
                "'" => {
                    let end = quoted_length(behind);
                    code.push_str(&format!("'{}", &behind[..end]));
                    &behind[end..]
                }
                _ if name.is_empty() => {
                    self.problems.push(format!("{sign} has no name behind it: {line}"));
                    behind
                }
                _ => self.write_name(sign, &name, &behind[name.len()..], code),
            };
        }
        code.push_str(rest);
    }

    /// Writes the expression that a name stands for. Returns the text after the name.
    fn write_name<'t>(&mut self, sign: &str, name: &str, behind: &'t str, code: &mut String) -> &'t str {
        let names = if sign == "@" { &self.keys } else { &self.args };
        let table = names.table;
        let Some((first, count)) =
            names.names.iter().find(|known| known.name == name).map(|one| (one.first, one.count))
        else {
            self.problems.push(format!("{sign}{name} is not declared"));
            return behind;
        };
        self.used.insert((table, name.to_owned()));
        if sign == "&" {
            code.push_str(&first.to_string());
            return behind;
        }
        if count == Count::One {
            code.push_str(&format!("{table}[{first}]"));
            return behind;
        }
        // The number of all that are left.
        if code.ends_with('#') {
            code.pop();
            self.check(count == Count::Rest, || format!("#{sign}{name} is known: only the number of a rest is not"));
            code.push_str(&format!("(#{table} - {})", first - 1));
            return behind;
        }
        let Some((index, behind)) = split_index(behind) else {
            code.push_str(&match count {
                Count::Several(times) => {
                    Vec::from_iter((first..first + times).map(|n| format!("{table}[{n}]"))).join(", ")
                }
                _ => format!("unpack({table}, {first})"),
            });
            return behind;
        };
        match index.parse::<usize>() {
            Ok(at) => {
                let fits = at > 0 && !matches!(count, Count::Several(times) if at > times);
                self.check(fits, || format!("there is no {sign}{name}[{at}]"));
                code.push_str(&format!("{table}[{}]", first + at - 1));
            }
            // One addition instead of two.
            Err(_) => {
                let (offset, index) = match index.strip_suffix(" + 1") {
                    Some(index) => (first, index),
                    None => (first - 1, index),
                };
                code.push_str(&format!("{table}[{offset} + "));
                self.expand(index, code);
                code.push(']');
            }
        }
        behind
    }
}

impl Names {
    /// Parses the header line that begins with `head`.
    fn parse(body: &str, head: &str, table: &'static str) -> Names {
        let line = body.lines().find_map(|line| line.strip_prefix(head)).unwrap_or_default();
        let (mut names, mut first) = (Vec::new(), 1);
        for word in line.split_whitespace() {
            let several = word.strip_suffix(']').and_then(|word| word.split_once('['));
            let (name, count) = match (several, word.strip_suffix("...")) {
                (Some((name, times)), _) => (name, Count::Several(times.parse().unwrap_or(0))),
                (None, Some(name)) => (name, Count::Rest),
                (None, None) => (word, Count::One),
            };
            names.push(Name { name: name.to_owned(), first, count });
            first += if let Count::Several(times) = count { times } else { 1 };
        }
        Names { table, names }
    }

    /// Returns one name per key or argument, without those of a rest.
    fn expand(&self) -> Vec<String> {
        let mut all = Vec::new();
        for Name { name, count, .. } in &self.names {
            match count {
                Count::One => all.push(name.clone()),
                Count::Several(times) => all.extend((1..=*times).map(|n| format!("{name}[{n}]"))),
                Count::Rest => {}
            }
        }
        all
    }
}

/// Returns the expression in brackets at the beginning of a text, and the text after it.
fn split_index(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix('[')?;
    let mut depth = 1;
    for (at, c) in inner.char_indices() {
        depth += match c {
            '[' => 1,
            ']' => -1,
            _ => 0,
        };
        if depth == 0 {
            return Some((&inner[..at], &inner[at + 1..]));
        }
    }
    None
}

/// Returns the length of a quoted text after its first quote, including the last quote.
fn quoted_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '\'' if !escaped => return at + 1,
            _ => escaped = c == '\\' && !escaped,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "#!lua\n-- keys: conf ready[4] lists...\n-- args: now counts[2] rest...\n";

    /// Returns the code of this line below a header that declares the names.
    fn assemble_line(line: &str) -> Result<String, String> {
        let uses_all = "local _ = @conf, @ready, @lists, $now, $counts, $rest";
        let code = assemble(&format!("{HEAD}{uses_all}\n{line}\n"), |_| None)?.code;
        Ok(code.lines().last().unwrap_or_default().to_owned())
    }

    #[test]
    fn names_become_positions() {
        assert_eq!(assemble_line("f(@conf, $now)").as_deref(), Ok("f(KEYS[1], ARGV[1])"));
        assert_eq!(
            assemble_line("f(@ready[2], @ready[p + 1], @ready[p])").as_deref(),
            Ok("f(KEYS[3], KEYS[2 + p], KEYS[1 + p])")
        );
        assert_eq!(assemble_line("f(@ready[$now + 1])").as_deref(), Ok("f(KEYS[2 + ARGV[1]])"));
        assert_eq!(assemble_line("f(@ready)").as_deref(), Ok("f(KEYS[2], KEYS[3], KEYS[4], KEYS[5])"));
        assert_eq!(
            assemble_line("f(#@lists, @lists[n], $rest)").as_deref(),
            Ok("f((#KEYS - 5), KEYS[5 + n], unpack(ARGV, 4))")
        );
        assert_eq!(assemble_line("for at = &rest, #ARGV do").as_deref(), Ok("for at = 4, #ARGV do"));
        assert_eq!(expand(HEAD, "$counts").as_deref(), Ok("ARGV[2], ARGV[3]"));
        let script = assemble("-- args: now ids...\nf($now, $ids)", |_| None).expect("whole");
        assert_eq!((script.keys.len(), script.args), (0, vec!["now".to_owned()]));
    }

    #[test]
    fn texts_and_comments_stay_as_they_are() {
        assert_eq!(
            assemble_line("x:match('^%d$', '@conf \\' $now')").as_deref(),
            Ok("x:match('^%d$', '@conf \\' $now')")
        );
        assert_eq!(assemble_line("  -- @nothing").as_deref(), Ok("  -- @nothing"));
    }

    #[test]
    fn mistakes_are_found() {
        assert_eq!(assemble_line("f(@running)").expect_err("is wrong"), "@running is not declared");
        assert_eq!(assemble_line("f(@ready[5])").expect_err("is wrong"), "there is no @ready[5]");
        let body = "-- keys: conf\n-- include one, two";
        let part = |name: &str| (name == "one").then_some("-- needs: zero\nf($now)\n");
        let why = assemble(body, part).expect_err("is wrong");
        assert_eq!(
            why,
            "one needs zero, which is not included before it; $now is not declared; there is no part two; @conf is declared and not used"
        );
    }
}
