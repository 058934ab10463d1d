//! TLS: a private certificate authority is trusted only if the URL names it.

use std::time::Instant;

use duly::Push;

use super::login::AT_ONCE_MAX;
use crate::helpers::{error_chain, open, open_error};
use test_support::servers::{Binary, Certificates, Options, Server, certificates};

const SECRET: &str = "p4ss-w0rd";

fn server() -> Server {
    Options::durable(Binary::Redis).password(SECRET).tls(certificates()).start()
}

fn url(server: &Server, host: &str, options: &str) -> String {
    format!("rediss://:{SECRET}@{host}:{}{options}", server.tls_port())
}

fn trust_option(authority: &Certificates) -> String {
    format!("?ca={}", authority.file("ca.crt").display())
}

#[tokio::test]
async fn store_works_over_tls_with_a_private_ca() {
    let server = server();
    for host in ["localhost", "127.0.0.1"] {
        let duly = open(url(&server, host, &trust_option(certificates()))).await;
        duly.push(Push::new("ok", "{}")).await.expect("pushes");
        let worker = duly.worker().on_kind("ok", |_| async {});
        assert_eq!(worker.drain().await.expect("drains").acked, 1);
    }
}

#[tokio::test]
async fn untrusted_certificate_is_rejected_at_once() {
    let (server, other) = (server(), Certificates::make());
    for trust in [trust_option(&other), String::new()] {
        let start = Instant::now();
        let error = open_error(url(&server, "localhost", &trust)).await;
        let (message, chain) = (error.to_string(), error_chain(&error));
        assert!(message.contains("is not trusted") && message.contains("ca=FILE"), "{message}");
        assert!(start.elapsed() < AT_ONCE_MAX, "took {:?}", start.elapsed());
        assert!(!chain.contains(SECRET), "{chain}");
    }
}

/// TLS to a plain port, which never replies, and plain text to a TLS port, which the server closes.
#[tokio::test]
async fn tls_mismatch_error_asks_about_tls() {
    let server = server();
    let plain = format!("rediss://:{SECRET}@{}{}", server.address(), trust_option(certificates()));
    let without_tls = format!("redis://:{SECRET}@localhost:{}", server.tls_port());
    for url in [plain, without_tls] {
        let error = open_error(url).await;
        assert!(error.to_string().contains("and the scheme (rediss:// for TLS)"), "{error}");
        assert!(!error_chain(&error).contains(SECRET), "{}", error_chain(&error));
    }
}

/// The default of Redis: a client must present a certificate.
#[tokio::test]
async fn client_certificate_is_sent_on_request() {
    let server =
        Options::durable(Binary::Redis).password(SECRET).tls(certificates()).set("tls-auth-clients", "yes").start();
    let client_options = |signer: &Certificates, cert: &str, key: &str| {
        let (cert, key) = (signer.file(cert), signer.file(key));
        format!("{}&cert={}&key={}", trust_option(certificates()), cert.display(), key.display())
    };
    let duly = open(url(&server, "localhost", &client_options(certificates(), "client.crt", "client.key"))).await;
    duly.push(Push::new("ok", "{}")).await.expect("pushes");
    assert_eq!(duly.worker().on_kind("ok", |_| async {}).drain().await.expect("drains").acked, 1);

    let other_authority = Certificates::make();
    for options in [trust_option(certificates()), client_options(&other_authority, "client.crt", "client.key")] {
        let start = Instant::now();
        let error = open_error(url(&server, "localhost", &options)).await;
        let message = error.to_string();
        assert!(
            message.contains("does not trust this client") && message.contains("cert=FILE and key=FILE"),
            "{options}: {message}"
        );
        assert!(start.elapsed() < AT_ONCE_MAX, "took {:?}", start.elapsed());
        assert!(!error_chain(&error).contains(SECRET), "{}", error_chain(&error));
    }
}

#[tokio::test]
async fn unusable_certificate_is_named_in_the_error() {
    let open_message = async |options: &str| open_error(format!("rediss://localhost:1{options}")).await.to_string();
    let (cert, key) = (certificates().file("client.crt"), certificates().file("client.key"));
    let (cert, key) = (cert.display(), key.display());
    assert!(open_message(&format!("?cert=/no/such/file&key={key}")).await.contains("cert: cannot read /no/such/file"));
    assert!(open_message(&format!("?cert={cert}&key=/no/such/file")).await.contains("key: cannot read /no/such/file"));
    let swapped = open_message(&format!("?cert={key}&key={cert}")).await;
    assert!(swapped.contains("cannot be used with this key") && swapped.contains("PEM"), "{swapped}");
    let plain = open_error(format!("redis://localhost:1?cert={cert}&key={key}")).await.to_string();
    assert!(plain.contains("write rediss://"), "{plain}");
}

#[tokio::test]
async fn unreadable_ca_file_is_named_in_the_error() {
    let server = server();
    let error = open_error(url(&server, "localhost", "?ca=/no/such/file")).await;
    assert!(error.to_string().contains("cannot read /no/such/file"), "{error}");
}
