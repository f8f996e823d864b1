"""What a model family is: the parts it is composed of and the numbers that differ between families."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flax import nnx

from worker.nn.kernels import Kernels


@dataclass(frozen=True)
class Part:
    """One network of a pipeline: a sub-folder of a diffusers-layout checkpoint.

    `kind` selects the naming rules in `weights.mapping`; `parse` turns the part's `config.json` into its frozen
    configuration and raises CheckpointError for an option that is not handled; `build` declares the module.
    """

    name: str
    kind: Literal["clip_text", "unet", "autoencoder"]
    parse: Callable[[Mapping[str, Any]], Any]
    build: Callable[[Any, Kernels], nnx.Module]
