"""Published names and layouts of weights, and ours.

Our parameters carry the names of diffusers and transformers; a name that no rule matches is its own target.
Our layout differs in one point: the kernels of convolutions are OHWI, theirs OIHW.
"""

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from worker.errors import CheckpointError
from worker.weights.manifest import EIGHT_BITS, Dtype
from worker.weights.tensors import TensorInfo

FLOATING = ("F64", "F32", "F16", "BF16")
_SHOWN = 10
_SCALE = "_scale"
_LARGEST = np.float32(448)
"""Of float8_e4m3."""


@dataclass(frozen=True)
class Rename:
    """A published name that is not ours; `{hole}` is one or more dotted segments, the same in both names."""

    published: str
    ours: str


@dataclass(frozen=True)
class Drop:
    """A published tensor that is no weight of ours, and why."""

    published: str
    because: str


Rule = Rename | Drop

RULES: dict[str, tuple[Rule, ...]] = {
    "clip_text": (
        # transformers 5 saves a text model without a projection under flattened names.
        Rename("embeddings.token_embedding.weight", "text_model.embeddings.token_embedding.weight"),
        Rename("embeddings.position_embedding.weight", "text_model.embeddings.position_embedding.weight"),
        Rename("encoder.{layer}", "text_model.encoder.{layer}"),
        Rename("final_layer_norm.{leaf}", "text_model.final_layer_norm.{leaf}"),
        Drop("text_model.embeddings.position_ids", because="a constant, 0 to 76, that old versions saved"),
        Drop("embeddings.position_ids", because="a constant, 0 to 76, that old versions saved"),
    ),
    "t5_text": (Drop("encoder.embed_tokens.weight", because="the table `shared` once more"),),
    "unet": (
        Drop("v_pred", because="a marker; the scheduler's configuration says what the model predicts"),
        Drop("ztsnr", because="a marker; the scheduler's configuration says how the noise schedule ends"),
    ),
    "autoencoder": (
        # diffusers before 0.15
        Rename("{block}.query.{leaf}", "{block}.to_q.{leaf}"),
        Rename("{block}.key.{leaf}", "{block}.to_k.{leaf}"),
        Rename("{block}.value.{leaf}", "{block}.to_v.{leaf}"),
        Rename("{block}.proj_attn.{leaf}", "{block}.to_out.0.{leaf}"),
    ),
}
"""By a part's kind; kinds without rules are named as they are published."""


@dataclass(frozen=True)
class Mapped:
    """`sources`: our name -> the published one; `dropped`: published name -> why it is left out."""

    sources: dict[str, str]
    dropped: dict[str, str]


def pair(
    part: str,
    rules: Iterable[Rule],
    published: Mapping[str, TensorInfo],
    targets: Mapping[str, jax.ShapeDtypeStruct],
) -> Mapped:
    """Pair every published tensor with exactly one parameter and every parameter with one tensor.

    `targets` have our layout. Raises one CheckpointError about `part` with all differences, grouped.
    """
    rules = tuple(rules)
    differences: dict[str, list[str]] = defaultdict(list)
    claims: dict[str, list[str]] = defaultdict(list)
    dropped: dict[str, str] = {}
    for name in published:
        match [(rule, holes) for rule in rules if (holes := _holes(rule.published, name)) is not None]:
            case []:
                claims[name].append(name)
            case [(Drop(because=because), _)]:
                dropped[name] = because
            case [(Rename(ours=ours), holes)]:
                claims[ours.format(**holes)].append(name)
            case several:
                differences["doubly matched"].append(
                    f"{name} by the rules {' and '.join(rule.published for rule, _ in several)}"
                )
    for ours, names in claims.items():
        if len(names) > 1:
            differences["doubly matched"].append(f"{ours} by the tensors {' and '.join(names)}")
        elif ours not in targets:
            differences["unknown"].append(names[0])
        else:
            _compare(names[0], published[names[0]], targets[ours].shape, differences)
    differences["missing"] += [name for name in targets if name not in claims]
    raise_differences(part, differences)
    return Mapped({ours: names[0] for ours, names in claims.items()}, dropped)


