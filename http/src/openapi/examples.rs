//! Examples of requests and responses, from `examples.json`: for each operation, its request and its responses by status.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;
use utoipa::openapi::RefOr;
use utoipa::openapi::path::{Operation, ParameterBuilder};

const JSON: &str = "application/json";

/// The examples of one operation.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct OperationExamples {
    pub(super) request: Option<Value>,
    pub(super) responses: BTreeMap<String, Value>,
    /// The values of parameters.
    pub(super) parameters: BTreeMap<String, Value>,
}

/// The examples by operation id.
pub(super) static EXAMPLES: LazyLock<BTreeMap<String, OperationExamples>> =
    LazyLock::new(|| serde_json::from_str(include_str!("examples.json")).unwrap_or_default());

/// Adds the examples of an operation to its description.
pub(super) fn add(operation: &mut Operation) {
    let Some(examples) = operation.operation_id.as_ref().and_then(|id| EXAMPLES.get(id)) else {
        return;
    };
    if let Some(RefOr::T(body)) = &mut operation.request_body
        && let Some(RefOr::T(content)) = body.content.get_mut(JSON)
    {
        content.example.clone_from(&examples.request);
    }
    for (status, example) in &examples.responses {
        if let Some(RefOr::T(response)) = operation.responses.responses.get_mut(status)
            && let Some(RefOr::T(content)) = response.content.get_mut(JSON)
        {
            content.example = Some(example.clone());
        }
    }
    for parameter in operation.parameters.iter_mut().flatten() {
        if let RefOr::T(found) = parameter
            && let Some(example) = examples.parameters.get(&found.name)
        {
            *parameter = RefOr::T(ParameterBuilder::from(found.clone()).example(Some(example.clone())).build());
        }
    }
}
