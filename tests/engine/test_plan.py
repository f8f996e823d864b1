"""What a loaded model refuses or warns of, before the device is touched."""

import pytest

from tests.jobs import encode_picture, half_mask, photograph, run

JOB = {"prompt": "a fox", "width": 72, "height": 104, "num_inference_steps": 2, "seed": 1}


def error(service, job) -> str:
    compiled = dict(service.engine.programs.compiled)
    answer = service.run({"id": "x", "input": job})
    assert list(answer) == ["error"]
    assert service.engine.programs.compiled == compiled
    return answer["error"]


@pytest.mark.xdist_group("sd1-inpaint")
def test_an_inpainting_model_needs_image_and_mask(toy):
    service = toy("sd1-inpaint").service
    text = error(service, JOB)
    assert "image: this in-painting model" in text
    assert "mask: this in-painting model" in text
    assert "mask:" in error(service, JOB | {"image": encode_picture(photograph(72, 104))})


@pytest.mark.xdist_group("sd1")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target_size": [64, 64]}, "target_size"),
        ({"scheduler": "DDIMScheduler", "scheduler_options": {"use_karras_sigmas": True}}, "use_karras_sigmas"),
        ({"scheduler_options": {"beta_start": 0.1}}, "beta_start"),
        ({"width": 4096, "height": 4096}, "pixels"),
        ({"image": "no picture"}, "image: neither base64"),
        ({"image": "AAAA"}, "image: not a whole picture"),
        ({"image": encode_picture(photograph(40, 40)), "width": None, "height": None}, "width: 40"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_this_model_cannot_do_is_named(toy, change, words):
    assert words in error(toy("sd1").service, JOB | change)


@pytest.mark.xdist_group("sd1")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": "word " * 200}, "prompt:"),
        ({"negative_prompt": "word " * 200, "guidance_scale": 5}, "negative_prompt:"),
        ({"negative_prompt": "grey", "guidance_scale": 1}, "negative_prompt: has no effect"),
        ({"image": encode_picture(photograph(72, 104)), "strength": 0}, "strength:"),
        ({"strength": 0.5}, "strength: has no effect"),
        ({"high_noise_frac": 0.8}, "high_noise_frac: the refiner"),
        ({"image": encode_picture(photograph(72, 104)), "strength": 0.3}, "strength:"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_not_done_as_asked_is_warned_of(toy, change, words):
    warnings = run(toy("sd1").service, JOB | change)["warnings"]
    assert len(warnings) == 1
    assert warnings[0].startswith(words)


@pytest.mark.xdist_group("sd1")
def test_without_a_size_the_image_decides(toy):
    job = {"prompt": "a fox", "num_inference_steps": 2, "seed": 1, "strength": 1}
    answer = run(toy("sd1").service, job | {"image": encode_picture(photograph(75, 110))})
    assert (answer["used"]["width"], answer["used"]["height"]) == (72, 104)


@pytest.mark.xdist_group("sd1")
def test_without_size_and_image_the_model_decides(toy):
    mask = encode_picture(half_mask(64, 64))
    answer = run(toy("sd1").service, {"prompt": "a fox", "num_inference_steps": 1, "seed": 1})
    assert (answer["used"]["width"], answer["used"]["height"]) == (64, 64)
    assert "an image is needed" in error(toy("sd1").service, {"prompt": "a fox", "mask": mask})
