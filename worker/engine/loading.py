"""From a baked folder to a model that can be served; what cannot be served is found before a job is."""

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from worker.diffusion.config import ScheduleConfig
from worker.diffusion.names import resolve
from worker.diffusion.sampling import step_table
from worker.engine.blobs import Key
from worker.engine.clock import Clock
from worker.engine.engine import Engine
from worker.engine.identity import devices, fingerprint, layout
from worker.engine.operations import Bucket, Operations, ParamSpecs, mesh_over
from worker.engine.plan import Planner
from worker.engine.programs import Programs
from worker.engine.selection import select_kernels, sound_kernels
from worker.engine.store import ProgramStore, open_store
from worker.errors import CheckpointError
from worker.families import FAMILIES
from worker.families.latent_diffusion import Params, Pipeline, pipeline
from worker.families.presets import distillation
from worker.nn.kernels import Kernels
from worker.settings import Settings
from worker.text import TextTokenizer, load_tokenizer
from worker.weights.load import Elsewhere, Shapes, baked_shapes, load, replicas
from worker.weights.manifest import EIGHT_BITS, Manifest, read_manifest

log = logging.getLogger(__name__)


def load_engine(settings: Settings, start: Clock | None = None) -> Engine:
    """Load the baked folder that the settings name; raises StartupError when it cannot be served.

    `start` gets the seconds of the parts; weights and programs are loaded side by side.
    """
    start = start or Clock()
    with start.stage("plan_s"):
        manifest = read_manifest(settings.model_dir)
        platform = jax.default_backend()
        kernels = select_kernels(settings, platform)
        planner = load_planner(settings.model_dir, manifest, settings, kernels)
        shapes = _shapes(settings.model_dir, manifest, planner.pipeline)

    def stored() -> _Stored:
        with start.stage("programs_s"):
            return _load_stored(settings, manifest, planner)

    with ThreadPoolExecutor(1, thread_name_prefix="programs") as pool:
        loading = pool.submit(stored)
        with start.stage("weights_s"):
            params = load(
                settings.model_dir,
                manifest,
                shapes,
                verify=settings.verify_weights,
                elsewhere=_elsewhere(settings, planner.pipeline),
            )
        found = loading.result()
    with start.stage("weights_s"):
        made = programs(found.planner, params, found.store, mesh_over(devices()[: settings.max_devices]))
    made.adopt(found.loaded)
    log.info("serving %s (%s, %s) on %s", manifest.source, manifest.family, found.planner.pipeline.kernels, platform)
    return Engine(manifest, found.planner, made, start=start)


class _Stored(NamedTuple):
    planner: Planner
    store: ProgramStore
    loaded: dict[Key, jax.stages.Compiled]


def _load_stored(settings: Settings, manifest: Manifest, planner: Planner) -> _Stored:
    """All stored programs of a model; without any, of the model with kernels that work on this device."""
    store = open_store(settings, manifest, program_fingerprint(planner, manifest))
    loaded = store.load(store.keys())
    model = planner.pipeline
    # Programs that were loaded have shown that their kernels work; trying these means compiling.
    if loaded or (kernels := sound_kernels(model.kernels)) == model.kernels:
        return _Stored(planner, store, loaded)
    return _load_stored(settings, manifest, replace(planner, pipeline=replace(model, kernels=kernels)))


