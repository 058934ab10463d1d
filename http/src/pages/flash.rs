//! Flash messages: one sentence per action, with an undo if there is one. Pure.

use super::display;
use duly::bounds::NAME_BYTES_MAX;

/// A message at the top of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flash {
    pub text: String,
    pub is_error: bool,
    pub undo: Option<Undo>,
}

/// A button that undoes the action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Undo {
    /// The path to post to, below the root.
    pub action: String,
    pub label: &'static str,
}

/// Returns the URL of a redirect with a flash message.
pub(super) fn url(path: &str, action: &str, number: Option<u64>, name: &str) -> String {
    let separator = if path.contains('?') { '&' } else { '?' };
    let mut to = format!("{path}{separator}did={action}");
    if let Some(number) = number {
        to.push_str(&format!("&n={number}"));
    }
    if !name.is_empty() {
        to.push_str(&format!("&of={}", display::url_encode(name)));
    }
    to
}

/// Returns the flash message of a query. Only numbers and names come from the query, never other text.
pub(super) fn from_query(query: &str) -> Option<Flash> {
    let value = |key: &str| {
        query.split('&').filter_map(|pair| pair.split_once('=')).find(|pair| pair.0 == key).map(|pair| pair.1)
    };
    let jobs = display::plural(value("n").and_then(|n| n.parse().ok()).unwrap_or(1), "job");
    let name = value("of").map(decode).filter(|name| is_name(name)).unwrap_or_default();
    let path = display::url_encode(&name);
    let plain = |text: String| Some(Flash { text, is_error: false, undo: None });
    let undo =
        |text: String, action: String, label| Some(Flash { text, is_error: false, undo: Some(Undo { action, label }) });
    match value("did")? {
        "pushed" => plain("Pushed: the job is kept.".to_owned()),
        "there" => plain("This job was there already; nothing was changed.".to_owned()),
        "retried" => plain(format!("Retried: {jobs} will run as soon as there is room.")),
        "removed" => plain(format!("Removed {jobs}.")),
        "rescheduled" => plain(format!("Rescheduled {jobs}.")),
        "cancelled" => plain(format!("Told {jobs} to stop. What stops ends dead with the error \"cancelled\".")),
        "edited" => plain("Changed: the next attempt gets the new args.".to_owned()),
        "paused" => {
            undo(format!("Queue {name} is paused; what runs goes on."), format!("/queues/{path}/resume"), "Undo")
        }
        "resumed" => undo(format!("Queue {name} is claimed from again."), format!("/queues/{path}/pause"), "Undo"),
        "capacity" => plain(format!("The capacity of queue {name} is set.")),
        "cleared" => plain(format!("Cleared queue {name}: removed {jobs}.")),
        "rule" => plain(format!("Rule {name} is saved.")),
        "rule-paused" => undo(format!("Rule {name} is paused."), format!("/cron/{path}/resume"), "Undo"),
        "rule-resumed" => undo(format!("Rule {name} goes on."), format!("/cron/{path}/pause"), "Undo"),
        "rule-removed" => plain(format!("Rule {name} is removed; jobs that it has pushed stay.")),
        "triggered" => plain(format!("Rule {name} has pushed a job now.")),
        "quiet" => {
            undo("The node claims no more; what runs goes on.".to_owned(), format!("/nodes/{path}/resume"), "Undo")
        }
        "node-resumed" => plain("The node claims again.".to_owned()),
        "stopping" => plain("The node stops: it finishes what runs, then ends.".to_owned()),
        "broken" => plain("The lock is free; whoever had it learns that it is lost.".to_owned()),
        "appearance" => plain("Saved for this browser.".to_owned()),
        _ => None,
    }
}

fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.:/-".contains(c);
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(plain)
}

fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_redirect_carries_the_flash() {
        let to = url("/queues/mail", "paused", None, "mail:eu");
        assert_eq!(to, "/queues/mail?did=paused&of=mail%3Aeu");
        let flash = from_query(to.split_once('?').expect("a query").1).expect("something to say");
        assert_eq!(flash.text, "Queue mail:eu is paused; what runs goes on.");
        assert_eq!(flash.undo.expect("a way back").action, "/queues/mail%3Aeu/resume");
        assert_eq!(url("/jobs?q=x", "removed", Some(12), ""), "/jobs?q=x&did=removed&n=12");
    }

    #[test]
    fn a_query_cannot_inject_other_text() {
        assert_eq!(from_query("did=You%20have%20won"), None);
        let flash = from_query("did=paused&of=%3Cscript%3Ealert(1)%3C/script%3E").expect("a sentence");
        assert_eq!(flash.text, "Queue  is paused; what runs goes on.");
        assert_eq!(text_of("did=removed&n=99999999999999999999999"), "Removed 1 job.");
    }

    fn text_of(query: &str) -> String {
        from_query(query).expect("a sentence").text
    }
}
