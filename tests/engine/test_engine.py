"""What the engine promises besides the picture itself: programs, constants, precision, seeds, faults."""

import copy
import dataclasses
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.diffusers_pictures import picture
from tests.jobs import JOB, decode_picture, encode_picture, half_mask, photograph, run
from worker.engine.loading import load_engine, programs
from worker.families import FAMILIES
from worker.families.latent_diffusion import pipeline
from worker.nn.kernels import Kernels
from worker.settings import Settings


def pictures(service, job: dict[str, Any]) -> list[np.ndarray]:
    return [decode_picture(image) for image in run(service, job)["images"]]


@pytest.mark.xdist_group("sd1")
def test_scheduler_steps_guidance_strength_and_seed_compile_nothing_new(toy):
    service = toy("sd1").service
    image = {"image": encode_picture(photograph(72, 104)), "mask": encode_picture(half_mask(72, 104))}
    run(service, JOB | image)
    compiled = dict(service.engine.programs.compiled)
    with jax.log_compiles(), _Compilations() as seen:
        for change in (
            {"scheduler": "EulerAncestralDiscreteScheduler"},
            {"scheduler": "HeunDiscreteScheduler"},
            {"scheduler": "UniPCMultistepScheduler", "num_inference_steps": 9},
            {"num_inference_steps": 17},
            {"guidance_scale": 2.0, "guidance_rescale": 0.7},
            {"guidance_scale": 1.0},
            {"guidance_scale": 0},
            {"strength": 0.4},
            {"strength": 0.01},
            {"seed": 99},
            {"prompt": "something else altogether"},
        ):
            run(service, JOB | image | change)
        run(service, JOB | image | {"mask": None, "strength": 0.5})
        run(service, JOB)
    assert service.engine.programs.compiled == compiled
    assert not seen.messages


class _Compilations(logging.Handler):
    """Collects what JAX says about its own compilations, those outside of the engine's programs included."""

    def __enter__(self) -> "_Compilations":
        self.messages: list[str] = []
        logging.getLogger("jax").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("jax").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if "ompiling" in record.getMessage():
            self.messages.append(record.getMessage())


@pytest.mark.parametrize("variant", ["sd1", "sdxl"])
def test_no_weight_is_a_constant_of_a_program(variant):
    """The captured constants of the whole sampling loop, in bytes; toy weights alone would be megabytes."""
    family = next(family for family in FAMILIES.values() if variant in family.tiny)
    configs = {part.name: family.tiny[variant][part.name] for part in family.parts}
    model = pipeline(family, configs, Kernels(convolution="shifted"))
    unet, shapes = model.parts["unet"], model.parts["unet"].shapes
    sizes = ((2, 9, 13, 4), (2,), (2, 77, configs["unet"]["cross_attention_dim"]))
    arguments: list[Any] = [shapes, *(jax.ShapeDtypeStruct(size, np.float32) for size in sizes)]
    added = {}
    if family.size_conditioning:
        pooled = configs["text_encoder_2"]["projection_dim"]
        added = {
            "pooled_BP": jax.ShapeDtypeStruct((2, pooled), np.float32),
            "size_ids_BI": jax.ShapeDtypeStruct((2, 6), np.float32),
        }
    traced = jax.make_jaxpr(lambda *given, **more: unet.apply(*given, **more))(*arguments, **added)
    constants = sum(np.asarray(constant).nbytes for constant in traced.consts)
    weights = sum(np.prod(spec.shape) * 4 for spec in shapes.values())
    assert constants < min(10_000_000, weights / 10)


@pytest.mark.xdist_group("sd1")
def test_pictures_of_a_batch_equal_the_same_pictures_alone(toy):
    service = toy("sd1").service
    together = pictures(service, JOB | {"num_images": 3, "seed": 10})
    for index, found in enumerate(together):
        alone = pictures(service, JOB | {"seed": 10 + index})[0]
        assert np.abs(found.astype(int) - alone.astype(int)).max() <= 1
    assert np.abs(together[0].astype(int) - together[1].astype(int)).max() > 20


@pytest.mark.xdist_group("sd1")
def test_same_seed_same_bytes_and_the_drawn_seed_is_named(toy):
    service = toy("sd1").service
    drawn = run(service, {name: value for name, value in JOB.items() if name != "seed"})
    again = run(service, JOB | {"seed": drawn["seed"]})
    assert drawn["images"] == again["images"]
    assert drawn["pictures"][0]["seed"] == drawn["seed"]


@pytest.mark.xdist_group("sd1")
def test_seeds_wrap_within_their_32_bits(toy):
    answer = run(toy("sd1").service, JOB | {"seed": 2**32 - 1, "num_images": 2})
    assert [entry["seed"] for entry in answer["pictures"]] == [2**32 - 1, 0]


