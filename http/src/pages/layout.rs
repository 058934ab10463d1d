//! The layout of every page: navigation, identity, theme, time zone, flash message.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{FromRequestParts, NestedPath};
use axum::http::header::COOKIE;
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap};
use jiff::tz::TimeZone;

use super::assets;
use super::display::{self, Moment};
use super::flash::{self, Flash};
use crate::auth::LOCAL;
use crate::identity::Identity;
use crate::server::App;
use duly::admin::QueueCounts;
use duly::admin::Role;
use duly::{Duly, State};

/// The longest name of a time zone.
const ZONE_BYTES_MAX: usize = 64;
/// The most queues in the suggestions of a field.
pub(super) const SUGGESTED_QUEUES_MAX: usize = 200;

/// The links of the navigation: group, path, label, and the key that opens the page after `g`.
const LINKS: [(usize, &str, &str, char); 12] = [
    (0, "/", "Overview", 'o'),
    (0, "/jobs", "Jobs", 'j'),
    (0, "/queues", "Queues", 'q'),
    (0, "/kinds", "Kinds", 'k'),
    (0, "/scheduled", "Scheduled", 's'),
    (0, "/dead", "Dead", 'd'),
    (0, "/cron", "Cron", 'c'),
    (1, "/nodes", "Nodes", 'n'),
    (1, "/locks", "Locks", 'l'),
    (1, "/calls", "Calls", 'm'),
    (2, "/audit", "Audit", 'a'),
    (2, "/settings", "Settings", 'e'),
];

/// The layout of a page.
pub(super) struct Layout {
    /// The path under which the pages are mounted: "" or "/duly".
    pub root: String,
    /// The path and query of this page, below the root.
    pub current_url: String,
    /// The path of the current link in the navigation.
    pub nav_path: &'static str,
    pub title: String,
    /// "light", "dark", or empty for the setting of the system.
    pub theme: &'static str,
    pub zone: TimeZone,
    pub zone_name: String,
    /// The store's time when the page was rendered.
    pub now: SystemTime,
    pub store: String,
    pub identity: String,
    pub role: Role,
    /// The server refuses all changes.
    pub read_only: bool,
    pub flash: Option<Flash>,
    /// The server is behind TLS, so its cookies must not be sent without.
    pub secure: bool,
    /// Requests from outside the browser need a token.
    pub needs_token: bool,
    /// The text of the filter box.
    pub query: String,
    pub counts: Vec<QueueCounts>,
    features: StoreFeatures,
}

/// The features of the store that have controls or pages of their own.
#[derive(Clone, Copy)]
struct StoreFeatures {
    jobs: bool,
    admin: bool,
    crons: bool,
    locks: bool,
    access: bool,
}

impl StoreFeatures {
    fn of(duly: &Duly) -> StoreFeatures {
        StoreFeatures {
            jobs: duly.supports("jobs"),
            admin: duly.supports("admin"),
            crons: duly.supports("crons"),
            locks: duly.supports("locks"),
            access: duly.supports("access"),
        }
    }

    /// Returns whether the store has what the page at this path shows.
    fn has_page(self, path: &str) -> bool {
        match path {
            "/jobs" | "/queues" | "/kinds" | "/scheduled" => self.jobs,
            "/dead" => self.admin,
            "/cron" => self.crons,
            "/locks" => self.locks,
            "/audit" => self.access,
            _ => true,
        }
    }
}

/// A link of the navigation.
pub(super) struct Link {
    pub path: &'static str,
    pub name: &'static str,
    /// The key that opens the page after `g`.
    pub key: char,
    pub badge: String,
    pub class: &'static str,
    pub current: bool,
}

impl Layout {
    /// Builds the layout for a request.
    pub(super) async fn new(app: &App, identity: Option<&Identity>, parts: &Parts) -> Layout {
        let root = root(app, &parts.extensions);
        let (zone, zone_name) = zone(cookie(&parts.headers, "duly_zone"));
        Layout {
            root: root.to_owned(),
            current_url: parts.uri.path_and_query().map_or("/", |all| all.as_str()).to_owned(),
            nav_path: "",
            title: String::new(),
            theme: theme(cookie(&parts.headers, "duly_theme")),
            zone,
            zone_name,
            now: app.duly.now(),
            store: app.duly.display_url(),
            identity: identity.map(|identity| format!("{} ({})", identity.name, identity.role)).unwrap_or_default(),
            role: identity.map_or(Role::Viewer, |identity| identity.role),
            read_only: app.options.read_only,
            flash: flash::of_request(&parts.headers),
            secure: app.options.secure,
            needs_token: !app.options.open && identity.is_some_and(|identity| identity.name != LOCAL),
            query: String::new(),
            // A page without badges is better than an error.
            counts: if identity.is_some() { app.duly.queues().counts().await.unwrap_or_default() } else { Vec::new() },
            features: StoreFeatures::of(&app.duly),
        }
    }

    /// Sets the title, and the current link of the navigation.
    pub(super) fn with_title(mut self, nav_path: &'static str, title: impl Into<String>) -> Layout {
        self.nav_path = nav_path;
        self.title = title.into();
        self
    }

    /// Sets the path and query of this page, if the request has those of an action.
    pub(super) fn with_url(mut self, url: String) -> Layout {
        self.current_url = url;
        self
    }

    /// Returns the URL of an asset.
    pub(super) fn asset(&self, name: &str) -> String {
        format!("{}{}", self.root, assets::path(name))
    }

    /// Returns whether to show controls that need this role.
    pub(super) fn can(&self, role: Role) -> bool {
        !self.read_only && self.role >= role
    }

    /// Returns whether the client can manage jobs, queues, rules and nodes.
    pub(super) fn can_operate(&self) -> bool {
        self.can(Role::Operator)
    }

