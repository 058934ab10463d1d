//! Describes common cron patterns in plain English. Pure.

/// Describes a pattern of five fields: `Every day at 03:00.` Returns `None` for a pattern without a simple description.
pub(super) fn describe(pattern: &str) -> Option<String> {
    let fields: Vec<&str> = pattern.split_whitespace().collect();
    let [minute, hour, day, "*", weekday] = fields[..] else {
        return None;
    };
    let text = match (minute, hour, day, weekday) {
        ("*", "*", "*", "*") => "Every minute".to_owned(),
        (minute, "*", "*", "*") => match step(minute, 60) {
            Some(step) => format!("Every {step} minutes"),
            None => format!("Every hour at minute {}", number(minute, 59)?),
        },
        (minute, hour, "*", "*") if hour.starts_with("*/") => {
            format!("Every {} hours from 00:{:02}", step(hour, 24)?, number(minute, 59)?)
        }
        (minute, hours, day, weekday) => {
            let days = match (day, weekday) {
                ("*", "*") => "Every day".to_owned(),
                ("*", weekday) => weekdays(weekday)?,
                (day, "*") => format!("On day {} of every month", number(day, 28).filter(|day| *day > 0)?),
                _ => return None,
            };
            format!("{days} at {}", times(minute, hours)?)
        }
    };
    Some(text + ".")
}

/// Parses a single number of at most `max`.
fn number(text: &str, max: u32) -> Option<u32> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_plain && *number <= max)
}

/// Parses `*/N` if N divides `whole`: otherwise the last interval is shorter than N.
fn step(text: &str, whole: u32) -> Option<u32> {
    let step = number(text.strip_prefix("*/")?, whole)?;
    (step > 1 && whole.is_multiple_of(step)).then_some(step)
}

/// Formats the times of one minute in a list of hours: `02:30 and 14:30`.
fn times(minute: &str, hours: &str) -> Option<String> {
    let minute = number(minute, 59)?;
    let times: Option<Vec<String>> =
        hours.split(',').map(|hour| number(hour, 23).map(|hour| format!("{hour:02}:{minute:02}"))).collect();
    Some(list(&times?))
}

/// Formats a weekday, a list or a range of them: `Every Monday and Friday`, `Monday to Friday`.
fn weekdays(text: &str) -> Option<String> {
    if let Some((first, last)) = text.split_once('-') {
        return Some(format!("{} to {}", weekday(first)?, weekday(last)?));
    }
    let days: Option<Vec<String>> = text.split(',').map(|day| weekday(day).map(str::to_owned)).collect();
    Some(format!("Every {}", list(&days?)))
}

fn weekday(text: &str) -> Option<&'static str> {
    const DAYS: [&str; 8] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
    if let Some(number) = number(text, 7) {
        return DAYS.get(usize::try_from(number).ok()?).copied();
    }
    let named = |day: &&&str| text.len() == 3 && day.get(..3).is_some_and(|short| short.eq_ignore_ascii_case(text));
    DAYS.iter().find(named).copied()
}

/// Joins texts: `a`, `a and b`, `a, b and c`.
fn list(texts: &[String]) -> String {
    match texts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_patterns_have_a_plain_description() {
        for (pattern, text) in [
            ("* * * * *", "Every minute."),
            ("*/15 * * * *", "Every 15 minutes."),
            ("0 * * * *", "Every hour at minute 0."),
            ("0 */6 * * *", "Every 6 hours from 00:00."),
            ("0 3 * * *", "Every day at 03:00."),
            ("30 2,14 * * *", "Every day at 02:30 and 14:30."),
            ("30 8 * * MON", "Every Monday at 08:30."),
            ("0 9 * * 1-5", "Monday to Friday at 09:00."),
            ("0 9,12,18 * * sat,7", "Every Saturday and Sunday at 09:00, 12:00 and 18:00."),
            ("15 4 1 * *", "On day 1 of every month at 04:15."),
        ] {
            assert_eq!(describe(pattern).as_deref(), Some(text), "{pattern}");
        }
    }

    #[test]
    fn other_patterns_have_none() {
        let odd = [
            "",
            "0 3 * *",
            "*/7 * * * *",
            "0 3 31 * *",
            "0 3 L * *",
            "0 3 1 * MON",
            "0 3 * JAN *",
            "0 0 3 * * *",
            "+5 3 * * *",
        ];
        let more = ["0 3 * * MON#2", "0 3 * * FRIDAY", "0 3 * * 1-5,7", "0 1-5 * * *", "0,30 3 * * *", "@daily"];
        for pattern in odd.into_iter().chain(more) {
            assert_eq!(describe(pattern), None, "{pattern}");
        }
    }
}
