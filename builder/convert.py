"""A published checkpoint in the layout of diffusers -> a baked folder: the runtime's layout, dtype and manifest."""

import logging
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from builder.fetch import Origin, licence_of, read_origin
from builder.published import (
    CARD,
    INDEX,
    SCHEDULER,
    check_layout,
    choose_weights,
    family_of,
    needed_files,
    read_json,
    tokenizer_files,
    within,
)
from builder.staging import Staging, check_disk, disk_errors, exclusive, write_durably
from builder.tokenizer import tokenizer_contents
from worker.engine.loading import check_model
from worker.errors import BuildError, CheckpointError
from worker.families import Family
from worker.families.family import Part
from worker.nn.functional import functional
from worker.nn.kernels import Kernels
from worker.weights.load import folder_problems
from worker.weights.manifest import (
    EIGHT_BITS,
    FILE_NAME,
    BakedFile,
    BakedPart,
    Dtype,
    Manifest,
    read_manifest,
    write_manifest,
)
from worker.weights.mapping import RULES, Mapped, is_scaled, pair, row_scales, stored_dtype, to_runtime, weight_name
from worker.weights.tensors import TensorFile, open_tensors, write_tensors

log = logging.getLogger(__name__)

CONVERTER_VERSION = 1


@dataclass(frozen=True)
class PartPlan:
    """All that is known about a part before any of it is written."""

    part: Part
    config: dict[str, Any]
    dtype: Dtype
    files: dict[str, TensorFile]
    variant: str
    mapped: Mapped
    specs: dict[str, jax.ShapeDtypeStruct]

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors to be written."""
        return sum(spec.size * spec.dtype.itemsize for spec in self.specs.values())

    def tensors(self) -> Iterator[NDArray[Any]]:
        """The tensors in the order of `specs`, each read when its turn has come."""
        with tqdm(total=self.size_bytes, desc=self.part.name, unit="B", unit_scale=True, disable=None) as bar:
            for name in self.specs:
                tensor = self._tensor(name)
                yield tensor
                bar.update(tensor.nbytes)

    def _tensor(self, name: str) -> NDArray[Any]:
        weight = weight_name(name)
        published = self.mapped.sources[weight]
        tensor = to_runtime(self.files[published].read(published), len(self.specs[weight].shape))
        if is_scaled(weight, self.specs):
            tensor = tensor.astype(np.float32)
            scales = row_scales(tensor)
            tensor = tensor / scales[:, None] if name == weight else scales
        tensor = np.ascontiguousarray(tensor, dtype=self.specs[name].dtype)
        if not np.isfinite(tensor).all():
            raise CheckpointError(f"{self.part.name}: {published} has values that are not finite")
        return tensor


def convert(source: Path, out: Path, dtype: Dtype, *, force: bool = False, origin: Origin | None = None) -> Manifest:
    """Bake the folder `source` into `out`, which is whole or absent, and return its manifest.

    `origin` is where the folder came from, by default what `fetch` noted in it.
    `out` is left as it is if it holds the same already; finished parts of a run that ended early are kept. Raises
    CheckpointError with all differences between the checkpoint and the model before anything is written, and
    BuildError for the disk and for an `out` with other content, unless it is a baked model and `force` is set.
    """
    # A link is followed, so that what it stands for is replaced and not the link.
    out = out.resolve()
    names = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
    check_layout(source, names)
    index = read_json(source / INDEX)
    family, unused = family_of(index)
    if unused:
        log.info("not used: %s", ", ".join(unused))
    needed = needed_files(family, names)
    plans = plan_parts(source, family, names, dtype)
    scheduler = read_json(source / SCHEDULER)
    _report(plans, scheduler)
    origin = origin or read_origin(source)
    digests = _digests(source, origin, [name for name in needed if name != CARD])
    content = sha256("".join(f"{name} {digests[name]}\n" for name in sorted(digests)).encode()).hexdigest()
    name, revision = (origin.repository, origin.revision) if origin else (source.resolve().name, None)
    if baked := existing(out, force=force):
        if baked.content_sha256 == content and is_bake_of(baked, name, revision, dtype):
            log.info("%s: baked already", out)
            return baked
        if not force:
            raise occupied(out, baked)
    with exclusive(out), disk_errors(out):
        staging = Staging(out, f"convert {content} to {dtype} by version {CONVERTER_VERSION}")
        parts = _write_parts(staging, plans)
        manifest = Manifest(
            converter_version=CONVERTER_VERSION,
            source=name,
            revision=revision,
            content_sha256=content,
            licence=origin.licence if origin else licence_in(source / CARD),
            family=family.name,
            dtype=dtype,
            parts=parts,
            tokenizers={
                part.tokenizer: _write_tokenizer(part, source, staging.folder, names) for part in family.text_encoders
            },
            scheduler=scheduler,
            model_index=index,
        )
        manifest = manifest.model_copy(update={"layout": check_model(staging.folder, manifest)})
        write_manifest(staging.folder, manifest)
        staging.publish()
    log.info("%s: baked, %.1f MB of weights", out, sum(part.size_bytes for part in parts.values()) / 1e6)
    return manifest


def existing(out: Path, *, force: bool) -> Manifest | None:
    """The manifest of the whole baked model in `out`; None if `out` is free, or damaged and `force` is set.

    Raises BuildError if `out` holds files that the builder did not make: those are never replaced.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not (out / FILE_NAME).is_file():
        raise BuildError(f"{out}: is there and is not a baked model; choose another folder or remove it")
    try:
        manifest = read_manifest(out)
        problems = folder_problems(out, manifest)
    except CheckpointError as error:
        manifest, problems = None, [str(error)]
    if problems and not force:
        raise BuildError(f"{out}: {'; '.join(problems)}; --force replaces it")
    return None if problems else manifest


