"""A checked request and the loaded model's facts -> everything the device needs, decided on the host.

What can be wrong with a request for this very model is found here, before the device is touched.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from worker.diffusion.config import ScheduleConfig
from worker.diffusion.names import resolve
from worker.diffusion.sampling import step_table, steps_of
from worker.diffusion.solvers import SOLVERS
from worker.diffusion.table import StepTable
from worker.errors import InvalidRequest
from worker.families.family import Defaults
from worker.families.latent_diffusion import Pipeline
from worker.families.presets import DISTILLED_GUIDANCE_MAX
from worker.request import SEED_MAX, SIDE_MAX, SIDE_MIN, Request
from worker.settings import Settings
from worker.text import TextTokenizer


@dataclass(frozen=True)
class Plan:
    """One job, ready for the device.

    `ids` has one row per prompt for each tokeniser, the negative prompt first where there is guidance; `keep` is 0
    for a row whose text condition is zeros; `size_ids` has the same rows. `image` is RGB [H, W, 3], `mask` [H, W],
    true where the picture is painted anew. `true_cfg_scale` is None for families in which `guidance_scale` is that of
    pairs.
    """

    width: int
    height: int
    seeds: tuple[int, ...]
    steps: int
    guidance_scale: float
    true_cfg_scale: float | None
    guidance_rescale: float
    guided: bool
    scheduler: str
    scheduler_options: Mapping[str, Any]
    strength: float | None
    table: StepTable
    ids: tuple[NDArray[np.int32], ...]
    keep: NDArray[np.float32]
    size_ids: NDArray[np.float32] | None
    image: NDArray[np.uint8] | None
    mask: NDArray[np.bool_] | None
    warnings: tuple[str, ...]

    @property
    def pair_scale(self) -> float:
        """The scale of guidance by pairs of evaluations."""
        return self.guidance_scale if self.true_cfg_scale is None else self.true_cfg_scale


@dataclass(frozen=True)
class Planner:
    """The facts of the loaded model that a request is checked against."""

    pipeline: Pipeline
    tokenizers: tuple[TextTokenizer, ...]
    schedule: ScheduleConfig
    zero_empty_negative: bool
    defaults: Defaults
    distilled: bool
    settings: Settings

    @property
    def text_lengths(self) -> tuple[int, ...]:
        """Token ids of a text, by tokeniser."""
        return tuple(tokenizer.length for tokenizer in self.tokenizers)

    @property
    def refused(self) -> dict[str, str]:
        """Fields that this model cannot heed, and why."""
        refused: dict[str, str] = {}
        if not self.pipeline.family.size_conditioning:
            names = (name for name in Request.model_fields if name.endswith(("_size", "_top_left")))
            refused |= dict.fromkeys(names, "this model is not told sizes or crops")
        if not self.pipeline.family.true_guidance:
            refused["true_cfg_scale"] = "this model has one scale, guidance_scale"
        return refused

    def plan(self, request: Request, image: Image.Image | None, mask: Image.Image | None) -> Plan:
        """Decide everything; raises InvalidRequest with all that this model cannot do."""
        problems = self._input_problems(request, image, mask)
        width, height = self._size(request, image)
        problems += self._size_problems(width, height)
        steps = _or(request.num_inference_steps, self.defaults.num_inference_steps)
        guidance = _or(request.guidance_scale, self.defaults.guidance_scale)
        true_cfg = _or(request.true_cfg_scale, 1.0) if self.pipeline.family.true_guidance else None
        guided = self._guided(request, guidance, true_cfg)
        strength = None
        if image is not None:
            strength = _or(request.strength, 1.0 if mask is not None else self.defaults.strength)
        choice = resolve(request.scheduler or self.schedule.class_name)
        options = {**choice.options, **(request.scheduler_options or {})}
        # A picture that is painted anew altogether begins as noise alone; the mask keeps the rest.
        from_noise = strength is None or (mask is not None and strength == 1)
        table = None
        try:
            table = step_table(
                choice.solver,
                self.schedule,
                steps,
                options=options,
                strength=None if from_noise else strength,
                tokens=self.pipeline.sequence(width, height),
            )
        except ValueError as error:
            problems += str(error).split("; ")
        if problems or table is None:
            raise InvalidRequest(problems)
        ids, keep, warnings = self._text(request, guided)
        warnings += self._warnings(request, guided, guidance, steps, strength)
        first = _or(request.seed, secrets.randbelow(SEED_MAX + 1))
        return Plan(
            width=width,
            height=height,
            # Seeds stay within the generator's 32 bits.
            seeds=tuple((first + index) % (SEED_MAX + 1) for index in range(request.num_images)),
            steps=steps,
            guidance_scale=guidance,
            true_cfg_scale=true_cfg,
            guidance_rescale=request.guidance_rescale,
            guided=guided,
            scheduler=SOLVERS[choice.solver].class_name,
            scheduler_options=options,
            strength=strength,
            table=table,
            ids=ids,
            keep=keep,
            size_ids=self._size_ids(request, width, height, guided),
            image=None if image is None else _pixels(image, width, height),
            mask=None if mask is None else _mask(mask, width, height),
            warnings=tuple(warnings),
        )

    def _input_problems(self, request: Request, image: Image.Image | None, mask: Image.Image | None) -> list[str]:
        problems: list[str] = []
        if self.pipeline.takes_extra and (image is None or mask is None):
            problems += [
                f"{name}: this in-painting model needs an image and a mask"
                for name, given in (("image", image), ("mask", mask))
                if given is None
            ]
        problems += [f"{name}: {why}" for name, why in self.refused.items() if getattr(request, name) is not None]
        return problems

    def _guided(self, request: Request, guidance: float, true_cfg: float | None) -> bool:
        """Whether there are pairs; where they have a scale of their own, a negative prompt is needed as well."""
        if true_cfg is None:
            return guidance > 1 and self.pipeline.takes_pairs
        return true_cfg > 1 and request.negative_prompt is not None

    def _size(self, request: Request, image: Image.Image | None) -> tuple[int, int]:
        side = self.pipeline.sample_size
        width, height = (side, side) if image is None else image.size
        step = self.pipeline.size_step
        return (
            _or(request.width, width - width % step),
            _or(request.height, height - height % step),
        )

    def _size_problems(self, width: int, height: int) -> list[str]:
        settings = self.settings
        if settings.sizes and (width, height) not in settings.sizes:
            served = ", ".join(f"{w}x{h}" for w, h in settings.sizes)
            return [f"width, height: {width}x{height} is not served; served are {served}"]
        problems: list[str] = []
        for name, value in (("width", width), ("height", height)):
            step = self.pipeline.size_step
            if not SIDE_MIN <= value <= SIDE_MAX or value % step:
                wanted = f"{SIDE_MIN} to {SIDE_MAX} in steps of {step}"
                problems.append(f"{name}: {value} is not allowed (the image's, if none was given): {wanted}")
        if width * height > settings.max_pixels:
            problems.append(f"width, height: {width * height} pixels, allowed are {settings.max_pixels}")
        return problems

    def _text(
        self, request: Request, guided: bool
    ) -> tuple[tuple[NDArray[np.int32], ...], NDArray[np.float32], list[str]]:
        texts = [request.negative_prompt or "", request.prompt] if guided else [request.prompt]
        tokens = [tokenizer(texts) for tokenizer in self.tokenizers]
        keep = np.ones(len(texts), np.float32)
        if guided and request.negative_prompt is None and self.zero_empty_negative:
            keep[0] = 0
        names = ["negative_prompt", "prompt"][-len(texts) :]
        lost = np.max([token.lost for token in tokens], axis=0)
        warnings = [
            f"{name}: {count} tokens did not fit and were cut" for name, count in zip(names, lost, strict=True) if count
        ]
        return tuple(token.ids for token in tokens), keep, warnings

    def _warnings(
        self, request: Request, guided: bool, guidance: float, steps: int, strength: float | None
    ) -> list[str]:
        warnings = [f"{name}: the refiner is not served; ignored" for name in request.ignored]
        if request.strength is not None and strength is None:
            warnings.append("strength: has no effect without an image")
        scale = "true_cfg_scale" if self.pipeline.family.true_guidance else "guidance_scale"
        if request.negative_prompt and not guided:
            warnings.append(f"negative_prompt: has no effect without guidance ({scale} above 1)")
        if request.true_cfg_scale is not None and request.true_cfg_scale > 1 and not guided:
            warnings.append("true_cfg_scale: has no effect without a negative_prompt, which may be empty")
        if request.guidance_scale and not (guided or self.pipeline.embeds_guidance) and scale == "true_cfg_scale":
            warnings.append("guidance_scale: this model was trained without; true_cfg_scale guides it")
        if self.distilled and self.pipeline.takes_pairs and guidance > DISTILLED_GUIDANCE_MAX:
            usual = f"at most {DISTILLED_GUIDANCE_MAX:g} is usual"
            warnings.append(f"guidance_scale: {guidance:g} is high for a distilled model; {usual}")
        if strength is not None and steps_of(self.schedule, steps, strength) < 1:
            warnings.append(f"strength: {strength:g} of {steps} steps is less than one; one step was run")
        return warnings

    def _size_ids(self, request: Request, width: int, height: int, guided: bool) -> NDArray[np.float32] | None:
        """SDXL's micro-conditioning (Podell et al. 2023, 2.2): original size, crop, target size; heights first."""
        if not self.pipeline.family.size_conditioning:
            return None
        size = (height, width)
        positive = (
            *_or(request.original_size, size),
            *_or(request.crops_coords_top_left, (0, 0)),
            *_or(request.target_size, size),
        )
        negative = positive
        if request.negative_original_size is not None and request.negative_target_size is not None:
            negative = (
                *request.negative_original_size,
                *_or(request.negative_crops_coords_top_left, (0, 0)),
                *request.negative_target_size,
            )
        return np.asarray([negative, positive] if guided else [positive], np.float32)


def _or[T](value: T | None, default: T) -> T:
    return default if value is None else value


def _pixels(image: Image.Image, width: int, height: int) -> NDArray[np.uint8]:
    """Resized to the size that was asked for, as diffusers' VaeImageProcessor does it."""
    return np.asarray(image.resize((width, height), Image.Resampling.LANCZOS))


def _mask(mask: Image.Image, width: int, height: int) -> NDArray[np.bool_]:
    resized = mask.resize((width, height), Image.Resampling.LANCZOS).convert("L")
    return np.asarray(resized, np.float32) / 255 >= 0.5
