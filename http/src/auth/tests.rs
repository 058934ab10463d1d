//! Limits that depend on time or on the address of a client: requests to the router, without sockets.

use axum::Router;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

use duly::{Clock, Duly};

use crate::server::Server;
use crate::sign_in_link::{SIGN_IN_LINK_TTL, SignInLink};

use super::*;

const FORM: &str = "application/x-www-form-urlencoded";
const MINUTE: Duration = Duration::from_secs(60);

/// A server without a socket.
struct Site {
    duly: Duly,
    clock: Clock,
    app: Arc<App>,
    service: TowerToHyperService<Router>,
}

impl Site {
    async fn new(options: impl FnOnce(Server) -> Server) -> Self {
        Site::with_link(options, SignInLink::default(), Clock::manual()).await
    }

    async fn with_link(options: impl FnOnce(Server) -> Server, link: SignInLink, clock: Clock) -> Self {
        let duly = Duly::open(":memory:").await.expect("opens");
        let app = options(Server::new(duly.clone())).app_with(link, &clock);
        Site { duly, clock, service: TowerToHyperService::new(crate::routes(app.clone())), app }
    }

    /// Creates a token of a viewer.
    async fn token(&self, name: &str) -> String {
        self.token_of(name, Role::Viewer).await
    }

    async fn token_of(&self, name: &str, role: Role) -> String {
        self.duly.tokens().create(name, role, None).await.expect("made").as_str().to_owned()
    }

    async fn send(&self, from: Option<&str>, request: axum::http::request::Builder, body: Body) -> Response {
        let mut request = request.header(header::HOST, "localhost").body(body).expect("a request");
        if let Some(from) = from {
            let address = SocketAddr::new(from.parse().expect("an address"), 40_000);
            request.extensions_mut().insert(ConnectInfo(address));
        }
        self.service.call(request).await.expect("a router does not fail")
    }

    /// Sends a GET with this header.
    async fn get(&self, from: Option<&str>, path: &str, headers: &[(&str, &str)]) -> u16 {
        let request = Request::builder().uri(path);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        self.send(from, request, Body::empty()).await.status().as_u16()
    }

    async fn sign_in(&self, from: Option<&str>, token: &str, cookie: &str) -> Response {
        let request = Request::builder().method(Method::POST).uri(LOGIN);
        let request = request.header(header::CONTENT_TYPE, FORM).header(header::COOKIE, cookie);
        self.send(from, request, Body::from(format!("token={token}"))).await
    }

    /// Signs in and returns the cookie.
    async fn session(&self, token: &str, cookie: &str) -> String {
        let signed_in = self.sign_in(None, token, cookie).await;
        assert_eq!(signed_in.status(), StatusCode::SEE_OTHER);
        let cookie = signed_in.headers()[header::SET_COOKIE].to_str().expect("text");
        cookie.split(';').next().expect("a pair").to_owned()
    }
}

#[tokio::test]
async fn live_updates_do_not_keep_a_session_alive() {
    let site = Site::new(|server| server).await;
    let token = site.token("ada").await;
    let (idle, used) = (site.session(&token, "").await, site.session(&token, "").await);
    let status =
        async |cookie: &str, header: (&str, &str)| site.get(None, "/api/v1/stats", &[("cookie", cookie), header]).await;
    const PLAIN: (&str, &str) = ("accept", "*/*");
    for minutes in [10, 20, 30] {
        site.clock.advance(10 * MINUTE);
        assert_eq!(status(&idle, ("x-live", "1")).await, 200, "{minutes} minutes");
        assert_eq!(status(&idle, ("accept", "text/event-stream")).await, 200, "{minutes} minutes");
        assert_eq!(status(&used, PLAIN).await, 200, "{minutes} minutes");
    }
    site.clock.advance(MINUTE);
    assert_eq!((status(&idle, PLAIN).await, status(&used, PLAIN).await), (401, 200));
    for _ in 0..11 * 3 {
        site.clock.advance(20 * MINUTE);
        assert_eq!(status(&used, PLAIN).await, 200);
    }
    site.clock.advance(30 * MINUTE);
    assert_eq!(status(&used, PLAIN).await, 401, "12 hours after the sign-in");
}

#[tokio::test]
async fn unused_link_expires() {
    for (age, expected) in [(SIGN_IN_LINK_TTL - MINUTE, 303), (SIGN_IN_LINK_TTL, 401)] {
        let clock = Clock::manual();
        let (link, url) = SignInLink::generate("http://localhost", &clock);
        let site = Site::with_link(Server::sign_in_link, link, clock).await;
        site.clock.advance(age);
        let response = site.sign_in(None, url.split_once("link=").expect("a secret").1, "").await;
        assert_eq!(response.status(), expected, "{age:?}");
        if let Some(problem) = response.extensions().get::<Problem>() {
            assert!(problem.detail.contains("15 minutes") && problem.detail.contains("restart"), "{}", problem.detail);
        }
    }
    let minutes = format!("for {} minutes", SIGN_IN_LINK_TTL.as_secs() / 60);
    assert!(NotLocal::Unknown.explain().contains(&minutes));
}