def load_planner(model_dir: Path, manifest: Manifest, settings: Settings, kernels: Kernels) -> Planner:
    """Everything but the weights; raises CheckpointError for what no job could be run with."""
    family = FAMILIES.get(manifest.family)
    if family is None:
        raise CheckpointError(f"{model_dir}: family {manifest.family} is not one of {', '.join(FAMILIES)}")
    if missing := {part.name for part in family.parts} ^ manifest.parts.keys():
        raise CheckpointError(f"{model_dir}: {', '.join(sorted(missing))}: not the parts of {family.name}")
    schedule = _schedule(model_dir, manifest, settings)
    scaled = frozenset(name for name, part in manifest.parts.items() if part.dtype == EIGHT_BITS)
    model = pipeline(family, {name: part.config for name, part in manifest.parts.items()}, kernels, scaled)
    return Planner(
        pipeline=model,
        tokenizers=tuple(_tokenizers(model_dir, model)),
        schedule=schedule,
        zero_empty_negative=manifest.model_index.get("force_zeros_for_empty_prompt", family.zero_empty_negative)
        is True,
        defaults=family.defaults(manifest.source, schedule.class_name, model.embeds_guidance),
        distilled=distillation(manifest.source, schedule.class_name) is not None,
        settings=settings,
    )


def programs(planner: Planner, params: Params, store: ProgramStore | None = None, mesh: Mesh | None = None) -> Programs:
    """The programs of a planner's model, spread over the devices of a mesh; nothing is compiled or loaded yet."""
    denoiser = planner.pipeline.family.denoiser
    spread = {} if mesh is None else {denoiser: replicas(params[denoiser], mesh)}
    return Programs(replace(operations(planner, params), mesh=mesh), params, spread, store)


def operations(planner: Planner, params: ParamSpecs) -> Operations:
    """What can be compiled for a planner's model."""
    return Operations(planner.pipeline, params, planner.text_lengths)


def program_fingerprint(planner: Planner, manifest: Manifest) -> str:
    """What the programs of a planner's model are known by."""
    return fingerprint(manifest, planner.pipeline.kernels, planner.text_lengths)


def check_model(model_dir: Path, manifest: Manifest) -> str:
    """Raise CheckpointError if a worker could not serve the folder: the builder's last question.

    Every program is traced for a small picture, without weights. Returns the manifest's `layout`.
    """
    planner = load_planner(model_dir, manifest, Settings(), Kernels())
    try:
        for program in operations(planner, planner.pipeline.shapes).all(Bucket(1, 8, 8), image=True):
            program.trace()
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise CheckpointError(f"{model_dir}: its configurations do not fit together: {error}") from error
    return layout(manifest, planner.pipeline.shapes)


def _shapes(model_dir: Path, manifest: Manifest, model: Pipeline) -> Shapes:
    """As baked, where the builder found them to be those of the very code that runs here, else as the model says."""
    # What is wrong with a file is said when all are loaded.
    with suppress(CheckpointError):
        found = baked_shapes(model_dir, manifest)
        if layout(manifest, found) == manifest.layout:
            return found
    return model.shapes


def _elsewhere(settings: Settings, model: Pipeline) -> dict[str, Elsewhere]:
    if settings.text_encoders == "device":
        return {}
    return {part.name: settings.text_encoders for part in model.family.text_encoders}


def _schedule(model_dir: Path, manifest: Manifest, settings: Settings) -> ScheduleConfig:
    """The checkpoint's schedule, with the operator's word on what the network predicts."""
    raw = dict(manifest.scheduler)
    if settings.prediction_type != "auto":
        stated = raw.get("prediction_type", "epsilon")
        if stated != settings.prediction_type:
            log.warning(
                "the network predicts %s by setting; its configuration says %s", settings.prediction_type, stated
            )
        raw["prediction_type"] = settings.prediction_type
    try:
        schedule = ScheduleConfig.from_json(raw)
        # Values that only a table shows to be wrong stop the start, not the first job.
        step_table(resolve(schedule.class_name).solver, schedule, 1)
        return schedule
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{model_dir}: scheduler: {error}") from None


def _tokenizers(model_dir: Path, model: Pipeline) -> list[TextTokenizer]:
    most = model.family.max_tokens(model.configs)
    return [
        load_tokenizer(part.kind, model_dir / part.tokenizer, limit, model.configs[part.name].vocab_size)
        for part, limit in zip(model.family.text_encoders, most, strict=True)
    ]
