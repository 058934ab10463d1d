//! Text from users never becomes markup: a corpus of attacks as args, errors, tags, notes, filters, names.

use std::time::Duration;

use duly::{JobId, Outcome, Push};

use crate::fixture;
use crate::pages::client::{get, send};

const ATTACKS: [&str; 14] = [
    "<script>alert(1)</script>",
    "\"><script>alert(1)</script>",
    "'><img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "</pre><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "javascript:alert(1)",
    "<a href=\"javascript:alert(1)\">x</a>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "{{7*7}}{% raw %}",
    "--><script>alert(1)</script><!--",
    "<img src=x onerror=\"alert(1)\" style=\"background:url(//evil.example)\">",
    "\u{202e}<ScRiPt >alert(1)</sCrIpT>",
];

/// Asserts that a page has no foreign element or attribute.
fn assert_inert(path: &str, body: &str) {
    let low = body.to_lowercase();
    let scripts: Vec<&str> = low.match_indices("<script").map(|(at, _)| &low[at..low.len().min(at + 60)]).collect();
    assert!(scripts.iter().all(|tag| tag.contains("src=\"/assets/")), "{path}: {scripts:?}");
    for tag in ["<iframe", "<img src=x", "<svg/onload", "<a href=\"javascript", "style="] {
        assert!(
            !low.contains(tag) || tag == "style=" && low.replace("&quot;", "").matches(" style=\"").count() == 0,
            "{path}: {tag}"
        );
    }
    // Only an unescaped quote can end an attribute.
    for handler in ["\" onerror=", "' onerror=", "\" onload=", "\"><script"] {
        assert!(!low.contains(handler), "{path}: {handler}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_text_never_becomes_markup() {
    let fixture = fixture::empty().await;
    let worker = fixture.duly.worker().queue("default", 4).on_kind("attack", |ctx: duly::Ctx| async move {
        let args: Vec<String> = serde_json::from_str(&ctx.job().args).expect("as pushed");
        ctx.log(&args[0]);
        ctx.set_progress(0.5, &args[0]);
        Ok::<_, std::io::Error>(Outcome::bury(args[0].clone()))
    });
    for (no, attack) in ATTACKS.iter().enumerate() {
        let args = serde_json::to_string(&[attack]).expect("JSON");
        fixture
            .duly
            .push(
                Push::new("attack", args).id(JobId::from_name(&no.to_string())).unique(attack.replace('\u{202e}', "")),
            )
            .await
            .expect("pushed");
    }
    worker.drain().await.expect("drained");
    let _guard =
        fixture.duly.lock(ATTACKS[0]).note(ATTACKS[1]).ttl(Duration::from_secs(3_600)).acquire().await.expect("free");
    let mut paths: Vec<String> =
        ["/", "/jobs", "/dead", "/jobs?q=state:dead", "/locks", "/queues", "/audit"].map(str::to_owned).into();
    for (no, attack) in ATTACKS.iter().enumerate() {
        let id = JobId::from_name(&no.to_string());
        paths.push(format!("/jobs/{id}"));
        paths.push(format!("/jobs/{id}/edit"));
        paths.push(format!("/push?like={id}"));
        let written: String = attack.bytes().map(|byte| format!("%{byte:02x}")).collect();
        for page in [
            "/jobs?q=",
            "/jobs?cursor=",
            "/?range=",
            "/queues/",
            "/cron/rule/",
            "/cron/new?pattern=",
            "/push?kind=",
            "/nodes/",
            "/settings/appearance?theme=light&next=",
            "/",
        ] {
            paths.push(format!("{page}{written}"));
        }
        for message in ["did=paused&of=", "did="] {
            let cookie = format!("Cookie: duly_flash={message}{written}\r\n");
            let response = send(&fixture.url, "GET /jobs HTTP/1.1", &cookie, "").await;
            assert_eq!(response.status, 200, "{cookie}");
            assert_inert(&cookie, &response.body);
        }
    }
    for path in paths {
        let response = get(&fixture.url, &path).await;
        assert!(response.status < 500, "{path}: {}", response.status);
        assert_inert(&path, &response.body);
    }
    // The text is still visible.
    let job = get(&fixture.url, &format!("/jobs/{}", JobId::from_name("0"))).await.body;
    assert!(job.matches("alert(1)").count() >= 2, "args and error are shown");
}

#[test]
fn templates_never_disable_escaping() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/templates");
    for file in std::fs::read_dir(root).expect("readable") {
        let path = file.expect("readable").path();
        let text = std::fs::read_to_string(&path).expect("text");
        for hatch in ["|safe", "| safe", "|escape(\"none\")", "{% raw"] {
            assert!(!text.contains(hatch), "{}: {hatch}", path.display());
        }
    }
}
