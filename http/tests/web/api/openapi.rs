//! The OpenAPI description of the code is the committed one.

/// Run with DULY_BLESS=1 to update it.
#[test]
fn committed_description_matches_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/openapi.json");
    let made = duly_http::openapi();
    if std::env::var_os("DULY_BLESS").is_some() {
        std::fs::write(path, &made).expect("writes");
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        made == kept,
        "docs/reference/openapi.json is not that of the code: see what has changed, then run with DULY_BLESS=1"
    );
}

#[test]
fn every_reference_in_the_description_resolves() {
    let api: serde_json::Value = serde_json::from_str(&duly_http::openapi()).expect("JSON");
    let paths = api["paths"].as_object().expect("paths");
    assert!(paths.len() > 30 && paths.keys().all(|path| path.starts_with("/api/v1/")));
    let text = api.to_string();
    for (at, start) in text.match_indices("#/components/") {
        let place = text[at + start.len() - 1..].split('"').next().unwrap_or_default();
        assert!(api["components"].pointer(place).is_some(), "{place} is named and not described");
    }
}

/// Returns the operations with this pointer in their description, as `METHOD path`.
fn operations_with(api: &serde_json::Value, pointer: &str) -> Vec<String> {
    let paths = api["paths"].as_object().expect("paths").iter();
    let operations = paths.flat_map(|(path, all)| all.as_object().expect("methods").iter().map(move |one| (path, one)));
    let says = operations.filter(|(_, (_, operation))| operation.pointer(pointer).is_some());
    says.map(|(path, (method, _))| format!("{method} {}", path.trim_start_matches("/api/v1"))).collect()
}

#[test]
fn etags_and_streams_are_described() {
    let api: serde_json::Value = serde_json::from_str(&duly_http::openapi()).expect("JSON");
    let changes = ["put /cron/{name}", "patch /queues/{queue}"];
    assert_eq!(operations_with(&api, "/responses/412"), changes);
    let mut tagged = operations_with(&api, "/responses/200/headers/ETag");
    tagged.sort();
    assert_eq!(tagged, ["get /cron/{name}", "get /queues/{queue}", "patch /queues/{queue}", "put /cron/{name}"]);
    let streams = operations_with(&api, "/responses/200/content/text~1event-stream");
    assert_eq!(streams, ["get /events", "get /events/jobs", "get /jobs/{id}/wait"]);
}
