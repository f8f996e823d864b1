"""The picture that diffusers makes for a job: the yardstick of the whole worker.

Reads a job as a user of diffusers would translate it, from the same checkpoint folder that the builder bakes.
"""

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from worker.diffusion.names import resolve
from worker.diffusion.solvers import SOLVERS

diffusers.utils.logging.set_verbosity_error()
diffusers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

SD, SDXL, FLUX = "sd", "sdxl", "flux"
PIPELINES: dict[tuple[str, str], type[Any]] = {
    (SD, "text"): diffusers.StableDiffusionPipeline,
    (SD, "image"): diffusers.StableDiffusionImg2ImgPipeline,
    (SD, "mask"): diffusers.StableDiffusionInpaintPipeline,
    (SDXL, "text"): diffusers.StableDiffusionXLPipeline,
    (SDXL, "image"): diffusers.StableDiffusionXLImg2ImgPipeline,
    (SDXL, "mask"): diffusers.StableDiffusionXLInpaintPipeline,
    (FLUX, "text"): diffusers.FluxPipeline,
    (FLUX, "image"): diffusers.FluxImg2ImgPipeline,
    (FLUX, "mask"): diffusers.FluxInpaintPipeline,
}


@cache
def checkpoint(source: Path) -> Any:
    """The pipeline that the folder's model_index.json names, in float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = diffusers.DiffusionPipeline.from_pretrained(source, torch_dtype=torch.float32)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def kind_of(loaded: Any) -> str:
    """Which family's pipelines a checkpoint is for."""
    if "transformer" in loaded.components:
        return FLUX
    return SDXL if "text_encoder_2" in loaded.components else SD


def pipeline_for(source: Path, mode: str) -> Any:
    """A pipeline of the given mode over the checkpoint's networks."""
    loaded = checkpoint(source)
    if isinstance(loaded, diffusers.LatentConsistencyModelPipeline):
        return loaded
    family = kind_of(loaded)
    components = dict(loaded.components)
    components.pop("image_encoder", None)
    settings = {name: loaded.config[name] for name in ("force_zeros_for_empty_prompt",) if name in loaded.config}
    if family == SD:
        settings["requires_safety_checker"] = False
    made = PIPELINES[family, mode](**components, **settings)
    made.set_progress_bar_config(disable=True)
    return made


def picture(
    source: Path, job: dict[str, Any], image: Image.Image | None = None, mask: Image.Image | None = None
) -> NDArray[np.uint8]:
    """RGB [H, W, 3] for the job's first seed. `image`, where given, has the size of the picture."""
    mode = "text" if image is None else "image" if mask is None else "mask"
    with warnings.catch_warnings(), torch.no_grad():
        # diffusers and PyTorch speak of their own future here.
        warnings.simplefilter("ignore")
        pipe = pipeline_for(source, mode)
        stored = checkpoint(source).scheduler
        pipe.scheduler = _scheduler(job, stored)
        call: dict[str, Any] = {
            name: job[name]
            for name in ("prompt", "negative_prompt", "num_inference_steps", "guidance_scale", "guidance_rescale",
                         "true_cfg_scale", "original_size", "crops_coords_top_left", "target_size",
                         "negative_original_size", "negative_crops_coords_top_left", "negative_target_size")
            if name in job
        }  # fmt: skip
        if mode != "text":
            call |= {"image": image, "strength": job["strength"]}
        if mode == "mask":
            call["mask_image"] = mask
        if kind_of(pipe) == FLUX:
            call["max_sequence_length"] = pipe.tokenizer_2.model_max_length
        if mode != "image" or kind_of(pipe) == FLUX:
            call |= {"height": job["height"], "width": job["width"]}
        generator = torch.Generator().manual_seed(job["seed"])
        found = pipe(**call, generator=generator, output_type="np").images[0]
    return np.round(found * 255).astype(np.uint8)


def _scheduler(job: dict[str, Any], stored: Any) -> Any:
    if "scheduler" not in job:
        return type(stored).from_config(stored.config, **job.get("scheduler_options", {}))
    choice = resolve(job["scheduler"])
    kind = getattr(diffusers, SOLVERS[choice.solver].class_name)
    # Without this, diffusers' PNDM begins with Runge-Kutta steps, which no Stable Diffusion checkpoint asks for.
    plms = {"skip_prk_steps": True} if kind is diffusers.PNDMScheduler else {}
    return kind.from_config(stored.config, **{**plms, **choice.options, **job.get("scheduler_options", {})})
