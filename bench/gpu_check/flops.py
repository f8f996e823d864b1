"""How much one step of the model computes."""

from typing import Any
from unittest.mock import patch

import jax

from bench.full_size import baked_parts
from bench.gpu_check.plan import CheckPlan, say
from worker.engine.operations import Bucket, Operations
from worker.families.latent_diffusion import pipeline
from worker.nn.kernels import Kernels

_TEXT_LENGTH = 77


def flops(plan: CheckPlan) -> None:
    """One row of a step table for one picture, with and without guidance, by XLA's analysis of what it is given."""
    for guided in (True, False):
        say(guided=guided, tflop=row_flops(plan.model, plan.side, guided=guided) / 1e12)


def row_flops(model: str, side: int, *, guided: bool) -> float:
    """FLOPs of a row for one picture; nothing is compiled.

    The row stands alone and attention is not cut into chunks: of a loop's body the analysis would count one round.
    """
    family, files, dtypes = baked_parts(model)
    made = pipeline(family, files, Kernels(loop="host"))
    params = {
        part: {name: jax.ShapeDtypeStruct(spec.shape, dtypes[part]) for name, spec in functional.shapes.items()}
        for part, functional in made.parts.items()
    }
    grid = side // made.scale_factor
    operations = Operations(made, params, (_TEXT_LENGTH,) * len(family.tokenizers))
    program = operations.advance(Bucket(1, grid, grid), guided=guided)
    with patch("worker.nn.attention.LOGITS_LIMIT", 1 << 62):
        analysis: Any = jax.jit(program.function).lower(*program.specs()).cost_analysis()
    return float(analysis["flops"])