#[tokio::test]
async fn many_sign_ins_of_one_client_end_no_session_of_another() {
    const SIGN_INS: usize = 1_001;
    let site = Site::new(|server| server).await;
    let (ada, eve) = (site.token("ada").await, site.token("eve").await);
    let ada = site.session(&ada, "").await;
    let status = async |cookie: &str| site.get(None, "/api/v1/stats", &[("cookie", cookie)]).await;
    let mut limited = 0;
    for _ in 0..SIGN_INS {
        while site.sign_in(None, &eve, "").await.status() != StatusCode::SEE_OTHER {
            limited += 1;
            site.clock.advance(MINUTE / 20);
            assert_eq!(status(&ada).await, 200);
        }
    }
    // The first 20 are free.
    assert_eq!(limited, SIGN_INS - 20, "20 a minute");
    site.clock.advance(MINUTE);
    let first = site.session(&eve, "").await;
    let second = site.session(&eve, &first).await;
    assert_eq!((status(&first).await, status(&second).await), (401, 200), "a sign-in ends the browser's old session");
}

#[tokio::test]
async fn sign_ins_from_one_network_are_limited() {
    let site = Site::new(|server| server).await;
    let mut tokens = Vec::new();
    for no in 0..6 {
        tokens.push(site.token(&format!("user-{no}")).await);
    }
    for no in 0..100 {
        let signed_in = site.sign_in(Some(&format!("2001:db8::{no}")), &tokens[no % 6], "").await;
        assert_eq!(signed_in.status(), StatusCode::SEE_OTHER, "{no}");
    }
    let refused = site.sign_in(Some("2001:db8::ffff"), &tokens[0], "").await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.headers().contains_key(header::RETRY_AFTER));
    assert_eq!(site.sign_in(Some("2001:db8:1::1"), &tokens[0], "").await.status(), StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn requests_and_wrong_tokens_are_limited_by_network() {
    let site = Site::new(|server| server.rate(1)).await;
    let mut bearers = Vec::new();
    for no in 0..4 {
        bearers.push(format!("Bearer {}", site.token(&format!("user-{no}")).await));
    }
    let get =
        async |from: &str, bearer: &str| site.get(Some(from), "/api/v1/stats", &[("authorization", bearer)]).await;
    let statuses = [get("2001:db8::1", &bearers[0]).await, get("2001:db8::2", &bearers[1]).await];
    assert_eq!(statuses, [200, 200]);
    assert_eq!(get("2001:db8::3", &bearers[2]).await, 429, "the third request of a network in this second");
    assert_eq!(site.get(Some("2001:db8::4"), LOGIN, &[]).await, 429, "the login page counts too");
    assert_eq!(get("2001:db8:1::3", &bearers[3]).await, 200, "another network");
    for no in 0..5 {
        assert_eq!(get(&format!("2001:db8:2::{no}"), "Bearer duly_0").await, 401);
    }
    assert_eq!(get("2001:db8:2::5", "Bearer duly_0").await, 429);
    assert_eq!(get("2001:db8:3::5", "Bearer duly_0").await, 401, "another network");
}

#[tokio::test]
async fn call_to_a_busy_server_is_not_recorded() {
    let site = Site::new(|server| server.connections(4)).await;
    let bearer = format!("Bearer {}", site.token_of("ada", Role::Pusher).await);
    let wait = |name| {
        let credential = Credential::Token([0; 32]);
        WaitSlot::acquire(&site.app, &Identity::new(name, Role::Pusher), &credential, WaitKind::Work).ok()
    };
    let waits: Vec<_> = ["eve", "bob", "joe"].map(wait).into_iter().collect();
    assert!(waits.iter().all(Option::is_some) && wait("sue").is_none(), "one of four stays");
    let call = || Request::builder().method(Method::POST).uri("/api/v1/calls/none").header("authorization", &bearer);
    assert_eq!(site.send(None, call(), Body::empty()).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(site.duly.audit().list(None, 10).await.expect("reads").is_empty());
    drop(waits);
    assert_ne!(site.send(None, call(), Body::empty()).await.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn form_that_does_not_arrive_gets_a_408() {
    let site = Site::new(|server| server).await;
    site.app.tokens.get(&site.duly).await.expect("the store is not needed from here on");
    tokio::time::pause();
    let request = Request::builder().method(Method::POST).uri(LOGIN).header(header::CONTENT_TYPE, FORM);
    let body = Body::from_stream(futures_util::stream::pending::<std::result::Result<&str, std::io::Error>>());
    let response = tokio::time::timeout(REQUEST_TIMEOUT / 2, site.send(None, request, body)).await;
    assert_eq!(response.expect("before the request times out").status(), StatusCode::REQUEST_TIMEOUT);
}
