"""What a model family is: the parts it is composed of and the facts that differ between families."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jaxtyping import Array, Float

from worker.nn.kernels import Kernels

if TYPE_CHECKING:
    from flax import nnx

Role = Literal["text_encoder", "denoiser", "autoencoder"]


@dataclass(frozen=True)
class Part:
    """One network of a pipeline: a sub-folder of a diffusers-layout checkpoint.

    `kind` selects the naming rules in `weights.mapping` and a text encoder's tokeniser in `text`; `classes` are those
    that model_index.json may name; `parse` turns the part's `config.json` into its frozen configuration and raises
    CheckpointError for an option that is not handled; `build` declares the module. A denoiser is called as
    `(x, time, context, *, ...)` with what `Pipeline` has for it of `pooled_BP`, `size_ids_BI` and `guidance_B`; its
    configuration has `in_channels`, `sample_size`, `patch_size` and `embeds_guidance`. `eight_bits`: so large that the
    weights of its linear layers are in 8 bits, where a bake is asked for them.
    """

    name: str
    role: Role
    kind: str
    classes: tuple[str, ...]
    parse: Callable[[Mapping[str, Any]], Any]
    build: "Callable[[Any, Kernels], nnx.Module]"
    eight_bits: bool = False

    @property
    def tokenizer(self) -> str:
        """The sub-folder of a text encoder's tokeniser."""
        return self.name.replace("text_encoder", "tokenizer")

    @property
    def stem(self) -> str:
        """How its files of weights are named: as transformers or as diffusers does."""
        return "model" if self.role == "text_encoder" else "diffusion_pytorch_model"


class TextCondition(NamedTuple):
    """What the text encoders tell the denoiser."""

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

    `pipelines` are the `_class_name`s of model_index.json that it serves. `compose_text` makes the condition of the
    text encoders' outputs, in the order of the parts; `max_tokens` tells of the parts' configurations how many token
    ids each of them gets at most. `size_conditioning` says that the denoiser is told the size and the crop of the
    picture; `true_guidance` that guidance by a negative prompt has a scale of its own, `true_cfg_scale`, beside the
    `guidance_scale` that the network may embed. `default_sample_size`: side of the latents where the denoiser's
    configuration does not say, else the autoencoder's pictures. `defaults` are a checkpoint's, by the name of its
    source, its scheduler's class and whether it embeds guidance. `tiny` maps a variant's name to the JSON files of a
    toy checkpoint.
    """

    name: str
    pipelines: tuple[str, ...]
    parts: tuple[Part, ...]
    compose_text: Callable[[tuple[Any, ...]], TextCondition]
    max_tokens: Callable[[Mapping[str, Any]], tuple[int, ...]]
    size_conditioning: bool
    true_guidance: bool
    zero_empty_negative: bool
    default_scaling_factor: float
    default_sample_size: int | None
    defaults: Callable[[str, str, bool], Defaults]
    tiny: Mapping[str, Mapping[str, Any]]

    def of_role(self, role: Role) -> tuple[Part, ...]:
        """The parts of a role, in order."""
        return tuple(part for part in self.parts if part.role == role)

    @property
    def text_encoders(self) -> tuple[Part, ...]:
        """In the order in which `compose_text` has them."""
        return self.of_role("text_encoder")

    @property
    def denoiser(self) -> str:
        """The name of the part that predicts."""
        return self.of_role("denoiser")[0].name
