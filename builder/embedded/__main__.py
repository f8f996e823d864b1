"""`python -m builder.embedded`: the small model of emoji that comes with the repository.

data      render and name the emoji
train     go on from the last checkpoint: the autoencoder, text encoder and UNet, its decoder
"""

import argparse
import logging
import sys
from pathlib import Path

from builder.embedded.evaluate import evaluate
from builder.embedded.export import export, write_cards
from builder.embedded.work import Work, prepare, run
from worker.errors import WorkerError

FOLDER = Path("build/emoji")
MODEL = Path("models/emoji")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m builder.embedded", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=FOLDER, help="folder of training set and checkpoints")
    parser.add_argument("--model", type=Path, default=MODEL, help="folder of the model")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("data")
    train = commands.add_parser("train")
    train.add_argument("--minutes", type=float, help="stop after so many, with a checkpoint")
    made = commands.add_parser("export")
    made.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the baked weights")
    measured = commands.add_parser("evaluate")
    measured.add_argument("--baseline", action="store_true", help="random weights too")
    return parser


def _run(arguments: argparse.Namespace) -> None:
    work = Work(arguments.work, arguments.model)
    match arguments.command:
        case "data":
            prepare(work)
        case "train":
            run(work, arguments.minutes)
        case "export":
            export(work, arguments.dtype)
        case _:
            evaluate(work, baseline=arguments.baseline)
            write_cards(work.model)


def main(argv: list[str] | None = None) -> int:
    """Run one command; 0, or 1 after one line that says what is wrong."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr, force=True)
    logging.getLogger("builder").setLevel(logging.INFO)
    logging.getLogger("jax").setLevel(logging.WARNING)
    try:
        _run(arguments)
    except (WorkerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
