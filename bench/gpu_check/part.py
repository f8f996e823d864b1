"""The process of one part: `python -m bench.gpu_check.part MODULE.FUNCTION STARTED`, with the plan as its input."""

import importlib
import logging
import sys

from bench.gpu_check.plan import CheckPlan


def main() -> None:
    """Run the part; its rows go to standard output, everything else to standard error."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    module, _, function = sys.argv[1].rpartition(".")
    plan = CheckPlan.from_json(sys.stdin.read())
    getattr(importlib.import_module(f"bench.gpu_check.{module}"), function)(plan)


if __name__ == "__main__":
    main()
