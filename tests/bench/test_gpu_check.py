"""The check of a card measures the worker's own programs; all of it runs with `python -m bench gpu-check --dry-run`."""

import numpy as np
import pytest

from bench.gpu_check.advance import Pass
from bench.gpu_check.plan import CheckPlan, dry_plan


@pytest.mark.xdist_group("sd1")
def test_a_pass_is_the_workers_and_can_be_made_again(toy, tmp_path):
    one = Pass(toy("sd1").service.engine, dry_plan(tmp_path), 1)
    latents = [one.run()[1] for _ in range(2)]
    assert one.key == ("advance", *latents[0].shape[:3], True)
    assert np.isfinite(latents[0]).all()
    assert latents[0].std() > 0
    assert np.array_equal(*latents)


@pytest.mark.parametrize("ahead", [None, "programs"])
def test_a_plan_reaches_the_process_of_a_part_whole(tmp_path, ahead):
    plan = dry_plan(tmp_path, ahead and tmp_path / ahead)
    assert CheckPlan.from_json(plan.to_json()) == plan
