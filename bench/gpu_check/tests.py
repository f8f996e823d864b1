"""The tests that need a card."""

import subprocess
import sys

from bench.gpu_check.plan import CheckPlan, say


def gpu_tests(plan: CheckPlan) -> None:
    """`pytest -m gpu`; one row for its last line, the rest in `tests.txt`."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-n", "0", "-q", "-p", "no:cacheprovider", "tests/gpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (plan.folder / "tests.txt").write_text(done.stdout + done.stderr, "utf-8")
    say(command=" ".join(command[1:]), ended_with=done.returncode, said=(done.stdout.strip().splitlines() or [""])[-1])
