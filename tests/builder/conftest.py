"""Published toy checkpoints, and a hub on loopback that serves them."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.toy import write_toy
from tests.builder.fake_hub import FakeHub


@pytest.fixture(scope="session")
def _originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(variant: str) -> Path:
        if variant not in made:
            made[variant] = tmp_path_factory.mktemp("toys") / variant
            write_toy(variant, made[variant])
        return made[variant]

    return get


@pytest.fixture
def published(_originals: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """`published("sd1")`: a toy checkpoint of the test's own, free to be changed."""

    def get(variant: str = "sd1") -> Path:
        return Path(shutil.copytree(_originals(variant), tmp_path / "published" / variant))

    return get


@pytest.fixture
def hub_server() -> Iterator[FakeHub]:
    """A hub on loopback without repositories."""
    with FakeHub() as server:
        yield server
