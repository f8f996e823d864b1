"""Entry point: build the service, hand it to the Runpod SDK.

`python handler.py` runs `test_input.json` once and puts the pictures into `output/`; on Runpod it serves the endpoint.
"""

import logging
import os
import sys

from worker.errors import StartupError
from worker.settings import load_settings


def main() -> None:
    """Start the worker; a start that cannot succeed ends with one line and exit code 1."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("worker").setLevel(logging.INFO)
    # On DEBUG, its default, the SDK logs every answer, pictures included.
    os.environ.setdefault("RUNPOD_DEBUG_LEVEL", "INFO")
    import runpod

    from worker.service import load_service

    try:
        service = load_service(load_settings(os.environ), local="RUNPOD_WEBHOOK_GET_JOB" not in os.environ)
    except StartupError as error:
        sys.exit(f"worker: {error}")
    runpod.serverless.start({"handler": service.run})


# The SDK's heartbeat process imports this file again.
if __name__ == "__main__":
    main()
