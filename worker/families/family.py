"""What a model family is: the parts it is composed of and the facts that differ between families."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jaxtyping import Array, Float

from worker.nn.kernels import Kernels

if TYPE_CHECKING:
    from flax import nnx

    from worker.models.clip_text import CLIPTextOutput


@dataclass(frozen=True)
class Part:
    """One network of a pipeline: a sub-folder of a diffusers-layout checkpoint.

    `kind` selects the naming rules in `weights.mapping`; `parse` turns the part's `config.json` into its frozen
    configuration and raises CheckpointError for an option that is not handled; `build` declares the module.
    """

    name: str
    kind: Literal["clip_text", "unet", "autoencoder"]
    parse: Callable[[Mapping[str, Any]], Any]
    build: "Callable[[Any, Kernels], nnx.Module]"


class TextCondition(NamedTuple):
    """What the text encoders tell the UNet."""

    context: Float[Array, "B L D"]
    pooled: Float[Array, "B P"] | None


@dataclass(frozen=True)
class Defaults:
    """Values of the request fields that a job leaves out."""

    num_inference_steps: int
    guidance_scale: float
    strength: float


@dataclass(frozen=True)
class Family:
    """A model family, as the builder, the engine and the request limits read it.

    `pipelines` are the `_class_name`s of model_index.json that it serves; `tokenizers` the sub-folders whose
    token ids `compose_text` receives encoded, in order; `size_conditioning` says that the UNet is told the size and
    the crop of the picture; `tiny` maps a variant's name to the JSON files of a toy checkpoint.
    """

    name: str
    pipelines: tuple[str, ...]
    parts: tuple[Part, ...]
    tokenizers: tuple[str, ...]
    compose_text: "Callable[[tuple[CLIPTextOutput, ...]], TextCondition]"
    size_conditioning: bool
    zero_empty_negative: bool
    default_scaling_factor: float
    default_sample_size: int
    defaults: Defaults
    tiny: Mapping[str, Mapping[str, Any]]

    @property
    def text_encoders(self) -> tuple[str, ...]:
        """Names of the text encoders, in the order of `tokenizers`."""
        return tuple(part.name for part in self.parts if part.kind == "clip_text")
