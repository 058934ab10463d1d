//! What is wrong with a pattern or a zone, shown at its place, with what would be right.

use croner::errors::CronError;

use super::schedule::parser;
use crate::error::Error;

/// Names of the fields of a pattern, seconds first.
const FIELDS: [(&str, &str); 6] = [
    ("second", "0-59"),
    ("minute", "0-59"),
    ("hour", "0-23"),
    ("day of the month", "1-31"),
    ("month", "1-12 or JAN-DEC"),
    ("day of the week", "0-7 or SUN-SAT"),
];
/// Most zones that are suggested.
const SUGGESTED_MAX: usize = 3;
/// Two names that differ in more letters are not alike.
const DISTANCE_MAX: usize = 3;
/// Longer names are not compared.
const ZONE_BYTES_MAX: usize = 64;

/// The error of a pattern, with a mark under the field that is wrong, if it is one.
pub(super) fn in_pattern(pattern: &str, error: &CronError) -> Error {
    let fields: Vec<(usize, &str)> = fields(pattern);
    let shown = |reason: String| Error::invalid("pattern", reason);
    if fields.is_empty() {
        return shown("is empty; write five fields, such as '0 3 * * *' for every day at 03:00".to_owned());
    }
    if !(5..=6).contains(&fields.len()) {
        return shown(format!(
            "{pattern:?} has {} fields; write five (minute hour day month weekday), or six with seconds in front",
            fields.len()
        ));
    }
    let first = 6 - fields.len();
    let wrong = fields.iter().enumerate().find(|(at, (_, field))| !is_right(first + at, field));
    let Some((at, (from, field))) = wrong else {
        return shown(format!("{pattern:?}: {error}"));
    };
    let (name, range) = FIELDS[first + at];
    // Marks stand under characters, however many bytes those have.
    let indent = " ".repeat(pattern[..*from].chars().count());
    let mark = "^".repeat(field.chars().count());
    shown(format!(
        "the {name} {field:?} is wrong; it can be {range}, *, a list (1,15), a range (1-5) or steps (*/10)\n  {}\n  {indent}{mark}",
        pattern.replace(char::is_control, " ")
    ))
}

/// A pattern that is well written and never matches.
pub(super) fn never(pattern: &str) -> Error {
    Error::invalid("pattern", format!("{pattern:?} never matches: no such day exists (as 31 February does not)"))
}

fn fields(pattern: &str) -> Vec<(usize, &str)> {
    let start = pattern.as_ptr() as usize;
    pattern.split_whitespace().map(|field| (field.as_ptr() as usize - start, field)).collect()
}

/// Whether this is a field that can stand at this place.
fn is_right(at: usize, field: &str) -> bool {
    let all: Vec<&str> = (0..6).map(|other| if other == at { field } else { "*" }).collect();
    parser().parse(&all.join(" ")).is_ok()
}

/// The error of a zone that nobody knows, with those that it may have been meant to be.
pub(super) fn unknown_zone(name: &str) -> Error {
    let known: Vec<String> = jiff::tz::db().available().map(|zone| zone.as_str().to_owned()).collect();
    if known.is_empty() {
        let reason = format!("{name:?}: this machine has no time zones; install the package tzdata, or write UTC");
        return Error::invalid("tz", reason);
    }
    let alike = alike(name, &known);
    let shown: String = name.chars().take(ZONE_BYTES_MAX).collect();
    let hint = match alike.is_empty() {
        true => "write one as Europe/Berlin, America/New_York or UTC".to_owned(),
        false => format!("did you mean {}?", alike.join(" or ")),
    };
    Error::invalid("tz", format!("{shown:?} is no time zone; {hint}"))
}

fn alike(name: &str, known: &[String]) -> Vec<String> {
    if name.is_empty() || name.len() > ZONE_BYTES_MAX {
        return Vec::new();
    }
    let name = name.to_lowercase().replace(' ', "_");
    let city = |zone: &str| zone.rsplit('/').next().unwrap_or(zone).to_owned();
    let mut near: Vec<(usize, &String)> = Vec::new();
    for zone in known {
        let whole = zone.to_lowercase();
        let far =
            distance(&name, &whole).min(distance(&name, &city(&whole))).min(distance(&city(&name), &city(&whole)));
        if far <= DISTANCE_MAX.min(city(&name).len() / 4) {
            near.push((far, zone));
        }
    }
    near.sort();
    near.into_iter().take(SUGGESTED_MAX).map(|(_, zone)| zone.clone()).collect()
}

/// How many letters must be put in, taken out or changed to make one text the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut corner = i;
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let changed = corner + usize::from(from != *to);
            corner = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use crate::cron::Schedule;

    fn told(pattern: &str) -> String {
        Schedule::parse(pattern, "UTC").expect_err("is wrong").to_string()
    }

    #[test]
    fn the_wrong_field_is_marked() {
        assert!(told("0 25 * * *").contains("the hour \"25\" is wrong"), "{}", told("0 25 * * *"));
        assert!(told("0 25 * * *").ends_with("\n  0 25 * * *\n    ^^"), "{}", told("0 25 * * *"));
        assert!(told("61 0 25 * * *").contains("second"), "{}", told("61 0 25 * * *"));
        assert!(told("0 0 * * FOO").contains("day of the week"), "{}", told("0 0 * * FOO"));
    }

    #[test]
    fn the_number_of_fields_is_told() {
        assert!(told("0 3 *").contains("has 3 fields"), "{}", told("0 3 *"));
        assert!(told("0 0 3 * * * 2030").contains("has 7 fields"), "{}", told("0 0 3 * * * 2030"));
        assert!(told("").contains("is empty"), "{}", told(""));
    }

    #[test]
    fn what_never_happens_is_refused() {
        for pattern in ["0 0 31 2 *", "0 0 30 FEB *", "0 0 31 4,6,9,11 *"] {
            assert!(told(pattern).contains("never matches"), "{}", told(pattern));
        }
        Schedule::parse("0 0 29 2 *", "UTC").expect("a leap day comes");
    }

    #[test]
    fn zones_that_are_nearly_right_are_suggested() {
        let told = |zone| Schedule::parse("0 3 * * *", zone).expect_err("no such zone").to_string();
        assert!(told("Europe/Berlni").contains("Europe/Berlin"), "{}", told("Europe/Berlni"));
        assert!(told("Berlin").contains("Europe/Berlin"), "{}", told("Berlin"));
        assert!(told("New York").contains("America/New_York"), "{}", told("New York"));
        assert!(told("Middle-earth/Bree").contains("Europe/Berlin"), "says how one looks");
    }
}