@pytest.mark.xdist_group("sd1")
@pytest.mark.parametrize("part", ["unet", "vae"])
def test_a_value_that_is_not_finite_is_an_error_and_the_next_job_is_untouched(toy, part):
    service = toy("sd1").service
    before = run(service, JOB)["images"]
    params = copy.copy(service.engine.programs.params)
    name = "conv_out.bias" if part == "unet" else "decoder.conv_out.bias"
    params[part] = params[part] | {name: jnp.full_like(params[part][name], jnp.nan)}
    programs = dataclasses.replace(service.engine.programs, params=params)
    broken = dataclasses.replace(service, engine=dataclasses.replace(service.engine, programs=programs))
    answer = broken.run({"id": "x", "input": JOB})
    assert list(answer) == ["error"]
    assert "not finite" in answer["error"]
    assert run(service, JOB)["images"] == before


@pytest.mark.xdist_group("sd1")
def test_bfloat16_stays_close_to_float32(toy):
    """The bound stands in docs/parity.md; random weights amplify rounding more than trained ones."""
    exact = pictures(toy("sd1").service, JOB)[0].astype(float)
    half = pictures(toy("sd1", "bfloat16").service, JOB)[0].astype(float)
    assert np.ptp(half) > 20
    psnr = 10 * np.log10(255**2 / np.mean((exact - half) ** 2))
    assert psnr > 34


@pytest.mark.xdist_group("sdxl")
@pytest.mark.parametrize(
    "change",
    [
        {"guidance_rescale": 0.7},
        {"negative_prompt": ""},
        {"negative_prompt": None},
        {"original_size": (512, 768), "crops_coords_top_left": (16, 32), "target_size": (1024, 1024)},
        {"negative_original_size": (64, 96), "negative_target_size": (256, 128)},
    ],
    ids=lambda change: "-".join(change),
)
def test_further_conditions_equal_those_of_diffusers(toy, change):
    made = toy("sdxl")
    found = pictures(made.service, JOB | change)[0].astype(int)
    plain = pictures(made.service, JOB)[0].astype(int)
    expected = picture(made.source, {**JOB, **change}).astype(int)
    assert np.abs(found - expected).max() <= 1
    assert np.abs(found - plain).max() > 1, "the condition changes the picture"


@pytest.mark.xdist_group("lcm")
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("guidance", [1.0, 8.5])
def test_a_latent_consistency_model_is_told_its_guidance(toy, steps, guidance):
    made = toy("lcm")
    job = {name: value for name, value in JOB.items() if name != "negative_prompt"}
    job |= {"num_inference_steps": steps, "guidance_scale": guidance}
    found = pictures(made.service, job)[0].astype(int)
    assert np.abs(found - picture(made.source, job).astype(int)).max() <= 1


@pytest.mark.xdist_group("sdxl-turbo")
def test_a_distilled_checkpoint_runs_with_its_own_defaults(toy):
    answer = run(toy("sdxl-turbo").service, {"prompt": "a fox", "width": 72, "height": 104, "seed": 1})
    assert answer["used"]["num_inference_steps"] == 1
    assert answer["used"]["guidance_scale"] == 0
    assert answer["used"]["scheduler"] == "EulerAncestralDiscreteScheduler"


@pytest.mark.xdist_group("sd1-inpaint")
@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_nine_channels_at_either_strength(toy, strength):
    made = toy("sd1-inpaint")
    image, mask = photograph(72, 104), half_mask(72, 104)
    job = JOB | {"strength": strength}
    sent = job | {"image": encode_picture(image), "mask": encode_picture(mask)}
    found = pictures(made.service, sent)[0].astype(int)
    assert np.abs(found - picture(made.source, job, image, mask).astype(int)).max() <= 1


@pytest.mark.xdist_group("sd1")
def test_inputs_of_another_size_are_resized_as_diffusers_does(toy):
    made = toy("sd1")
    image, mask = photograph(150, 90), half_mask(150, 90)
    job = JOB | {"strength": 0.8}
    sent = job | {"image": encode_picture(image), "mask": encode_picture(mask)}
    found = pictures(made.service, sent)[0].astype(int)
    assert np.abs(found - picture(made.source, job, image, mask).astype(int)).max() <= 1


@pytest.mark.xdist_group("sd2")
def test_the_operator_can_say_what_the_network_predicts(toy, caplog):
    made = toy("sd2")
    engine = load_engine(Settings(model_dir=made.model_dir, prediction_type="epsilon"))
    assert "v_prediction" in caplog.text
    assert engine.planner.schedule.values["prediction_type"] == "epsilon"
    assert made.service.engine.planner.schedule.values["prediction_type"] == "v_prediction"


@pytest.mark.xdist_group("sd1")
def test_a_loop_on_the_device_and_one_on_the_host_make_the_same_picture(toy):
    """CPUs take the one, GPUs the other."""
    service = toy("sd1").service
    model = service.engine.planner.pipeline
    assert model.kernels.loop == "host"
    kernels = dataclasses.replace(model.kernels, loop="device")
    planner = dataclasses.replace(service.engine.planner, pipeline=dataclasses.replace(model, kernels=kernels))
    engine = dataclasses.replace(
        service.engine, planner=planner, programs=programs(planner, service.engine.programs.params)
    )
    looped = dataclasses.replace(service, engine=engine)
    for change in ({}, {"scheduler": "Euler a"}, {"scheduler": "DPM++ SDE", "num_inference_steps": 3}):
        found, expected = (pictures(made, JOB | change)[0].astype(int) for made in (looped, service))
        assert np.abs(found - expected).max() <= 1
