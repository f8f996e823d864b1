"""The fields of a request as one model takes them, for forms."""

from typing import Any

from worker.diffusion.names import offered, title_of
from worker.engine.plan import Planner
from worker.schema import field_schemas


def offered_fields(planner: Planner) -> dict[str, Any]:
    """JSON schemas of the fields, with the model's defaults and choices, without what it refuses."""
    fields = {name: schema for name, schema in field_schemas().items() if name not in planner.refused}
    side, defaults, sizes = planner.pipeline.sample_size, planner.defaults, planner.settings.sizes
    for name, index in (("width", 0), ("height", 1)):
        fields[name]["anyOf"][0]["multipleOf"] = planner.pipeline.size_step
        if sizes:
            fields[name]["enum"] = sorted({size[index] for size in sizes})
    known = {
        "width": side,
        "height": side,
        "num_inference_steps": defaults.num_inference_steps,
        "guidance_scale": defaults.guidance_scale,
        "strength": defaults.strength,
        "scheduler": title_of(planner.schedule.class_name, {}),
    }
    for name, value in known.items():
        fields[name]["default"] = value
    fields["scheduler"]["examples"] = offered()
    return fields