    /// Returns whether the client can do what only stores without another system's keys support: edit a job, cancel one
    /// that waits, and set the capacity of a queue.
    pub(super) fn can_administer(&self) -> bool {
        self.can_operate() && self.features.admin
    }

    /// Returns whether every worker is a node of the store. On another system's keys, its own processes work too, and
    /// duly does not list them.
    pub(super) fn lists_all_workers(&self) -> bool {
        self.features.admin
    }

    /// Returns whether the client can push jobs.
    pub(super) fn can_push(&self) -> bool {
        self.can(Role::Pusher)
    }

    /// Returns whether the client can see the args of jobs.
    pub(super) fn can_see_args(&self) -> bool {
        self.role >= Role::Operator
    }

    /// Formats a time in the reader's time zone.
    pub(super) fn moment(&self, at: SystemTime) -> Moment {
        display::moment(at, self.now, &self.zone)
    }

    /// Formats a time in the reader's time zone for a sentence: to the second.
    pub(super) fn time_in_sentence(&self, at: SystemTime) -> String {
        display::time_in_sentence(at, &self.zone)
    }

    /// Returns when the page was rendered.
    pub(super) fn rendered_at(&self) -> Moment {
        self.moment(self.now)
    }

    /// Returns the number of jobs in this state in all queues.
    pub(super) fn total(&self, state: State) -> u64 {
        self.counts.iter().map(|queue| queue.count_in(state)).sum()
    }

    /// Returns the links of a group of the navigation.
    pub(super) fn links(&self, group: usize) -> Vec<Link> {
        let shown = LINKS.into_iter().filter(|link| link.0 == group && self.features.has_page(link.1));
        shown
            .map(|(_, path, name, key)| {
                let (badge, class) = self.badge(path);
                Link { path, name, key, badge, class, current: path == self.nav_path }
            })
            .collect()
    }

    /// Returns all links of the navigation.
    pub(super) fn all_links(&self) -> Vec<Link> {
        (0..3).flat_map(|group| self.links(group)).collect()
    }

    fn badge(&self, path: &str) -> (String, &'static str) {
        let some = |number: u64| if number == 0 { String::new() } else { display::count(number) };
        match path {
            "/scheduled" => (some(self.total(State::Scheduled)), ""),
            "/dead" => (some(self.total(State::Dead)), "dead"),
            _ => (String::new(), ""),
        }
    }

    /// Returns the suggestions of the filter box as JSON.
    pub(super) fn filter_suggestions(&self) -> String {
        let mut all: Vec<String> = State::ALL.iter().map(|state| format!("state:{state}")).collect();
        all.extend(
            ["id:", "kind:", "queue:", "tag:", "error:", "args.", "since:1h", "since:1d", "until:", "-state:done"]
                .map(str::to_owned),
        );
        all.extend(["low", "normal", "high", "critical"].map(|priority| format!("priority:{priority}")));
        all.extend(self.counts.iter().take(SUGGESTED_QUEUES_MAX).map(|queue| format!("queue:{}", queue.queue)));
        serde_json::to_string(&all).unwrap_or_else(|_| "[]".to_owned())
    }

    /// Returns the next theme of the theme button.
    pub(super) fn next_theme(&self) -> &'static str {
        match self.theme {
            "" => "light",
            "light" => "dark",
            _ => "auto",
        }
    }

    pub(super) fn theme_label(&self) -> &'static str {
        if self.theme.is_empty() { "like the system" } else { self.theme }
    }
}

/// Requires [`crate::auth::handle_request`], which identifies the client.
impl FromRequestParts<Arc<App>> for Layout {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Infallible> {
        let identity = parts.extensions.get::<Identity>().cloned();
        Ok(Layout::new(app, identity.as_ref(), parts).await)
    }
}

/// Returns the path under which the pages are mounted.
pub(super) fn root<'r>(app: &'r App, extensions: &'r Extensions) -> &'r str {
    let prefix = app.options.prefix.as_str();
    let nested = extensions.get::<NestedPath>().map(NestedPath::as_str);
    if prefix.is_empty() { nested.unwrap_or_default().trim_end_matches('/') } else { prefix }
}

pub(super) fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(found, _)| *found == name).map(|(_, value)| value)
}

pub(super) fn theme(name: Option<&str>) -> &'static str {
    match name {
        Some("light") => "light",
        Some("dark") => "dark",
        _ => "",
    }
}

/// Returns the time zone with this name, or that of the server.
pub(super) fn zone(wanted: Option<&str>) -> (TimeZone, String) {
    let wanted = wanted.map(|name| name.replace("%2F", "/")).filter(|name| name.len() <= ZONE_BYTES_MAX);
    let named = wanted.and_then(|name| TimeZone::get(&name).ok());
    let zone = named.unwrap_or_else(TimeZone::system);
    match zone.iana_name().map(str::to_owned) {
        Some(name) if name != "Etc/UTC" => (zone, name),
        // A zone without a name, from a file or a rule, is unknown to browsers.
        _ => (TimeZone::UTC, "UTC".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_zones_are_the_servers() {
        assert_eq!(zone(Some("Europe/Berlin")).1, "Europe/Berlin");
        assert_eq!(zone(Some("Europe%2FBerlin")).1, "Europe/Berlin");
        let own = zone(None).1;
        assert_eq!(zone(Some("<script>")).1, own);
        assert_eq!(zone(Some(&"x".repeat(10_000))).1, own);
    }

    #[test]
    fn cookies_are_found_by_their_name() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, "a=1; duly_theme=dark; b=2".parse().expect("a header"));
        assert_eq!(cookie(&headers, "duly_theme"), Some("dark"));
        assert_eq!(cookie(&headers, "theme"), None);
        assert_eq!(theme(Some("pink")), "");
    }
}
