//! The HTTP client for a `duly serve`.
//!
//! A proxy with a login page, a captive portal or another program on that port may respond instead of the server.
//! The client therefore rejects every response that is not certainly from duly, even one with a success status.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;
use ureq::http::{Response, StatusCode, header};

use crate::exit::{self, CliError};

/// The token, because other users can see command lines.
pub(crate) const TOKEN_ENV: &str = "DULY_TOKEN";
/// The longest time for one response; a longer wait sends another request.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(90);
/// The largest response body.
const RESPONSE_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// A client of one server. Clones share its connections.
#[derive(Clone)]
pub(crate) struct ApiClient {
    agent: ureq::Agent,
    url: String,
    bearer: Option<String>,
}

impl ApiClient {
    pub(crate) fn new(url: &str) -> anyhow::Result<Self> {
        let url = url.trim_end_matches('/');
        if !url.starts_with("http://") && !url.starts_with("https://") {
            // The text may contain a password.
            return Err(CliError::new(
                exit::USAGE,
                "server: not the URL of a server; write it as http://127.0.0.1:7711",
            ));
        }
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(RESPONSE_TIMEOUT));
        // A redirected POST becomes a GET of another page, so redirects are errors.
        let config = config.max_redirects(0).build();
        let bearer = std::env::var(TOKEN_ENV).ok().filter(|token| !token.is_empty());
        if bearer.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            let reason = "contains a space, a line break or another character that no token has; set it again";
            return Err(CliError::new(exit::USAGE, format!("{TOKEN_ENV}: {reason}")));
        }
        let bearer = bearer.map(|token| format!("Bearer {token}"));
        Ok(ApiClient { agent: config.new_agent(), url: url.to_owned(), bearer })
    }

    /// Returns the URL without credentials.
    pub(crate) fn display_url(&self) -> String {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("", &self.url));
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        // Without an @, a part that is not a port may be a password.
        let is_port = |port: &str| port.parse::<u16>().is_ok() || port.ends_with(']');
        let host = host.rsplit_once(':').filter(|(_, port)| !is_port(port)).map_or(host, |(host, _)| host);
        format!("{scheme}://{host}{path}")
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.request("GET", path, None).await
    }

    /// Sends a request without a body.
    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.request("POST", path, None).await
    }

    /// Sends a request and returns the body; a refusal becomes an error with its reason.
    pub(crate) async fn request<T: DeserializeOwned>(
        &self,
        method: &'static str,
        path: &str,
        body: Option<String>,
    ) -> anyhow::Result<T> {
        let text = self.exchange(method, path, body).await?;
        serde_json::from_str(&text).map_err(|error| {
            let reason = match error.classify() {
                Category::Data => "its response is another one than expected",
                _ => "its response is not JSON",
            };
            self.unexpected_response_error(&format!("{reason}: {error}"))
        })
    }

    /// Sends a request whose response has no body.
    pub(crate) async fn send(&self, method: &'static str, path: &str, body: Option<String>) -> anyhow::Result<()> {
        match &*self.exchange(method, path, body).await? {
            "" => Ok(()),
            _ => Err(self.unexpected_response_error("its response has a body")),
        }
    }

    /// Returns the text of a successful response. A thread waits for it.
    async fn exchange(&self, method: &'static str, path: &str, body: Option<String>) -> anyhow::Result<String> {
        let (client, path) = (self.clone(), path.to_owned());
        tokio::task::spawn_blocking(move || client.exchange_blocking(method, &path, body)).await?
    }

    fn exchange_blocking(&self, method: &str, path: &str, body: Option<String>) -> anyhow::Result<String> {
        let mut request = ureq::http::Request::builder().method(method).uri(format!("{}/api/v1{path}", self.url));
        if let Some(bearer) = &self.bearer {
            request = request.header("Authorization", bearer);
        }
        let request = request.header("Content-Type", "application/json").body(body.unwrap_or_default())?;
        let mut response = self.agent.run(request).map_err(|error| self.unreachable_error(error))?;
        if response.status().is_redirection() {
            return Err(self.redirect_error(&response));
        }
        let body = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX);
        let text = body.read_to_string().map_err(|error| self.unreachable_error(error))?;
        let status = response.status();
        if status.is_success() {
            return self.check_body(status, content_type(&response), text);
        }
        Err(self.refusal_error(status, &text))
    }

    /// Builds the error for a response that refuses the request.
    fn refusal_error(&self, status: StatusCode, text: &str) -> anyhow::Error {
        let problem: Value = serde_json::from_str(text).unwrap_or(Value::Null);
        let detail = problem["detail"].as_str().unwrap_or("the server gave no reason").to_owned();
        if status == StatusCode::UNAUTHORIZED {
            return CliError::new(exit::FAILURE, self.token_hint());
        }
        // The lines below the first show the given text, with a mark below its wrong part.
        let (first, marked_lines) = detail.split_at(detail.find('\n').unwrap_or(detail.len()));
        let status = status.as_u16();
        CliError::new(exit_code_for_status(status), format!("{first} ({status}){marked_lines}"))
    }

    /// Says how to get a token.
    fn token_hint(&self) -> String {
        let (url, advice) = (self.display_url(), format!("put it into {TOKEN_ENV}"));
        let create = "create one where the store is, with `duly token create NAME --role operator`";
        match self.bearer {
            None => format!("missing token: the server at {url} needs one; {create}, and {advice}"),
            Some(_) => format!(
                "the server at {url} does not accept the token in {TOKEN_ENV}: it is unknown, removed or expired; {create}, and {advice}"
            ),
        }
    }

    /// Returns the text of a successful response: JSON, or nothing if the status is 204.
    fn check_body(&self, status: StatusCode, content_type: &str, text: String) -> anyhow::Result<String> {
        match (text.is_empty(), status) {
            (true, StatusCode::NO_CONTENT) => return Ok(text),
            (true, _) => {
                let reason = format!("it responds {} without content", status.as_u16());
                return Err(self.unexpected_response_error(&reason));
            }
            (false, _) => {}
        }
        let kind = content_type.split(';').next().unwrap_or_default().trim();
        match kind.eq_ignore_ascii_case("application/json") {
            true => Ok(text),
            false => {
                let kind = if kind.is_empty() { "content of no type" } else { kind };
                let reason = format!("it responds {} with {kind}, not with JSON", status.as_u16());
                Err(self.unexpected_response_error(&reason))
            }
        }
    }

    /// Builds the error for a missing or incomplete response.
    fn unreachable_error(&self, error: ureq::Error) -> anyhow::Error {
        let reason = match error {
            ureq::Error::BodyExceedsLimit(_) => {
                let reason =
                    format!("the response is longer than {RESPONSE_BYTES_MAX} bytes; ask for fewer with --limit");
                return CliError::new(exit::FAILURE, reason);
            }
            ureq::Error::Io(error) => error.to_string(),
            other => other.to_string(),
        };
        let advice = "check that `duly serve` is running there and that the address is right";
        let url = self.display_url();
        CliError::new(exit::STORE_FAILED, format!("cannot reach the server at {url}: {reason}; {advice}"))
    }

    /// Builds the error for a redirect. The target may be a login page, so the client does not follow it.
    fn redirect_error<T>(&self, response: &Response<T>) -> anyhow::Error {
        let target = response.headers().get(header::LOCATION).and_then(|target| target.to_str().ok());
        // The query of a login URL may contain secrets.
        let target = target.and_then(|target| target.split(['?', '#']).next()).unwrap_or("nowhere");
        let (url, status) = (self.display_url(), response.status().as_u16());
        let advice = "if `duly serve` has moved there, use that address for --server; if it is a login page, let the proxy pass requests for /api/ on, with their Authorization header";
        CliError::new(exit::STORE_FAILED, format!("the server at {url} redirects ({status}) to {target}; {advice}"))
    }

    /// Builds the error for a response that does not come from a duly server.
    pub(crate) fn unexpected_response_error(&self, reason: &str) -> anyhow::Error {
        let advice = "check the address; a proxy with a login page, a captive portal or another program on that port may reply instead";
        let url = self.display_url();
        CliError::new(exit::STORE_FAILED, format!("the program at {url} is not a duly server: {reason}; {advice}"))
    }
}

fn content_type<T>(response: &Response<T>) -> &str {
    response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default()
}

/// Returns the exit code for an HTTP status.
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

/// Percent-encodes text for a URL.
pub(crate) fn url_encode(text: &str) -> String {
    let encoded = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(encoded).collect()
}
