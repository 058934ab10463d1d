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
const SUGGESTIONS_MAX: usize = 3;
/// Two names that differ in more letters are not alike.
const EDIT_DISTANCE_MAX: usize = 3;
/// Longer names are not compared.
const ZONE_BYTES_MAX: usize = 64;

/// The error of a pattern, with a mark under the field that is wrong, if it is one.
pub(super) fn invalid_pattern(pattern: &str, error: &CronError) -> Error {
    let fields: Vec<(usize, &str)> = split_fields(pattern);
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
    let wrong = fields.iter().enumerate().find(|(at, (_, field))| !is_valid_field(first + at, field));
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
pub(super) fn pattern_never_matches(pattern: &str) -> Error {
    Error::invalid("pattern", format!("{pattern:?} never matches: no such day exists (as 31 February does not)"))
}

fn split_fields(pattern: &str) -> Vec<(usize, &str)> {
    let start = pattern.as_ptr() as usize;
    pattern.split_whitespace().map(|field| (field.as_ptr() as usize - start, field)).collect()
}

/// Whether this is a field that can stand at this place.
fn is_valid_field(at: usize, field: &str) -> bool {
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
    let alike = similar_zones(name, &known);
    let shown: String = name.chars().take(ZONE_BYTES_MAX).collect();
    let hint = match alike.is_empty() {
        true => "write one as Europe/Berlin, America/New_York or UTC".to_owned(),
        false => format!("did you mean {}?", alike.join(" or ")),
    };
    Error::invalid("tz", format!("{shown:?} is no time zone; {hint}"))
}

fn similar_zones(name: &str, known: &[String]) -> Vec<String> {
    if name.is_empty() || name.len() > ZONE_BYTES_MAX {
        return Vec::new();
    }
    let name = name.to_lowercase().replace(' ', "_");
    let city = |zone: &str| zone.rsplit('/').next().unwrap_or(zone).to_owned();
    let mut near: Vec<(usize, &String)> = Vec::new();
    for zone in known {
        let whole = zone.to_lowercase();
        let far = edit_distance(&name, &whole)
            .min(edit_distance(&name, &city(&whole)))
            .min(edit_distance(&city(&name), &city(&whole)));
        if far <= EDIT_DISTANCE_MAX.min(city(&name).len() / 4) {
            near.push((far, zone));
        }
    }
    near.sort();
    near.into_iter().take(SUGGESTIONS_MAX).map(|(_, zone)| zone.clone()).collect()
}

/// How many letters must be put in, taken out or changed to make one text the other.
fn edit_distance(a: &str, b: &str) -> usize {
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

    fn error_message(pattern: &str) -> String {
        Schedule::parse(pattern, "UTC").expect_err("is wrong").to_string()
    }

    #[test]
    fn invalid_field_is_marked() {
        assert!(error_message("0 25 * * *").contains("the hour \"25\" is wrong"), "{}", error_message("0 25 * * *"));
        assert!(error_message("0 25 * * *").ends_with("\n  0 25 * * *\n    ^^"), "{}", error_message("0 25 * * *"));
        assert!(error_message("61 0 25 * * *").contains("second"), "{}", error_message("61 0 25 * * *"));
        assert!(error_message("0 0 * * FOO").contains("day of the week"), "{}", error_message("0 0 * * FOO"));
    }

    #[test]
    fn wrong_field_count_is_reported() {
        assert!(error_message("0 3 *").contains("has 3 fields"), "{}", error_message("0 3 *"));
        assert!(error_message("0 0 3 * * * 2030").contains("has 7 fields"), "{}", error_message("0 0 3 * * * 2030"));
        assert!(error_message("").contains("is empty"), "{}", error_message(""));
    }

    #[test]
    fn pattern_that_never_matches_is_rejected() {
        for pattern in ["0 0 31 2 *", "0 0 30 FEB *", "0 0 31 4,6,9,11 *"] {
            assert!(error_message(pattern).contains("never matches"), "{}", error_message(pattern));
        }
        Schedule::parse("0 0 29 2 *", "UTC").expect("a leap day comes");
    }

    #[test]
    fn misspelled_zone_gets_suggestions() {
        let told = |zone| Schedule::parse("0 3 * * *", zone).expect_err("no such zone").to_string();
        assert!(told("Europe/Berlni").contains("Europe/Berlin"), "{}", told("Europe/Berlni"));
        assert!(told("Berlin").contains("Europe/Berlin"), "{}", told("Berlin"));
        assert!(told("New York").contains("America/New_York"), "{}", told("New York"));
        assert!(told("Middle-earth/Bree").contains("Europe/Berlin"), "says how one looks");
    }
}
