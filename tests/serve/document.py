"""Schemas of an OpenAPI document."""

from typing import Any

import jsonschema_rs


def validator(document: dict[str, Any], name: str) -> jsonschema_rs.Validator:
    """Return the validator of a schema of a document."""
    part = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return jsonschema_rs.validator_for(part)
