"""Defaults of checkpoints that need others than their family: distilled ones, and the small model that comes along.

Sources: the model cards of SDXL-Turbo and SD-Turbo (1 step, no guidance), SDXL-Lightning and Hyper-SD (as many steps as
the name says), LCM (Luo et al. 2023, arXiv 2310.04378: 4 steps; its full models embed a scale of 8.5), TCD (4 steps).
The embedded model: what it was measured with (`builder.embedded.evaluate`).
"""

import re
from dataclasses import replace

from worker.families.family import Defaults

DISTILLED_GUIDANCE_MAX = 2.0

EMBEDDED = "emoji"
"""Source of the embedded model, and what answers call it."""
EMBEDDED_STEPS, EMBEDDED_GUIDANCE = 20, 3.0


def distillation(source: str, scheduler_class: str) -> str | None:
    """Which method a checkpoint was distilled with, read off its scheduler or its source's name; None if none."""
    by_scheduler = {"LCMScheduler": "lcm", "TCDScheduler": "tcd"}.get(scheduler_class)
    if by_scheduler:
        return by_scheduler
    found = re.search(r"(?<![a-z])(turbo|lightning|hyper|lcm|tcd)(?![a-z])", source.rpartition("/")[2].lower())
    return found.group(1) if found else None


def checkpoint_defaults(defaults: Defaults, source: str, scheduler_class: str, embeds_guidance: bool) -> Defaults:
    """The family's defaults, or those of the distillation that this checkpoint went through."""
    if source == EMBEDDED:
        return replace(defaults, num_inference_steps=EMBEDDED_STEPS, guidance_scale=EMBEDDED_GUIDANCE)
    method = distillation(source, scheduler_class)
    if method is None:
        return replace(defaults, guidance_scale=8.5) if embeds_guidance else defaults
    named_steps = re.search(r"(\d+)[-_ ]?steps?", source.lower())
    steps = int(named_steps.group(1)) if named_steps else 1 if method == "turbo" else 4
    guidance = 8.5 if embeds_guidance else 0.0 if method == "turbo" else 1.0
    return replace(defaults, num_inference_steps=steps, guidance_scale=guidance)
