//! The description of the API is the one in the documents.

/// Run with DULY_BLESS=1 to write it anew.
#[test]
fn the_committed_description_is_that_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/openapi.json");
    let made = duly::http::openapi();
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
fn every_answer_of_the_description_is_described() {
    let api: serde_json::Value = serde_json::from_str(&duly::http::openapi()).expect("JSON");
    let paths = api["paths"].as_object().expect("paths");
    assert!(paths.len() > 30 && paths.keys().all(|path| path.starts_with("/api/v1/")));
    let text = api.to_string();
    for (at, start) in text.match_indices("#/components/") {
        let place = text[at + start.len() - 1..].split('"').next().unwrap_or_default();
        assert!(api["components"].pointer(place).is_some(), "{place} is named and not described");
    }
}
