"""The model of a check: a baked folder with random weights, and the same with programs from elsewhere."""

import shutil
import time

from bench.full_size import write_baked
from bench.gpu_check.plan import CheckPlan, say
from worker.weights.manifest import read_manifest, write_manifest


def bake(plan: CheckPlan) -> None:
    """Write them, but for what an earlier check has written."""
    began = time.perf_counter()
    if not (plan.baked / "manifest.json").is_file():
        shutil.rmtree(plan.baked, ignore_errors=True)
        write_baked(plan.model, plan.baked)
    size = sum(part.size_bytes for part in read_manifest(plan.baked).parts.values())
    say(model=plan.model, bytes=size, seconds=time.perf_counter() - began)
    if plan.ahead is not None:
        shutil.rmtree(plan.baked_ahead, ignore_errors=True)
        plan.baked_ahead.mkdir()
        for entry in plan.baked.iterdir():
            (plan.baked_ahead / entry.name).symlink_to(entry.resolve())
        (plan.baked_ahead / "programs").symlink_to((plan.ahead / "programs").resolve())
        (plan.baked_ahead / "manifest.json").unlink()
        programs = read_manifest(plan.ahead).programs
        write_manifest(plan.baked_ahead, read_manifest(plan.baked).model_copy(update={"programs": programs}))
        say(model=f"{plan.model} with the programs of {plan.ahead.name}", index=programs)
