"""One device's process of a local batch: jobs come on standard input, a line each, and answers leave on the output.

The only part of the client that imports the engine.
"""

import json
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

from worker.errors import StartupError
from worker.settings import for_local_run, load_settings

_ANSWER_BYTES_MAX = 2**30


def main() -> None:
    """Serve until the input ends."""
    # Libraries may print: what they say goes where logs go.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="ascii")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    try:
        settings = for_local_run(load_settings(os.environ))
        if settings.model_id:
            raise StartupError("MODEL_ID: bake it (python -m builder bake) and set MODEL_DIR to it")
        from worker.engine.device import check_device

        check_device(allow_cpu=True)
        from worker.engine.loading import load_engine
        from worker.service import Service
        from worker.storage import operator_store

        # Without a bucket pictures go to the client, which has a place for them.
        store = operator_store(settings, local=False)
        service = Service(load_engine(settings), store, _ANSWER_BYTES_MAX)
    except StartupError as error:
        sys.exit(f"worker: {error}")
    lock = Lock()

    def serve(job: dict[str, Any]) -> None:
        answer = service.run(job)
        with lock:
            print(json.dumps({"id": job["id"], "answer": answer}), file=answers, flush=True)

    with ThreadPoolExecutor(settings.max_concurrency) as pool:
        for line in sys.stdin:
            pool.submit(serve, json.loads(line))


if __name__ == "__main__":
    main()