def is_bake_of(baked: Manifest, source: str, revision: str | None, dtype: Dtype) -> bool:
    """Whether a baked model was made of this source, in this dtype, by this version of the converter."""
    found = (baked.source, baked.revision, baked.dtype, baked.converter_version)
    return found == (source, revision, dtype, CONVERTER_VERSION)


def occupied(out: Path, baked: Manifest) -> BuildError:
    """The error for an `out` that holds another model."""
    revision = f"@{baked.revision}" if baked.revision else ""
    return BuildError(
        f"{out}: holds {baked.source}{revision} in {baked.dtype} (content {baked.content_sha256[:12]}); "
        "choose another folder, or --force replaces it"
    )


def plan_parts(source: Path, family: Family, names: list[str], dtype: Dtype) -> list[PartPlan]:
    """Match every part of the checkpoint with the model; raises one CheckpointError for all parts."""
    plans: list[PartPlan] = []
    problems: list[str] = []
    for part in family.parts:
        try:
            plans.append(_plan(source / part.name, family, part, within(part.name, names), dtype))
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError("; ".join(problems))
    return plans


def _plan(folder: Path, family: Family, part: Part, names: list[str], dtype: Dtype) -> PartPlan:
    config = read_json(folder / "config.json")
    if part.role == "autoencoder" and config.get("scaling_factor") is None:
        log.info("%s: no scaling_factor, %g is used", part.name, family.default_scaling_factor)
        config["scaling_factor"] = family.default_scaling_factor
    dtype = part_dtype(part, config, dtype)
    module = part.build(part.parse(config), Kernels())
    shapes = functional(module, scaled=dtype == EIGHT_BITS).shapes
    targets = {name: spec for name, spec in shapes.items() if weight_name(name) == name}
    weights = choose_weights(part, names)
    files: dict[str, TensorFile] = {}
    for opened in (open_tensors(folder / name) for name in weights.files):
        if twice := files.keys() & opened.tensors.keys():
            raise CheckpointError(f"{part.name}: in two shards: {', '.join(sorted(twice)[:10])}")
        files |= dict.fromkeys(opened.tensors, opened)
    mapped = pair(
        part.name, RULES.get(part.kind, ()), {name: file.tensors[name] for name, file in files.items()}, targets
    )

    def place(ours: str) -> tuple[str, int]:
        published = mapped.sources[weight_name(ours)]
        return files[published].path.name, files[published].tensors[published].begin

    # In the order of the source's bytes, so that the disk reads forward.
    specs = {
        name: jax.ShapeDtypeStruct(shapes[name].shape, stored_dtype(dtype, name, shapes))
        for name in sorted(shapes, key=place)
    }
    return PartPlan(part, config, dtype, files, weights.variant, mapped, specs)


