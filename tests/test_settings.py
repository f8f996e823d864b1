"""The environment becomes settings, or one error with the variable's name."""

from pathlib import Path

import pytest

from worker.errors import SettingsError
from worker.settings import Settings, for_local_run, load_settings


def test_an_empty_environment_gives_the_defaults():
    assert load_settings({"MODEL_DIR": "", "SIZES": " "}) == Settings()


def test_every_kind_of_value_is_read():
    settings = load_settings(
        {
            "MODEL_DIR": "/models/sdxl",
            "VERIFY_WEIGHTS": "True",
            "ATTENTION": "xla",
            "PREDICTION_TYPE": "v_prediction",
            "MAX_SLOTS": "8",
            "JOB_TIMEOUT_S": "90.5",
            "SIZES": "1024x1024, 832x1216",
        }
    )
    assert settings == Settings(
        model_dir=Path("/models/sdxl"),
        verify_weights=True,
        attention="xla",
        prediction_type="v_prediction",
        max_slots=8,
        job_timeout_s=90.5,
        sizes=((1024, 1024), (832, 1216)),
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("VERIFY_WEIGHTS", "maybe"),
        ("ATTENTION", "flash"),
        ("MAX_SLOTS", "0"),
        ("MAX_SLOTS", "-1"),
        ("MAX_SLOTS", "two"),
        ("JOB_TIMEOUT_S", "-1"),
        ("JOB_TIMEOUT_S", "nan"),
        ("JOB_TIMEOUT_S", "soon"),
        ("SIZES", "1024"),
        ("SIZES", "1024x1000x3"),
        ("SIZES", "1020x1024"),
        ("SIZES", "1024x1024,"),
    ],
)
def test_what_cannot_be_used_is_named(variable, value):
    with pytest.raises(SettingsError) as caught:
        load_settings({variable: value})
    assert str(caught.value).startswith(f"{variable}: ")
    assert value.split(",")[-1] in str(caught.value)


def test_secrets_are_not_shown():
    names = ["BUCKET_ACCESS_KEY_ID", "BUCKET_SECRET_ACCESS_KEY", "BUCKET_SESSION_TOKEN"]
    assert "hidden" not in repr(load_settings({name: f"hidden-{name}" for name in names}))


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({}, "~/.cache/worker-jax-diffusion/programs"),
        ({"XDG_CACHE_HOME": "/caches"}, "/caches/worker-jax-diffusion/programs"),
        ({"XDG_CACHE_HOME": "relative"}, "~/.cache/worker-jax-diffusion/programs"),
        ({"PROGRAM_CACHE": "none"}, "none"),
        ({"PROGRAM_CACHE": "/programs", "XDG_CACHE_HOME": "/caches"}, "/programs"),
        ({"VOLUME_DIR": "/"}, "auto"),
    ],
)
def test_a_local_run_keeps_programs_in_the_users_cache_folder(given, folder):
    assert for_local_run(load_settings({"VOLUME_DIR": "/absent", **given})).program_cache == folder
