"""The registry of model families: one line each."""

from worker.errors import CheckpointError
from worker.families.family import Family
from worker.families.flux1 import FLUX_1
from worker.families.sdxl import STABLE_DIFFUSION_XL
from worker.families.stable_diffusion import STABLE_DIFFUSION

FAMILIES: dict[str, Family] = {family.name: family for family in (STABLE_DIFFUSION, STABLE_DIFFUSION_XL, FLUX_1)}


def family_for(pipeline_class: str) -> Family:
    """The family that serves a `_class_name` of model_index.json; raises CheckpointError if there is none."""
    for family in FAMILIES.values():
        if pipeline_class in family.pipelines:
            return family
    known = ", ".join(name for family in FAMILIES.values() for name in family.pipelines)
    raise CheckpointError(f"model_index.json: {pipeline_class} is not served; served are {known}")


__all__ = ["FAMILIES", "Family", "family_for"]
