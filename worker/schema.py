"""JSON schema of a job's input, from the declarations of its fields. Pure."""

from typing import Any, cast

from worker.job import HEALTH_FIELD, REQUESTS_MAX
from worker.request import Request


def input_schema(definitions: str = "#/$defs") -> dict[str, Any]:
    """One request, many with their defaults, or the question for a report.

    `definitions`: where the document that it becomes a part of will have its `$defs`.
    """
    given = _properties()
    fields = field_schemas()
    needed = {name: given[name] for name, field in Request.model_fields.items() if field.is_required()}
    many = {
        "type": "object",
        "properties": {
            "requests": {
                "description": "What a request leaves out, or has as null, is that of the defaults.",
                "type": "array",
                "items": {"$ref": f"{definitions}/fields"},
                "minItems": 1,
                "maxItems": REQUESTS_MAX,
            },
            "defaults": {"anyOf": [{"$ref": f"{definitions}/fields"}, {"type": "null"}]},
        },
        "required": ["requests"],
        "additionalProperties": False,
    }
    health = {
        "type": "object",
        "properties": {HEALTH_FIELD: {"const": True}},
        "required": [HEALTH_FIELD],
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A job's input",
        "anyOf": [{"$ref": f"{definitions}/{kind}"} for kind in ("request", "requests", "health")],
        "$defs": {
            "fields": {"type": "object", "properties": fields, "additionalProperties": False},
            "request": {"$ref": f"{definitions}/fields", "properties": needed, "required": list(needed)},
            "requests": many,
            "health": health,
        },
    }


def field_schemas() -> dict[str, Any]:
    """The fields of one request: each with its type, bounds, default and description; any may be null."""
    return {name: _nullable(node) for name, node in _properties().items()}


def _properties() -> dict[str, Any]:
    return _keywords(Request.model_json_schema()["properties"])


def _keywords(node: Any) -> Any:
    """The node without titles; bounds of what may be null have pydantic's names in its schema, here JSON schema's."""
    names = {"ge": "minimum", "le": "maximum", "multiple_of": "multipleOf"}
    if isinstance(node, dict):
        items = cast(dict[str, Any], node).items()
        return {names.get(key, key): _keywords(value) for key, value in items if key != "title"}
    return [_keywords(value) for value in cast(list[Any], node)] if isinstance(node, list) else node


def _nullable(node: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in node:
        return node
    about = {key: node[key] for key in ("default", "description") if key in node}
    value = {key: item for key, item in node.items() if key not in about}
    return {"anyOf": [value, {"type": "null"}], **about}
