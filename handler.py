"""Entry point: build the service, hand it to the Runpod SDK.

`python handler.py` runs `test_input.json` once and puts the pictures into `output/`; on Runpod it serves the endpoint.
"""

import logging
import multiprocessing
import os
import sys
from dataclasses import replace
from importlib import import_module
from threading import Thread
from typing import Any, NoReturn

from worker.engine.clock import Clock
from worker.errors import StartupError
from worker.settings import Settings, for_local_run, load_settings


def main() -> None:
    """Start the worker; a start that cannot succeed ends with exit code 1 and its reason."""
    start = Clock()
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for ours in ("worker", "builder"):
        logging.getLogger(ours).setLevel(logging.INFO)
    # The SDK's heartbeat is a process: JAX's threads do not survive a fork.
    multiprocessing.set_start_method("spawn")
    local = "RUNPOD_WEBHOOK_GET_JOB" not in os.environ
    # On DEBUG, its default, the SDK logs every answer, pictures included; a local run prints its own.
    os.environ.setdefault("RUNPOD_DEBUG_LEVEL", "WARN" if local else "INFO")
    try:
        settings = load_settings(os.environ)
        if local:
            settings = for_local_run(settings)
        if not local and not settings.allow_cpu:
            # Without this, JAX would go on with the CPU when CUDA fails.
            os.environ.setdefault("JAX_PLATFORMS", "cuda")
        # Imported beside JAX, which waits for its device meanwhile.
        Thread(target=import_module, args=("worker.sdk",)).start()
        with start.stage("device_s"):
            from worker.engine.device import check_device

            check_device(allow_cpu=local or settings.allow_cpu)
        # Slow imports come after the check, so that a worker without a GPU ends at once.
        with start.stage("imports_s"):
            from worker.local import check_job, run_locally
            from worker.runner import JobRunner
            from worker.sdk import mend, post_progress, serverless
            from worker.service import load_service

        if local:
            check_job(sys.argv[1:])
        with start.stage("model_s"):
            settings = _with_model(settings)
        service = load_service(settings, local=local, start=start)
        if not local:
            service.open(settings)
    except StartupError as error:
        _give_up(error, local=local)
    if local:
        run_locally(service, settings)
        return
    mend()
    runner = JobRunner(service.run, settings, post_progress)
    serverless.start({"handler": runner.handle, "concurrency_modifier": runner.concurrency})


def _with_model(settings: Settings) -> Settings:
    """The settings, with a checkpoint that is named by MODEL_ID baked and in MODEL_DIR."""
    if not settings.model_id:
        return settings
    # What serves a baked model needs no builder.
    from builder.fetch import Hub
    from builder.volume import Model, model_on_volume

    model = Model(settings.model_id, settings.model_revision, settings.model_dtype)
    return replace(settings, model_dir=model_on_volume(model, settings.volume_dir, Hub()))


def _give_up(error: StartupError, *, local: bool) -> NoReturn:
    """Exit with code 1; on Runpod through the SDK, which tells the platform the reason and takes no job."""
    if not local:
        from worker.sdk import serverless

        @serverless.register_fitness_check
        def start_up() -> None:  # pyright: ignore[reportUnusedFunction]
            raise error

        def refuse(_job: dict[str, Any]) -> dict[str, str]:
            return {"error": str(error)}

        serverless.start({"handler": refuse})
    sys.exit(f"worker: {error}")


# The SDK's heartbeat process imports this file again.
if __name__ == "__main__":
    main()
