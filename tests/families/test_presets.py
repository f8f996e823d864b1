import pytest

from worker.families import FAMILIES
from worker.families.presets import distillation

defaults_of = FAMILIES["stable-diffusion-xl"].defaults


@pytest.mark.parametrize(
    ("source", "scheduler", "steps", "guidance"),
    [
        ("stabilityai/stable-diffusion-xl-base-1.0", "EulerDiscreteScheduler", 50, 5.0),
        ("stabilityai/sdxl-turbo", "EulerAncestralDiscreteScheduler", 1, 0.0),
        ("someone/SDXL-Lightning-8step", "EulerDiscreteScheduler", 8, 1.0),
        ("someone/sdxl_lightning_4step_unet", "EulerDiscreteScheduler", 4, 1.0),
        ("someone/model", "LCMScheduler", 4, 1.0),
        ("someone/model", "TCDScheduler", 4, 1.0),
        ("someone/lcm-lora-merged", "LCMScheduler", 4, 1.0),
        ("turbo-owner/plain-model", "EulerDiscreteScheduler", 50, 5.0),
        ("someone/turbocharged", "EulerDiscreteScheduler", 50, 5.0),
        ("emoji", "DPMSolverMultistepScheduler", 20, 3.0),
    ],
)
def test_defaults_of_a_checkpoint(source, scheduler, steps, guidance):
    defaults = defaults_of(source, scheduler, False)
    assert (defaults.num_inference_steps, defaults.guidance_scale) == (steps, guidance)


def test_a_network_that_embeds_guidance_has_its_own_scale():
    defaults = defaults_of("SimianLuo/LCM_Dreamshaper_v7", "LCMScheduler", True)
    assert (defaults.num_inference_steps, defaults.guidance_scale) == (4, 8.5)


def test_distillation_is_none_for_ordinary_models():
    assert distillation("runwayml/stable-diffusion-v1-5", "PNDMScheduler") is None


@pytest.mark.parametrize(("embeds_guidance", "steps", "guidance"), [(True, 28, 3.5), (False, 4, 0.0)])
def test_flux_dev_and_schnell(embeds_guidance, steps, guidance):
    defaults = FAMILIES["flux.1"].defaults("someone/model", "FlowMatchEulerDiscreteScheduler", embeds_guidance)
    assert (defaults.num_inference_steps, defaults.guidance_scale) == (steps, guidance)
