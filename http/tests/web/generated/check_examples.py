"""Checks that the OpenAPI description is valid, and that every example matches its schema."""

import json
import sys

from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

document = json.load(open(sys.argv[1], encoding="utf-8"))
validate(document)

registry = Registry().with_resource("urn:api", Resource.from_contents(document, default_specification=DRAFT202012))


def check(place, schema, example):
    """Raises an error if the example does not match the schema."""
    # References are relative to the document.
    text = json.dumps(schema).replace('"#/', '"urn:api#/')
    errors = list(Draft202012Validator(json.loads(text), registry=registry).iter_errors(example))
    if errors:
        sys.exit(f"{place}: the example does not match its schema: {errors[0].message}")


checked = 0
for path, methods in document["paths"].items():
    for method, operation in methods.items():
        place = f"{method} {path}"
        bodies = {"request": operation.get("requestBody", {}), **operation["responses"]}
        for name, body in bodies.items():
            for content in body.get("content", {}).values():
                if "example" in content:
                    check(f"{place} {name}", content["schema"], content["example"])
                    checked += 1
        for parameter in operation.get("parameters", []):
            if "example" in parameter:
                check(f"{place} {parameter['name']}", parameter["schema"], parameter["example"])
                checked += 1
if not checked:
    sys.exit("there are no examples")
print(f"valid, with {checked} examples")
