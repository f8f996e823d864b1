"""The files of a published checkpoint in the layout of diffusers: which are needed, and which hold a part's weights.

A part's weights are searched in this order, in its own folder; the first that is found is used:

1. plain: `<stem>.safetensors`, then the shards `<stem>-00001-of-0000N.safetensors`;
2. fp16: `<stem>.fp16.safetensors`, then the shards `<stem>.fp16-00001-of-0000N.safetensors`, then the older spelling
   `<stem>-00001-of-0000N.fp16.safetensors`;
3. bf16: likewise.

The stem is `model` for transformers' parts and `diffusion_pytorch_model` for those of diffusers. Other variants (EMA)
and other formats (pickles, ONNX, Flax) are never read. Index files of shards are not needed: the shards' headers name
their tensors, and the mapping proves that none is absent.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from worker.errors import CheckpointError
from worker.families import Family, family_for
from worker.families.family import Part
from worker.weights.manifest import FILE_NAME

INDEX = "model_index.json"
SCHEDULER = "scheduler/scheduler_config.json"
CARD = "README.md"
VARIANTS = ("", "fp16", "bf16")

_UNUSED_COMPONENTS = ("safety_checker", "feature_extractor", "image_encoder")
_PICKLES = (".bin", ".ckpt", ".pt", ".pth")
_SHARD = r"(?P<i>\d{5})-of-(?P<n>\d{5})"


@dataclass(frozen=True)
class Weights:
    """The files of a part's weights, names within its folder, and the variant that they are ("" is plain)."""

    files: tuple[str, ...]
    variant: str


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises CheckpointError if the file is absent or holds something else."""
    try:
        content: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except ValueError:
        raise CheckpointError(f"{path}: not readable as JSON") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: a JSON object is expected")
    return cast(dict[str, Any], content)


def check_layout(source: object, names: Iterable[str]) -> None:
    """Raise CheckpointError if the files of `source` are not those of a checkpoint in the layout of diffusers."""
    names = tuple(names)
    if INDEX in names:
        return
    if FILE_NAME in names:
        raise CheckpointError(f"{source}: is baked already (it has a {FILE_NAME}); set MODEL_DIR to it")
    single = [name for name in names if "/" not in name and name.endswith((".safetensors", *_PICKLES))]
    found = f"{single[0]} is a single-file checkpoint; " if single else ""
    raise CheckpointError(
        f"{source}: no {INDEX}: {found}the layout of diffusers is needed, with {INDEX} and one folder per part"
    )


def components(index: Mapping[str, Any]) -> dict[str, str | None]:
    """Component -> its class in model_index.json, None where it is left out."""
    pairs = {name: cast(list[Any], value) for name, value in index.items() if isinstance(value, list)}
    return {name: pair[1] for name, pair in pairs.items() if len(pair) == 2}


def family_of(index: Mapping[str, Any]) -> tuple[Family, list[str]]:
    """The family that serves a model_index.json, and the components of the checkpoint that it does not use.

    Raises CheckpointError for a pipeline that is not served, and for parts that are left out, of another class or
    not known.
    """
    family = family_for(str(index.get("_class_name")))
    found = components(index)
    null = [part.name for part in family.parts if part.name in found and found[part.name] is None]
    if null:
        raise CheckpointError(
            f"{INDEX}: {', '.join(null)} null: not supported: refiner, or another model without its text encoders"
        )
    tokenizers = [part.tokenizer for part in family.text_encoders]
    problems = [
        f"{part.name} is {found.get(part.name, 'absent')}, {' or '.join(part.classes)} is expected"
        for part in family.parts
        if found.get(part.name) not in part.classes
    ]
    problems += [f"{name} is absent" for name in ("scheduler", *tokenizers) if not found.get(name)]
    used = {part.name for part in family.parts} | {"scheduler", *tokenizers}
    others = [name for name, class_name in found.items() if name not in used and class_name]
    problems += [f"{name} is not handled" for name in others if name not in _UNUSED_COMPONENTS]
    if problems:
        raise CheckpointError(f"{INDEX}: {'; '.join(problems)}")
    return family, others


def choose_weights(part: Part, names: Iterable[str]) -> Weights:
    """Choose a part's weights from the names of the files in its folder, by the order above.

    Raises CheckpointError, which lists what was looked for, if there are none, and if a shard is missing.
    """
    names = sorted(names)
    stem = part.stem
    looked_for: list[str] = []
    for variant in VARIANTS:
        dotted = f".{variant}" if variant else ""
        single = f"{stem}{dotted}.safetensors"
        spellings = [f"{stem}{dotted}-*.safetensors", *([f"{stem}-*{dotted}.safetensors"] if variant else [])]
        if single in names:
            return Weights((single,), variant)
        for spelling in spellings:
            if shards := _shards(part.name, spelling, names):
                return Weights(shards, variant)
        looked_for += [single, *(spelling.replace("*", "0000i-of-0000N") for spelling in spellings)]
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles:
        raise CheckpointError(
            f"{part.name}: only pickled weights ({pickles[0]}); safetensors are required, no pickle is opened"
        )
    raise CheckpointError(f"{part.name}: no weights; looked for {', '.join(looked_for)}")


def _shards(part: str, spelling: str, names: list[str]) -> tuple[str, ...]:
    before, after = spelling.split("*")
    pattern = re.compile(re.escape(before) + _SHARD + re.escape(after))
    found = {int(match["i"]): match for name in names if (match := pattern.fullmatch(name))}
    if not found:
        return ()
    counts = {int(match["n"]) for match in found.values()}
    missing = set(range(1, max(counts) + 1)) - found.keys()
    if missing or len(counts) > 1:
        raise CheckpointError(
            f"{part}: of the {max(counts)} shards {spelling} the numbers {sorted(missing)} are missing"
        )
    return tuple(found[i].string for i in sorted(found))


def needed_files(family: Family, names: Iterable[str]) -> list[str]:
    """The files of a checkpoint that a bake reads, out of all `names`; raises CheckpointError as choose_weights."""
    names = tuple(names)
    needed = [INDEX, SCHEDULER, *(name for name in names if name == CARD)]
    for part in family.text_encoders:
        found = tokenizer_files(part.kind, within(part.tokenizer, names))
        needed += [f"{part.tokenizer}/{name}" for name in found]
    for part in family.parts:
        weights = choose_weights(part, within(part.name, names))
        needed += [f"{part.name}/{name}" for name in ("config.json", *weights.files)]
    absent = [name for name in needed if name not in names]
    if absent:
        raise CheckpointError(f"missing from the checkpoint: {', '.join(absent)}")
    return needed


VOCABULARIES = {
    "clip_text": (("vocab.json", "merges.txt"), ("tokenizer.json",)),
    "t5_text": (("tokenizer.json",), ("spiece.model",)),
}
"""Files of a tokeniser's vocabulary by the kind of its text encoder; the first that are there are taken."""


def tokenizer_files(kind: str, names: Iterable[str]) -> list[str]:
    """The files of a tokeniser's folder that a bake reads; raises CheckpointError if they hold no vocabulary."""
    names = set(names)
    for vocabulary in VOCABULARIES[kind]:
        if names >= {*vocabulary}:
            small = ("tokenizer_config.json", "special_tokens_map.json")
            return [*vocabulary, *(name for name in small if name in names)]
    wanted = " nor ".join(" and ".join(vocabulary) for vocabulary in VOCABULARIES[kind])
    raise CheckpointError(f"a tokeniser's folder has neither {wanted}")


def within(folder: str, names: Iterable[str]) -> list[str]:
    """The names of the files directly in `folder`."""
    inside = (name.removeprefix(f"{folder}/") for name in names if name.startswith(f"{folder}/"))
    return [name for name in inside if "/" not in name]
