"""A worker's process: loads the engine by its environment, runs one job, and tells how. Run as a module.

Takes changes of the job as JSON.

Prints one line of JSON: seconds of loading, what JAX compiled from then on, programs by origin, and the answer.
"""

import json
import logging
import os
import sys
import time
from typing import Any

import jax

from tests.jobs import JOB
from worker.engine.loading import load_engine
from worker.service import Service
from worker.settings import load_settings
from worker.storage import inline_store


def main(changes: str = "{}") -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    compiled: list[str] = []

    def listen(event: str, _duration: float, **facts: Any) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(str(facts.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    began = time.perf_counter()
    engine = load_engine(load_settings(os.environ))
    seconds = time.perf_counter() - began
    answer = Service(engine, inline_store, 50_000_000).run({"id": "test", "input": JOB | json.loads(changes)})
    store = engine.programs.store
    assert store is not None
    told = {
        "load_s": seconds,
        "compiled": compiled,
        "programs_compiled": [list(key) for key in engine.programs.compiled],
        "programs_loaded": [list(key) for key in store.loaded],
        "faults": [[list(key), fault] for key, fault in store.faults.items()],
        "imported": sorted({name.partition(".")[0] for name in sys.modules}),
        "answer": answer,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
