//! TLS: an authority of one's own is trusted where it is named, and nowhere else.

use std::time::{Duration, Instant};

use duly::Push;

use crate::helpers::{durable, open, refusal, whole};
use test_support::servers::{Binary, Certificates, Server, certificates};

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
async fn store_works_over_tls_with_a_private_ca() {
    let server = server();
    for host in ["localhost", "127.0.0.1"] {
        let duly = open(url(&server, host, &trusting(certificates()))).await;
        duly.push(Push::new("ok", "{}")).await.expect("pushes");
        let worker = duly.worker().on_kind("ok", |_| async {});
        assert_eq!(worker.drain().await.expect("drains").acked, 1);
    }
}

#[tokio::test]
async fn untrusted_certificate_is_rejected_at_once() {
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
async fn tls_mismatch_error_asks_about_tls() {
    let server = server();
    let plain = format!("rediss://:{SECRET}@{}{}", server.address(), trusting(certificates()));
    let forgotten = format!("redis://:{SECRET}@localhost:{}", server.tls_port());
    for url in [plain, forgotten] {
        let error = refusal(url).await;
        assert!(error.to_string().contains("does it speak TLS (rediss://) or not (redis://)?"), "{error}");
        assert!(!whole(&error).contains(SECRET), "{}", whole(&error));
    }
}

/// What Redis does unless it is told otherwise: only who shows a certificate may speak to it.
#[tokio::test]
async fn client_certificate_is_sent_on_request() {
    let server = durable(Binary::Redis).password(SECRET).tls(certificates()).set("tls-auth-clients", "yes").start();
    let shown = |with: &Certificates, cert: &str, key: &str| {
        let (cert, key) = (with.file(cert), with.file(key));
        format!("{}&cert={}&key={}", trusting(certificates()), cert.display(), key.display())
    };
    let duly = open(url(&server, "localhost", &shown(certificates(), "client.crt", "client.key"))).await;
    duly.push(Push::new("ok", "{}")).await.expect("pushes");
    assert_eq!(duly.worker().on_kind("ok", |_| async {}).drain().await.expect("drains").acked, 1);

    let stranger = Certificates::make();
    for options in [trusting(certificates()), shown(&stranger, "client.crt", "client.key")] {
        let start = Instant::now();
        let error = refusal(url(&server, "localhost", &options)).await;
        let said = error.to_string();
        assert!(said.contains("does not trust us") && said.contains("cert=FILE and key=FILE"), "{options}: {said}");
        assert!(start.elapsed() < Duration::from_secs(2), "took {:?}", start.elapsed());
        assert!(!whole(&error).contains(SECRET), "{}", whole(&error));
    }
}

#[tokio::test]
async fn unusable_certificate_is_named_in_the_error() {
    let said = async |options: &str| refusal(format!("rediss://localhost:1{options}")).await.to_string();
    let (cert, key) = (certificates().file("client.crt"), certificates().file("client.key"));
    let (cert, key) = (cert.display(), key.display());
    assert!(said(&format!("?cert=/no/such/file&key={key}")).await.contains("cert: cannot read /no/such/file"));
    assert!(said(&format!("?cert={cert}&key=/no/such/file")).await.contains("key: cannot read /no/such/file"));
    let swapped = said(&format!("?cert={key}&key={cert}")).await;
    assert!(swapped.contains("cannot be used with this key") && swapped.contains("PEM"), "{swapped}");
    let plain = refusal(format!("redis://localhost:1?cert={cert}&key={key}")).await.to_string();
    assert!(plain.contains("write rediss://"), "{plain}");
}

#[tokio::test]
async fn unreadable_ca_file_is_named_in_the_error() {
    let server = server();
    let error = refusal(url(&server, "localhost", "?ca=/no/such/file")).await;
    assert!(error.to_string().contains("cannot read /no/such/file"), "{error}");
}
