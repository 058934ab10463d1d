//! TLS: an authority of one's own is trusted where it is named, and nowhere else.

use std::time::{Duration, Instant};

use duly::Push;

use crate::servers::{Binary, Certificates, Server, certificates};
use crate::support::{durable, open, refusal, whole};

const SECRET: &str = "p4ss-w0rd";

fn server() -> Server {
    durable(Binary::Redis).password(SECRET).tls(certificates()).start()
}

fn url(server: &Server, host: &str, options: &str) -> String {
    format!("rediss://:{SECRET}@{host}:{}{options}", server.tls_port())
}

fn trusting(authority: &Certificates) -> String {
    format!("?ca={}", authority.file("ca.crt").display())
}

#[tokio::test]
async fn it_works_over_tls_with_an_authority_of_ones_own() {
    let server = server();
    for host in ["localhost", "127.0.0.1"] {
        let duly = open(url(&server, host, &trusting(certificates()))).await;
        duly.push(Push::new("ok", "{}")).await.expect("pushes");
        let worker = duly.worker().on_kind("ok", |_| async {});
        assert_eq!(worker.drain().await.expect("drains").acked, 1);
    }
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_refused_at_once() {
    let (server, other) = (server(), Certificates::make());
    for trust in [trusting(&other), String::new()] {
        let start = Instant::now();
        let error = refusal(url(&server, "localhost", &trust)).await;
        let (said, told) = (error.to_string(), whole(&error));
        assert!(said.contains("is not trusted") && said.contains("ca=FILE"), "{said}");
        assert!(start.elapsed() < Duration::from_millis(1_500), "took {:?}", start.elapsed());
        assert!(!told.contains(SECRET), "{told}");
    }
}

/// TLS to a port without, where nobody ever answers; and none to a port with it, where the server hangs up.
#[tokio::test]
async fn who_forgets_tls_or_thinks_of_it_in_vain_is_asked_about_it() {
    let server = server();
    let plain = format!("rediss://:{SECRET}@{}{}", server.address(), trusting(certificates()));
    let forgotten = format!("redis://:{SECRET}@localhost:{}", server.tls_port());
    for url in [plain, forgotten] {
        let error = refusal(url).await;
        assert!(error.to_string().contains("does it speak TLS (rediss://) or not (redis://)?"), "{error}");
        assert!(!whole(&error).contains(SECRET), "{}", whole(&error));
    }
}

#[tokio::test]
async fn an_authority_that_cannot_be_read_is_named() {
    let server = server();
    let error = refusal(url(&server, "localhost", "?ca=/no/such/file")).await;
    assert!(error.to_string().contains("cannot read /no/such/file"), "{error}");
}
