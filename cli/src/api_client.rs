//! A `duly serve` that is asked over HTTP, and how its answers are told from those of others.
//!
//! What stands between us and it may answer in its place: a proxy that wants a login, a portal, another program on that port.
//! Whatever is not surely an answer of duly's is a failure, however well it looks.

use std::time::Duration;

use serde_json::Value;
use ureq::http::{Response, StatusCode, header};

use crate::exit::{self, CliError};

/// No answer takes longer: a wait asks again.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(90);
/// No answer is longer.
const RESPONSE_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// A server to ask.
pub(crate) struct ApiClient {
    agent: ureq::Agent,
    url: String,
    bearer: Option<String>,
}

impl ApiClient {
    pub(crate) fn new(url: &str) -> anyhow::Result<Self> {
        let url = url.trim_end_matches('/');
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(CliError::new(exit::USAGE, format!("server: {url:?} is no URL; write http://127.0.0.1:7711")));
        }
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(RESPONSE_TIMEOUT));
        // A push that is sent on becomes a look at some other page: the server has an address, and is asked there.
        let config = config.max_redirects(0).build();
        let bearer = std::env::var("DULY_TOKEN").ok().filter(|token| !token.is_empty());
        let bearer = bearer.map(|token| format!("Bearer {token}"));
        Ok(ApiClient { agent: config.new_agent(), url: url.to_owned(), bearer })
    }

    /// Its address, without what may be secret.
    fn display_url(&self) -> String {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("", &self.url));
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        format!("{scheme}://{host}{path}")
    }

    pub(crate) fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.request("GET", path, None)
    }

    /// Asks for something that has a list of this name in it.
    pub(crate) fn get_list(&self, path: &str, name: &str) -> anyhow::Result<Value> {
        let answer = self.get(path)?;
        match answer[name].is_array() {
            true => Ok(answer),
            false => Err(self.unexpected_response_error(&format!("its answer has no {name}"))),
        }
    }

    /// Asks, and gives what is answered, `null` for nothing; what the server refuses is a failure with its words.
    pub(crate) fn request(&self, method: &str, path: &str, body: Option<&str>) -> anyhow::Result<Value> {
        let mut request = ureq::http::Request::builder().method(method).uri(format!("{}/api/v1{path}", self.url));
        if let Some(bearer) = &self.bearer {
            request = request.header("Authorization", bearer);
        }
        let request = request.header("Content-Type", "application/json").body(body.unwrap_or_default().to_owned())?;
        let mut answer = self.agent.run(request).map_err(|error| self.unreachable_error(error))?;
        if answer.status().is_redirection() {
            return Err(self.redirect_error(&answer));
        }
        let body = answer.body_mut().with_config().limit(RESPONSE_BYTES_MAX);
        let text = body.read_to_string().map_err(|error| self.unreachable_error(error))?;
        let status = answer.status();
        if status.is_success() {
            return self.parse_body(status, content_type(&answer), &text);
        }
        let problem: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        let detail = problem["detail"].as_str().unwrap_or("the server gave no reason").to_owned();
        // Below its first line may stand what was given, and a mark under the wrong place.
        let (first, place) = detail.split_at(detail.find('\n').unwrap_or(detail.len()));
        let status = status.as_u16();
        Err(CliError::new(exit_code_for_status(status), format!("{first} ({status}){place}")))
    }

    /// What a good answer says. Where duly has nothing to say its status says so; all else is JSON.
    fn parse_body(&self, status: StatusCode, content_type: &str, text: &str) -> anyhow::Result<Value> {
        if text.is_empty() && matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(Value::Null);
        }
        let kind = content_type.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            let kind = if kind.is_empty() { "something that has no type" } else { kind };
            return Err(
                self.unexpected_response_error(&format!("it answers {} with {kind}, not with JSON", status.as_u16()))
            );
        }
        serde_json::from_str(text)
            .map_err(|why| self.unexpected_response_error(&format!("its answer is not JSON: {why}")))
    }

    /// No answer came, or not all of it.
    fn unreachable_error(&self, error: ureq::Error) -> anyhow::Error {
        let why = match error {
            ureq::Error::BodyExceedsLimit(_) => {
                let why = format!("the answer is longer than {RESPONSE_BYTES_MAX} bytes; ask for fewer with --limit");
                return CliError::new(exit::FAILURE, why);
            }
            ureq::Error::Io(error) => error.to_string(),
            other => other.to_string(),
        };
        let advice = "is `duly serve` running there, and is the address right?";
        CliError::new(exit::STORE_FAILED, format!("cannot reach the server at {}: {why}; {advice}", self.display_url()))
    }

    /// It says that what we want is somewhere else. That may be a login page, so nobody goes there unasked.
    fn redirect_error<T>(&self, answer: &Response<T>) -> anyhow::Error {
        let place = answer.headers().get(header::LOCATION).and_then(|place| place.to_str().ok());
        // What follows a login is often written behind it, secrets included.
        let place = place.and_then(|place| place.split(['?', '#']).next()).unwrap_or("nowhere");
        let (shown, status) = (self.display_url(), answer.status().as_u16());
        let advice = "if `duly serve` has moved, give that address to --server; if it is a login page, let the proxy in front pass /api/ with its Authorization header on";
        CliError::new(
            exit::STORE_FAILED,
            format!("the server at {shown} points elsewhere ({status}), to {place}: {advice}"),
        )
    }

    /// Something answers there that is no server of duly's.
    pub(crate) fn unexpected_response_error(&self, why: &str) -> anyhow::Error {
        let advice = "check the address, and what stands before it: a proxy that asks for a login, a captive portal, another program on that port";
        let shown = self.display_url();
        CliError::new(exit::STORE_FAILED, format!("what answers at {shown} is no duly server: {why}; {advice}"))
    }
}

fn content_type<T>(answer: &Response<T>) -> &str {
    answer.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default()
}

/// The exit code of an answer.
fn exit_code_for_status(status: u16) -> u8 {
    match status {
        400 | 413 | 415 | 422 => exit::USAGE,
        404 => exit::NOT_FOUND,
        409 => exit::CONFLICT,
        503 => exit::STORE_FAILED,
        504 => exit::TIMED_OUT,
        _ => exit::FAILURE,
    }
}

/// Text as it stands in a URL.
pub(crate) fn url_encode(text: &str) -> String {
    let encoded = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(encoded).collect()
}
