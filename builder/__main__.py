"""`python -m builder`: from a published checkpoint to a folder that the worker serves.

    fetch    a repository of the Hugging Face hub, at one commit, into a folder
    convert  a folder in the layout of diffusers into a baked one
    bake     both, by way of a folder that is removed afterwards
    toy      a small random checkpoint in the layout of diffusers

Gated and private repositories need HF_TOKEN in the environment; it is written nowhere.
"""

import argparse
import logging
import re
import shutil
import sys
import tempfile
from pathlib import Path

from builder.convert import convert, existing, is_bake_of, occupied
from builder.fetch import Hub, fetch, split_source
from builder.toy import VARIANTS, write_toy
from worker.errors import BuildError, WorkerError
from worker.weights.manifest import Dtype

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TOY = "toy:"
# Room for the converted weights beside the download, as a share of it: fp16 files double in float32.
_CONVERTED = {"bfloat16": 1.0, "float32": 2.0}


def bake(source: str, out: Path, dtype: Dtype, *, force: bool, hub: Hub) -> None:
    """Fetch a repository, unless `source` is a folder or a toy, and convert it.

    See `fetch`, `write_toy` and `convert` for the errors.
    """
    out = out.resolve()
    if Path(source).is_dir():
        convert(Path(source), out, dtype, force=force)
        return
    if source.startswith(_TOY):
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / source.replace(":", "-")
            write_toy(source.removeprefix(_TOY), made)
            convert(made, out, dtype, force=force)
        return
    repository, revision = split_source(source)
    baked = existing(out, force=force)

    def is_baked(commit: str | None) -> bool:
        return baked is not None and is_bake_of(baked, repository, commit, dtype)

    if revision and _COMMIT.fullmatch(revision) and is_baked(revision):
        logging.info("%s: baked already", out)
        return
    info = hub.resolve(repository, revision)
    if is_baked(info.sha):
        logging.info("%s: baked already", out)
        return
    if baked and not force:
        raise occupied(out, baked)
    fetched = out.with_name(f"{out.name}.source")
    fetch(hub, info, fetched, reserve=_CONVERTED[dtype])
    convert(fetched, out, dtype, force=force)
    shutil.rmtree(fetched)


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
        ("bake", f"folder, {repository}, or {_TOY}VARIANT"),
    ):
        command = commands.add_parser(name)
        command.add_argument("--source", required=True, help=source)
        command.add_argument("--out", required=True, type=Path, help="folder to write; whole or absent")
        if name != "fetch":
            command.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
            command.add_argument("--force", action="store_true", help="replace another baked model in --out")
    command = commands.add_parser("toy")
    command.add_argument("--variant", required=True, choices=tuple(VARIANTS))
    command.add_argument("--out", required=True, type=Path, help="folder to write; must be new or empty")
    command.add_argument("--seed", type=int, default=0)
    return parser


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