def _compare(name: str, info: TensorInfo, expected: tuple[int, ...], differences: defaultdict[str, list[str]]) -> None:
    if info.dtype not in FLOATING:
        differences["dtype"].append(f"{name} is {info.dtype}, one of {', '.join(FLOATING)} is expected")
    elif runtime_shape(info.shape, len(expected)) != expected:
        published = published_shape(expected)
        differences["shape"].append(f"{name} is {list(info.shape)}, {list(published)} is expected")


def raise_differences(part: str, differences: Mapping[str, list[str]]) -> None:
    """Raise a CheckpointError that shows the first ten of each kind of difference, if there is one at all."""
    kinds = ("unknown", "missing", "shape", "dtype", "doubly matched")
    groups = [
        f"{kind} ({len(found)}): {', '.join(found[:_SHOWN])}{', ...' if len(found) > _SHOWN else ''}"
        for kind in kinds
        if (found := differences.get(kind))
    ]
    if groups:
        raise CheckpointError(f"{part}: the tensors are not those of the model: {'; '.join(groups)}")


@cache
def _pattern(template: str) -> re.Pattern[str]:
    pieces = re.split(r"\{(\w+)\}", template)
    segments = r"[^.]+(?:\.[^.]+)*"
    return re.compile(
        "".join(f"(?P<{piece}>{segments})" if i % 2 else re.escape(piece) for i, piece in enumerate(pieces))
    )


def _holes(template: str, name: str) -> dict[str, str] | None:
    found = _pattern(template).fullmatch(name)
    return found and found.groupdict()


def runtime_shape(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The shape in our layout, of `rank` axes, of a tensor published with `shape`."""
    if len(shape) != 4:
        return shape
    out, into, height, width = shape
    return (out, into) if rank == 2 and height == width == 1 else (out, height, width, into)


def published_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The published shape of a parameter that has `shape` in our layout."""
    return (shape[0], shape[3], shape[1], shape[2]) if len(shape) == 4 else shape


def to_runtime(tensor: NDArray[Any], rank: int) -> NDArray[Any]:
    """Published layout to ours: OIHW to OHWI, and a 1x1 kernel to a linear weight OI where `rank` is 2."""
    if tensor.ndim == 4 and rank == 4:
        return np.transpose(tensor, (0, 2, 3, 1))
    return tensor.reshape(runtime_shape(tensor.shape, rank))


def weight_name(name: str) -> str:
    """The weight whose scales a parameter holds; any other parameter's own name."""
    return name.removesuffix(_SCALE)


def is_scaled(weight: str, names: Container[str]) -> bool:
    """Whether a weight has scales beside it; `names` are all of its part's."""
    return weight + _SCALE in names


def stored_dtype(dtype: Dtype, name: str, names: Container[str]) -> np.dtype[Any]:
    """The number format of a parameter of a part in `dtype`; `names` are all of the part's."""
    if dtype != EIGHT_BITS:
        return np.dtype(dtype)
    return np.dtype(ml_dtypes.float8_e4m3fn if is_scaled(name, names) else ml_dtypes.bfloat16)


def row_scales(weight_OI: NDArray[np.float32]) -> NDArray[np.float32]:
    """The powers of two by which rows are divided to fill the range of 8 bits; multiplying by them rounds nothing."""
    largest_O = np.abs(weight_OI).max(axis=1)
    _, exponent_O = np.frexp(largest_O / _LARGEST)
    return np.ldexp(np.float32(1), exponent_O)


def to_published(tensor: NDArray[Any]) -> NDArray[Any]:
    """Our layout to the published one: OHWI to OIHW."""
    return np.transpose(tensor, (0, 3, 1, 2)) if tensor.ndim == 4 else tensor
