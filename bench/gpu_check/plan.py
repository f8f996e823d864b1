"""What a check measures, and how a part tells its results."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MARK = "gpu-check "


@dataclass(frozen=True)
class CheckPlan:
    """Sizes of everything; `model` is a key of `bench.full_size.BAKED`.

    `folder` holds what is made on the way and is used again by a later call; `ahead` is a folder with programs that
    were compiled for this card elsewhere.
    """

    folder: Path
    ahead: Path | None
    dry: bool
    model: str = "sdxl"
    side: int = 1024
    slots: tuple[int, ...] = (1, 2, 4, 8)
    rows: int = 20
    repeats: int = 3
    products: tuple[int, ...] = (4096, 8192, 16384)
    attention: tuple[tuple[int, int, int], ...] = ((4096, 4096, 10), (1024, 1024, 20), (4096, 77, 10))
    """Queries, keys and heads of the UNet's attentions; heads are 64 wide."""

    @property
    def baked(self) -> Path:
        """The model with random weights."""
        return self.folder / "baked"

    @property
    def baked_ahead(self) -> Path:
        """The same with the programs of `ahead`."""
        return self.folder / "baked-ahead"

    @property
    def cache(self) -> Path:
        """The worker's program cache."""
        return self.folder / "programs"

    def to_json(self) -> str:
        """For the process of a part."""
        return json.dumps(asdict(self), default=str)

    @staticmethod
    def from_json(text: str) -> "CheckPlan":
        """See `to_json`."""
        raw: dict[str, Any] = json.loads(text)
        raw["folder"], raw["ahead"] = Path(raw["folder"]), Path(raw["ahead"]) if raw["ahead"] else None
        raw["attention"] = tuple(map(tuple, raw["attention"]))
        return CheckPlan(**raw | {name: tuple(raw[name]) for name in ("slots", "products")})


def dry_plan(folder: Path, ahead: Path | None = None) -> CheckPlan:
    """The same at toy size, for a CPU."""
    toy = {"model": "toy", "side": 64, "slots": (1, 2), "rows": 2, "repeats": 2}
    return CheckPlan(folder, ahead, True, **toy, products=(128,), attention=((64, 64, 2), (64, 7, 2)))


def say(**facts: Any) -> None:
    """One row of a part's results, on its way to the check's process."""
    print(f"{MARK}{json.dumps(facts, allow_nan=False, default=str)}", flush=True)


def heard(line: str) -> Mapping[str, Any] | None:
    """The row that a line of a part's output holds, if any."""
    return json.loads(line.removeprefix(MARK)) if line.startswith(MARK) else None
