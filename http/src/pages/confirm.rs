//! The question before an action that cannot be undone: in a dialog with scripts, on a page without.

use askama::Template;

use super::layout::Layout;
use super::{PageResult, render};

/// A question, which names what changes, and the labels of its two answers.
#[derive(Clone, Debug)]
pub(super) struct Confirmation {
    pub question: String,
    pub explanation: String,
    /// The button that acts: a verb with its object.
    pub yes: String,
    /// The button that leaves everything as it is.
    pub no: &'static str,
}

/// The page that asks.
#[derive(Template)]
#[template(path = "confirm.html")]
struct ConfirmPage<'p> {
    layout: Layout,
    confirmation: &'p Confirmation,
    action: &'p str,
    fields: &'p [(&'static str, String)],
    back: &'p str,
}

impl Confirmation {
    pub(super) fn new(question: String, explanation: &str, yes: &str, no: &'static str) -> Confirmation {
        Confirmation { question, explanation: explanation.to_owned(), yes: yes.to_owned(), no }
    }

    /// Renders the page whose form is sent to `action` with these further fields. The other answer leads to `back`. Both
    /// are paths below the root.
    pub(super) fn page(
        &self,
        mut layout: Layout,
        action: &str,
        fields: &[(&'static str, String)],
        back: &str,
    ) -> PageResult {
        layout.title.clone_from(&self.question);
        render(&ConfirmPage { layout, confirmation: self, action, fields, back })
    }
}
