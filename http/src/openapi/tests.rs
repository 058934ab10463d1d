//! Rules that the description follows, so that clients can be generated from it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::examples::{EXAMPLES, OperationExamples};
use super::openapi;

fn document() -> Value {
    serde_json::from_str(&openapi()).expect("JSON")
}

/// Returns each operation with its method and path.
fn operations(api: &Value) -> Vec<(String, &Value)> {
    let paths = api["paths"].as_object().expect("paths");
    let methods = |path: &'_ Value| path.as_object().expect("methods").clone().into_iter();
    let named = paths.iter().flat_map(|(path, all)| methods(all).map(move |(method, _)| (path, all, method)));
    named.map(|(path, all, method)| (format!("{method} {path}"), &all[&method])).collect()
}

#[test]
fn every_operation_has_a_unique_id_a_summary_and_a_tag() {
    let api = document();
    let mut ids = BTreeSet::new();
    let tags: BTreeSet<&str> =
        api["tags"].as_array().expect("tags").iter().filter_map(|tag| tag["name"].as_str()).collect();
    for (name, operation) in operations(&api) {
        let id = operation["operationId"].as_str().unwrap_or_default();
        let is_camel_case =
            id.starts_with(|c: char| c.is_ascii_lowercase()) && id.chars().all(|c| c.is_ascii_alphanumeric());
        assert!(
            is_camel_case && id.contains(|c: char| c.is_ascii_uppercase()),
            "{name}: the id {id:?}; write listJobs"
        );
        assert!(ids.insert(id), "{name}: another operation has the id {id}");
        assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{name}: no summary");
        let tag = operation["tags"][0].as_str().unwrap_or_default();
        assert!(tags.contains(tag), "{name}: the tag {tag:?} has no description");
    }
}

#[test]
fn every_response_and_parameter_is_described() {
    let api = document();
    let is_described =
        |value: &Value| value["$ref"].is_string() || value["description"].as_str().is_some_and(|text| !text.is_empty());
    for (name, operation) in operations(&api) {
        for (status, response) in operation["responses"].as_object().expect("responses") {
            assert!(is_described(response), "{name}: the response {status} has no description");
        }
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(is_described(parameter), "{name}: the parameter {} has no description", parameter["name"]);
        }
    }
}

#[test]
fn every_request_body_has_an_example_and_every_example_an_operation() {
    let api = document();
    let mut ids = BTreeSet::new();
    for (name, operation) in operations(&api) {
        let id = operation["operationId"].as_str().unwrap_or_default();
        ids.insert(id.to_owned());
        let content = &operation["requestBody"]["content"]["application/json"];
        assert!(
            content.is_null() || content["example"].is_object() || content["example"].is_array(),
            "{name}: no example of the request"
        );
        let Some(OperationExamples { request, responses, parameters }) = EXAMPLES.get(id) else {
            continue;
        };
        assert_eq!(request.as_ref(), content.get("example"), "{name}: it has no JSON body");
        for (status, example) in responses {
            let shown = &operation["responses"][status]["content"]["application/json"]["example"];
            assert_eq!(shown, example, "{name}: no JSON response {status}");
        }
        let named = |wanted: &String| {
            operation["parameters"].as_array().into_iter().flatten().any(|one| one["name"] == **wanted)
        };
        assert!(parameters.keys().all(named), "{name}: an example names no parameter");
    }
    assert!(!EXAMPLES.is_empty() && EXAMPLES.keys().all(|id| ids.contains(id)), "an example names no operation");
}

#[test]
fn words_are_enums_and_times_have_a_format() {
    let api = document();
    let schemas = &api["components"]["schemas"];
    let job = &schemas["Job"]["properties"];
    assert_eq!(job["state"]["$ref"], "#/components/schemas/JobState");
    assert_eq!(job["due"]["format"], "date-time");
    assert_eq!(job["ended"]["format"], "date-time");
    assert_eq!(schemas["JobState"]["enum"].as_array().map(Vec::len), Some(6));
    assert_eq!(schemas["Problem"]["properties"]["conflict"]["$ref"], "#/components/schemas/Conflict");
    // A description that lists words in backquotes is a missing enum.
    for (name, schema) in schemas.as_object().expect("schemas") {
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            let text = property["description"].as_str().unwrap_or_default();
            let is_list = property["type"] == "string"
                && text
                    .split('`')
                    .skip(1)
                    .step_by(2)
                    .filter(|word| word.chars().all(|c| c.is_ascii_lowercase()))
                    .count()
                    > 2;
            assert!(!is_list || property["pattern"].is_string(), "{name}.{field} lists words; make it an enum");
        }
    }
}