def part_dtype(part: Part, config: Mapping[str, Any], asked: Dtype) -> Dtype:
    """The number format of a part, by its `config.json`, in a bake for which `asked` was asked."""
    if part.role == "autoencoder" and config.get("force_upcast"):
        return "float32"
    return "bfloat16" if asked == EIGHT_BITS and not part.eight_bits else asked


def _report(plans: list[PartPlan], scheduler: Mapping[str, Any]) -> None:
    for plan in plans:
        for name, reason in plan.mapped.dropped.items():
            log.info("%s: %s left out: %s", plan.part.name, name, reason)
            if name == "v_pred" and scheduler.get("prediction_type") != "v_prediction":
                log.warning(
                    "%s: marked as predicting v, but the scheduler's configuration says otherwise", plan.part.name
                )
    if len({plan.variant for plan in plans}) > 1:
        variants = ", ".join(f"{plan.part.name} {plan.variant or 'plain'}" for plan in plans)
        log.warning("mixed precision: %s", variants)


def _digests(source: Path, origin: Origin | None, names: list[str]) -> dict[str, str]:
    with ThreadPoolExecutor() as pool:
        digests = dict(zip(names, pool.map(_sha256, (source / name for name in names)), strict=True))
    stated = origin.sha256 if origin else {}
    differing = [name for name in names if stated.get(name, digests[name]) != digests[name]]
    if differing:
        raise CheckpointError(
            f"{source}: {', '.join(differing)} differ from the hub's sha256; remove it and fetch again"
        )
    return digests


def _write_parts(staging: Staging, plans: list[PartPlan]) -> dict[str, BakedPart]:
    done = {plan.part.name: part for plan in plans if (part := _finished(staging, plan))}
    check_disk(staging.target, sum(plan.size_bytes for plan in plans if plan.part.name not in done), "the conversion")
    for plan in plans:
        if plan.part.name in done:
            log.info("%s: converted already", plan.part.name)
            continue
        path = staging.folder / f"{plan.part.name}.safetensors"
        partial = path.with_name(f"{path.name}.partial")
        digest = write_tensors(partial, plan.specs, plan.tensors())
        partial.replace(path)
        done[plan.part.name] = BakedPart(config=plan.config, file=path.name, dtype=plan.dtype, **digest._asdict())
        staging.remember(plan.part.name, done[plan.part.name].model_dump())
    return {plan.part.name: done[plan.part.name] for plan in plans}


def _finished(staging: Staging, plan: PartPlan) -> BakedPart | None:
    note = staging.note(plan.part.name)
    if note is None:
        return None
    part = BakedPart.model_validate(note)
    path = staging.folder / part.file
    whole = path.is_file() and path.stat().st_size == part.size_bytes and _sha256(path) == part.sha256
    return part if whole else None


def _write_tokenizer(part: Part, source: Path, staging: Path, names: list[str]) -> dict[str, BakedFile]:
    target = staging / part.tokenizer
    target.mkdir(exist_ok=True)
    published = tokenizer_files(part.kind, within(part.tokenizer, names))
    contents = tokenizer_contents(part.kind, source / part.tokenizer, published)
    for name, content in contents.items():
        write_durably(target / name, content)
    return {
        name: BakedFile(sha256=sha256(content).hexdigest(), size_bytes=len(content))
        for name, content in contents.items()
    }


def licence_in(card: Path) -> str | None:
    """The licence in the front matter of a model card, None without either."""
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    front = re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)
    return (
        licence_of(dict(re.findall(r"^(license\w*): *['\"]?([^'\"\n#]+)", front[1], re.MULTILINE))) if front else None
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
