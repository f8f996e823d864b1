"""diffusers' denoising loop at the same shapes, as it comes and compiled."""

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from bench.full_size import baked_parts
from bench.gpu_check.flops import row_flops
from bench.gpu_check.plan import CheckPlan, say

_TOKENS = 77


def diffusers_steps(plan: CheckPlan) -> None:
    """UNet, guidance and an Euler step in bfloat16, channels last; then the UNet behind `torch.compile`."""
    if find_spec("torch") is None or find_spec("diffusers") is None:
        say(side="left out", why="torch and diffusers are not installed")
        return
    import torch

    if not (torch.cuda.is_available() or plan.dry):
        say(side="left out", why="torch has no CUDA here")
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    flops = row_flops(plan.model, plan.side, guided=True)
    with torch.inference_mode():
        unet = _unet(plan, device)
        # The eager one writes no code; that is for a card.
        compiled = torch.compile(unet, fullgraph=True, backend="eager" if plan.dry else "inductor")
        for name, network in (("eager", unet), ("compiled", compiled)):
            for slots in plan.slots:
                loop = _loop(network, plan, device, slots)
                first_s = loop()
                step_s = statistics.median(loop() for _ in range(plan.repeats)) / plan.rows
                say(
                    side=f"diffusers, {name}",
                    pictures=slots,
                    step_ms=1e3 * step_s,
                    tflops=flops * slots / step_s / 1e12,
                    first_run_s=first_s,
                    peak_gb=torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else None,
                    torch=torch.__version__,
                )


def _unet(plan: CheckPlan, device: str) -> Any:
    import torch
    from diffusers import UNet2DConditionModel

    _, files, _ = baked_parts(plan.model)
    with torch.device(device):
        unet: Any = UNet2DConditionModel.from_config(dict(files["unet"]))
    return unet.to(torch.bfloat16).to(memory_format=torch.channels_last).eval()


def _loop(unet: Any, plan: CheckPlan, device: str, slots: int) -> Callable[[], float]:
    import torch
    from diffusers import EulerDiscreteScheduler

    _, files, _ = baked_parts(plan.model)
    random = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=random, device=device, dtype=torch.bfloat16)

    downscale = 2 ** (len(files["vae"]["block_out_channels"]) - 1)
    x = normal(slots, files["unet"]["in_channels"], *(plan.side // downscale,) * 2)
    context = normal(2 * slots, _TOKENS, files["unet"]["cross_attention_dim"])
    sizes = torch.full((2 * slots, 6), plan.side, device=device, dtype=torch.bfloat16)
    added = {"text_embeds": normal(2 * slots, files["text_encoder_2"]["projection_dim"]), "time_ids": sizes}

    def run() -> float:
        scheduler = EulerDiscreteScheduler.from_config(dict(files["scheduler"]))
        scheduler.set_timesteps(plan.rows, device=device)
        latents = x * scheduler.init_noise_sigma
        _wait(device)
        began = time.perf_counter()
        for step in scheduler.timesteps:
            pair = scheduler.scale_model_input(torch.cat([latents, latents]), step)
            output = unet(pair, step, encoder_hidden_states=context, added_cond_kwargs=added, return_dict=False)[0]
            negative, positive = output.chunk(2)
            latents = scheduler.step(negative + 5.0 * (positive - negative), step, latents, return_dict=False)[0]
        _wait(device)
        return time.perf_counter() - began

    return run


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
