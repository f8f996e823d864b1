"""Measurements: this worker beside PyTorch diffusers, jobs beside each other, a worker's start."""

import argparse
import json
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from bench.batch import measure as batch_client
from bench.coldstart import coldstart
from bench.compare import compare
from bench.full_size import PUBLISHED, weights_table, write_full_size, write_hollow
from bench.gpu_check.check import check
from bench.gpu_check.plan import CheckPlan, dry_plan
from bench.throughput import throughput
from worker.errors import WorkerError
from worker.weights.manifest import Dtype


def main() -> None:
    """Read the command line and print a report."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    sides = commands.add_parser("compare", help="one job through the worker and through diffusers, in turn")
    sides.add_argument("--model", type=Path, required=True, help="a checkpoint folder in the layout of diffusers")
    sides.add_argument("--job", type=Path, required=True, help='a file such as test_input.json: {"input": {...}}')
    sides.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    sides.add_argument("--calls", type=int, default=4, help="calls after the first one (at least 2)")
    sides.add_argument("--torch-compile", action="store_true", help="compile diffusers' UNet")
    random = commands.add_parser("random", help="write a checkpoint of a published size with random weights")
    random.add_argument("name", choices=sorted(PUBLISHED))
    random.add_argument("--out", type=Path, required=True)
    random.add_argument("--hollow", action="store_true", help="baked, without weights: all that compiling needs")
    random.add_argument("--dtype", choices=get_args(Dtype), default="bfloat16", help="of a hollow one")
    commands.add_parser("weights", help="GB of the weights of every published size, by part")
    card = commands.add_parser("gpu-check", help="all measurements on this machine's card, in about ten minutes")
    card.add_argument("--out", type=Path, required=True, help="for results.md, results.json, logs, the model")
    card.add_argument("--programs", type=Path, help="a baked or hollow folder with programs for this card")
    card.add_argument("--minutes", type=float, default=9.5, help="for all parts together")
    card.add_argument("--only", default="", help="parts, such as device,ceiling")
    card.add_argument("--dry-run", action="store_true", help="toy sizes, on the CPU")
    many = commands.add_parser("throughput", help="jobs beside each other against one after another")
    many.add_argument("--model", type=Path, required=True, help="a baked folder")
    many.add_argument("--job", type=Path, required=True, help="as for compare")
    many.add_argument("--jobs", type=int, default=8)
    many.add_argument("--slots", type=int, default=4, help="most pictures in one pass")
    many.add_argument("--rounds", type=int, default=3)
    cold = commands.add_parser("coldstart", help="a worker's start, part by part, with stored programs and without")
    cold.add_argument("--model", type=Path, required=True, help="a baked folder with programs for this machine")
    cold.add_argument("--job", type=Path, required=True, help="as for compare; of a size that was compiled")
    cold.add_argument("--starts", type=int, default=5, help="fresh processes of each side")
    batch = commands.add_parser("batch", help="what the batch client costs, against a platform that answers at once")
    batch.add_argument("--requests", type=int, default=100_000)
    options = parser.parse_args()
    try:
        if options.command == "random" and options.hollow:
            write_hollow(options.name, options.out, options.dtype)
        elif options.command == "random":
            write_full_size(options.name, options.out)
        elif options.command == "weights":
            print(weights_table())
        elif options.command == "gpu-check":
            plan = dry_plan if options.dry_run else partial(CheckPlan, dry=False)
            check(
                plan(options.out, options.programs), 60 * options.minutes, tuple(filter(None, options.only.split(",")))
            )
            print(options.out / "results.md")
        elif options.command == "batch":
            print(batch_client(options.requests))
        elif options.command == "coldstart":
            job = json.loads(options.job.read_text("utf-8"))["input"]
            print(coldstart(options.model, job, options.starts))
        elif options.command == "throughput":
            job = json.loads(options.job.read_text("utf-8"))["input"]
            print(throughput(options.model, job, options.jobs, options.slots, options.rounds))
        else:
            if find_spec("torch") is None or find_spec("diffusers") is None:
                sys.exit("bench: PyTorch and diffusers are needed: uv run --group reference python -m bench ...")
            job = json.loads(options.job.read_text("utf-8"))["input"]
            print(compare(options.model, job, options.dtype, max(2, options.calls), options.torch_compile))
    except (WorkerError, OSError, ValueError, KeyError) as error:
        sys.exit(f"bench: {error}")


if __name__ == "__main__":
    main()
