"""Toy checkpoints, baked once per run, and services over them."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.jobs import Toy

# Toy programs run in milliseconds and compile in many seconds: compile them quickly. Set before JAX starts.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> "Callable[..., Toy]":
    """`toy("sd1")`: made, baked and loaded when first asked for."""
    from builder.convert import convert
    from builder.toy import write_toy
    from tests.jobs import Toy
    from worker.engine.loading import load_engine
    from worker.service import Service
    from worker.settings import Settings
    from worker.storage import inline_store

    made: dict[tuple[str, str], Toy] = {}

    def get(variant: str, dtype: str = "float32") -> Toy:
        if (variant, dtype) not in made:
            folder = tmp_path_factory.mktemp(variant)
            source, model_dir = folder / variant, folder / "baked"
            write_toy(variant, source)
            convert(source, model_dir, dtype=dtype)
            engine = load_engine(Settings(model_dir=model_dir))
            made[variant, dtype] = Toy(source, model_dir, Service(engine, inline_store, 50_000_000))
        return made[variant, dtype]

    return get
