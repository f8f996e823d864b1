"""`python -m builder`: from a published checkpoint to a folder that the worker serves.

    fetch    a repository of the Hugging Face hub, at one commit, into a folder
    convert  a folder in the layout of diffusers into a baked one
    bake     both, by way of a folder that is removed afterwards
    toy      a small random checkpoint in the layout of diffusers
    compile  the programs of a baked folder for named cards, none of which need be here
    target   print XLA's description of the card that is here, for builder/targets

Gated and private repositories need HF_TOKEN in the environment; it is written nowhere.
"""

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import get_args

from builder.bake import TOY, bake
from builder.compile import compile_programs
from builder.convert import convert
from builder.fetch import Hub, fetch, split_source
from builder.targets import CARDS, live_config
from builder.toy import VARIANTS, write_toy
from worker.errors import BuildError, WorkerError
from worker.weights.manifest import Dtype


def _parser() -> argparse.ArgumentParser:
    description, _, epilog = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "python -m builder",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    repository = "owner/name or owner/name@revision"
    for name, source in (
        ("fetch", repository),
        ("convert", "folder in the layout of diffusers"),
        ("bake", f"folder, {repository}, or {TOY}VARIANT"),
    ):
        command = commands.add_parser(name)
        command.add_argument("--source", required=True, help=source)
        command.add_argument("--out", required=True, type=Path, help="folder to write; whole or absent")
        if name != "fetch":
            command.add_argument("--dtype", choices=get_args(Dtype), default="bfloat16")
            command.add_argument("--force", action="store_true", help="replace another baked model in --out")
    command = commands.add_parser("toy")
    command.add_argument("--variant", required=True, choices=tuple(VARIANTS))
    command.add_argument("--out", required=True, type=Path, help="folder to write; must be new or empty")
    command.add_argument("--seed", type=int, default=0)
    _add_compile(commands.add_parser("compile"))
    commands.add_parser("target")
    return parser


def _add_compile(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", required=True, type=Path, help="baked folder, which gets the programs")
    command.add_argument(
        "--target",
        required=True,
        type=_names,
        help=f"NAME,... of {', '.join(CARDS)}; cpu and auto stand for what is here",
    )
    command.add_argument(
        "--shapes", type=_shapes, default=(), help="WIDTHxHEIGHT,... in pixels; left out: the model's own size"
    )
    command.add_argument("--slots", type=_slots, default=(1, 2, 4), help="pictures in a pass, such as 1,2,4")


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def _shapes(text: str) -> tuple[tuple[int, int], ...]:
    shapes = [tuple(int(side) for side in shape.split("x")) for shape in text.split(",")]
    if any(len(shape) != 2 or min(shape) < 8 or any(side % 8 for side in shape) for shape in shapes):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of sizes such as 1024x1024,832x1216")
    return tuple((shape[0], shape[1]) for shape in shapes)


def _slots(text: str) -> tuple[int, ...]:
    slots = tuple(int(number) for number in text.split(","))
    if min(slots) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers above 0")
    return slots


def _run(arguments: argparse.Namespace) -> None:
    match arguments.command:
        case "fetch":
            hub = Hub()
            fetch(hub, hub.resolve(*split_source(arguments.source)), arguments.out)
        case "convert":
            if not Path(arguments.source).is_dir():
                raise BuildError(f"{arguments.source}: no such folder")
            convert(Path(arguments.source), arguments.out, arguments.dtype, force=arguments.force)
        case "bake":
            bake(arguments.source, arguments.out, arguments.dtype, force=arguments.force, hub=Hub())
        case "compile":
            flags = os.environ.get("XLA_FLAGS", "")
            compile_programs(arguments.model, arguments.target, arguments.shapes, arguments.slots, flags)
        case "target":
            print(live_config())
        case _:
            write_toy(arguments.variant, arguments.out, arguments.seed)


def main(argv: list[str] | None = None) -> int:
    """Run one command; 0, or 1 after one line that says what is wrong."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    try:
        _run(arguments)
    except (WorkerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
