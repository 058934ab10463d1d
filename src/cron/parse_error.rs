//! Errors of patterns and time zones: they point at the wrong field and suggest valid input.

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
/// Maximum suggested time zones.
const SUGGESTIONS_MAX: usize = 3;
/// Maximum edit distance of similar names.
const EDIT_DISTANCE_MAX: usize = 3;
/// Longer names are not compared.
const ZONE_BYTES_MAX: usize = 64;

/// Returns the error of an invalid pattern, with a marker under the invalid field if there is one.
pub(super) fn invalid_pattern(pattern: &str, error: &CronError) -> Error {
    let fields: Vec<(usize, &str)> = split_fields(pattern);
    let invalid = |reason: String| Error::invalid("pattern", reason);
    if fields.is_empty() {
        return invalid("is empty; use five fields, such as '0 3 * * *' for every day at 03:00".to_owned());
    }
    if !(5..=6).contains(&fields.len()) {
        return invalid(format!(
            "{pattern:?} has {} fields; use five (minute hour day month weekday), or six with seconds first",
            fields.len()
        ));
    }
    let first = 6 - fields.len();
    let wrong = fields.iter().enumerate().find(|(index, (_, field))| !is_valid_field(first + index, field));
    let Some((index, (start, field))) = wrong else {
        return invalid(format!("{pattern:?}: {error}"));
    };
    let (name, range) = FIELDS[first + index];
    // Counted in characters, which may have several bytes.
    let indent = " ".repeat(pattern[..*start].chars().count());
    let marker = "^".repeat(field.chars().count());
    invalid(format!(
        "invalid {name} {field:?}; use {range}, *, a list (1,15), a range (1-5) or steps (*/10)\n  {}\n  \
         {indent}{marker}",
        pattern.replace(char::is_control, " ")
    ))
}

/// Returns the error of a valid pattern that never matches.
pub(super) fn pattern_never_matches(pattern: &str) -> Error {
    Error::invalid(
        "pattern",
        format!("{pattern:?} never matches: there is no such day (such as 31 February); correct the day or the month"),
    )
}

fn split_fields(pattern: &str) -> Vec<(usize, &str)> {
    let start = pattern.as_ptr() as usize;
    pattern.split_whitespace().map(|field| (field.as_ptr() as usize - start, field)).collect()
}

/// Returns whether the field is valid at this position.
fn is_valid_field(index: usize, field: &str) -> bool {
    let all: Vec<&str> = (0..6).map(|other| if other == index { field } else { "*" }).collect();
    parser().parse(&all.join(" ")).is_ok()
}

/// Returns the error of an unknown time zone, with suggestions.
pub(super) fn unknown_zone(name: &str) -> Error {
    let zones: Vec<String> = jiff::tz::db().available().map(|zone| zone.as_str().to_owned()).collect();
    if zones.is_empty() {
        let reason = format!("{name:?}: this machine has no time zones; install the package tzdata, or use UTC");
        return Error::invalid("tz", reason);
    }
    let similar = similar_zones(name, &zones);
    let shown: String = name.chars().take(ZONE_BYTES_MAX).collect();
    let hint = match similar.is_empty() {
        true => "use a name such as Europe/Berlin, America/New_York or UTC".to_owned(),
        false => format!("did you mean {}?", similar.join(" or ")),
    };
    Error::invalid("tz", format!("unknown time zone {shown:?}; {hint}"))
}

fn similar_zones(name: &str, zones: &[String]) -> Vec<String> {
    if name.is_empty() || name.len() > ZONE_BYTES_MAX {
        return Vec::new();
    }
    let name = name.to_lowercase().replace(' ', "_");
    let city = |zone: &str| zone.rsplit('/').next().unwrap_or(zone).to_owned();
    let mut similar: Vec<(usize, &String)> = Vec::new();
    for zone in zones {
        let whole = zone.to_lowercase();
        let distance = edit_distance(&name, &whole)
            .min(edit_distance(&name, &city(&whole)))
            .min(edit_distance(&city(&name), &city(&whole)));
        if distance <= EDIT_DISTANCE_MAX.min(city(&name).len() / 4) {
            similar.push((distance, zone));
        }
    }
    similar.sort();
    similar.into_iter().take(SUGGESTIONS_MAX).map(|(_, zone)| zone.clone()).collect()
}

/// Returns the Levenshtein distance of two texts.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut corner = i;
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = corner + usize::from(from != *to);
            corner = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(corner + 1);
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
        assert!(error_message("0 25 * * *").contains("invalid hour \"25\""), "{}", error_message("0 25 * * *"));
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
        let message = |zone| Schedule::parse("0 3 * * *", zone).expect_err("no such zone").to_string();
        assert!(message("Europe/Berlni").contains("Europe/Berlin"), "{}", message("Europe/Berlni"));
        assert!(message("Berlin").contains("Europe/Berlin"), "{}", message("Berlin"));
        assert!(message("New York").contains("America/New_York"), "{}", message("New York"));
        assert!(message("Middle-earth/Bree").contains("Europe/Berlin"), "shows an example");
    }
}
