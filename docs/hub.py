"""The settings as fields of Runpod's Hub (`config.env` of `.runpod/hub.json`), from their declarations."""

import json
from dataclasses import Field, fields
from typing import Any, Literal, get_args, get_origin

from worker.settings import Settings

# Of local runs, and of images that have a model in them: the Hub's image has none.
_NOT_ON_THE_HUB = ("model_dir", "output_dir", "allow_cpu", "xdg_cache_home")
_FIRST = ("model_id", "model_revision")


def with_settings(text: str) -> str:
    """The text of a hub.json with the inputs made anew; what is set without being asked for stays."""
    hub: dict[str, Any] = json.loads(text)
    fixed = [entry for entry in hub["config"]["env"] if "value" in entry]
    inputs = [_entry(item) for item in fields(Settings) if item.name not in _NOT_ON_THE_HUB]
    hub["config"]["env"] = fixed + inputs
    return json.dumps(hub, indent=2, ensure_ascii=False) + "\n"


def _entry(item: Field[Any]) -> dict[str, Any]:
    words = item.name.replace("_", " ").capitalize()
    about = {"name": words, "description": item.metadata["description"], "required": False}
    return {"key": item.name.upper(), "input": about | _kind(item) | {"advanced": item.name not in _FIRST}}


def _kind(item: Field[Any]) -> dict[str, Any]:
    if item.name == "model_id":
        return {"type": "huggingface", "default": ""}
    if item.type is bool:
        return {"type": "boolean", "default": item.default, "trueValue": "true", "falseValue": "false"}
    if item.type in (int, float):
        return {"type": "number", "default": item.default}
    if get_origin(item.type) is Literal:
        options = [{"label": choice, "value": choice} for choice in get_args(item.type)]
        return {"type": "string", "default": item.default, "options": options}
    return {"type": "string", "default": "" if item.default == () else str(item.default)}
