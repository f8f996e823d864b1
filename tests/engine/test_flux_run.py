"""FLUX.1 on the device beside other jobs, as every family: sharing passes, leaving them, being stopped."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.engine.test_engine import pictures
from tests.engine.test_run import Shared, Slowest, with_engine
from tests.jobs import encode_picture, half_mask, photograph
from worker.request import parse_request

JOB: dict[str, Any] = {"prompt": "a red fox", "width": 64, "height": 80, "seed": 3, "guidance_scale": 3.5}
IMAGE = {"image": encode_picture(photograph(64, 80)), "strength": 0.6}
JOBS = [
    JOB | {"num_inference_steps": 14},
    JOB | {"num_inference_steps": 5, "seed": 8, "guidance_scale": 1.5, "scheduler_options": {"shift": 2.0}},
    JOB | {"num_inference_steps": 3, "seed": 9, "prompt": "a house", "num_images": 2},
    JOB | {"num_inference_steps": 9, "seed": 11} | IMAGE,
    JOB | {"num_inference_steps": 6, "seed": 12} | IMAGE | {"mask": encode_picture(half_mask(64, 80))},
]

pytestmark = pytest.mark.xdist_group("flux-dev")


def test_jobs_of_other_steps_and_guidance_share_passes(toy):
    service = with_engine(toy("flux-dev").service, pace=Slowest())
    alone = [pictures(service, job) for job in JOBS]
    service.engine.programs.prepare(10, 8, [1, 2, 4], image=True)
    shared = Shared(service.engine.programs)
    together = with_engine(service, programs=shared)
    with ThreadPoolExecutor(len(JOBS)) as threads:
        found = list(threads.map(lambda job: pictures(together, job), JOBS))
    # Passes are full, and places get free and are taken while others go on.
    assert max(shared.active) == 4
    assert len(shared.active) < sum(job["num_inference_steps"] * job.get("num_images", 1) for job in JOBS)
    for one, other in zip(alone, found, strict=True):
        assert np.abs(np.subtract(one, other, dtype=int)).max() <= 1


def test_a_job_that_is_stopped_leaves_the_others_as_they_were(toy):
    service = with_engine(toy("flux-dev").service, pace=Slowest())
    expected = pictures(service, JOBS[0])
    seen: list[float] = []

    def stop(done: float, _preview: object) -> None:
        seen.append(done)
        if done > 0.3:
            raise KeyError("stopped")

    plan = service.engine.plan(parse_request(JOB | {"num_inference_steps": 20, "seed": 5}), None, None)
    with ThreadPoolExecutor(2) as threads:
        other = threads.submit(lambda: pictures(service, JOBS[0]))
        with pytest.raises(KeyError, match="stopped"):
            list(service.engine.run([plan], stop))
        assert np.abs(np.subtract(other.result(), expected, dtype=int)).max() <= 1
    assert len([done for done in seen if done > 0.3]) == 1


def test_steps_guidance_shift_strength_and_seed_compile_nothing_new(toy):
    service = toy("flux-dev").service
    pictures(service, JOB | {"num_inference_steps": 1})
    pictures(service, JOB | {"num_inference_steps": 1} | IMAGE)
    compiled = set(service.engine.programs.compiled)
    for change in (
        {"num_inference_steps": 7, "guidance_scale": 9.0, "seed": 1},
        {"scheduler_options": {"use_dynamic_shifting": False, "shift": 6.0}},
        {"true_cfg_scale": 3.0, "negative_prompt": "grey"},
        IMAGE | {"strength": 0.9},
    ):
        pictures(service, JOB | {"num_inference_steps": 4} | change)
    assert set(service.engine.programs.compiled) == compiled
