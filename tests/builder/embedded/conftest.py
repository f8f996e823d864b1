import numpy as np
import pytest

from builder.embedded.data import DataSet


@pytest.fixture
def data() -> DataSet:
    """Three emoji, the second in three more colours."""
    pictures = np.random.default_rng(0).integers(0, 256, (6, 64, 64, 3), np.uint8)
    return DataSet(
        pictures,
        ("dog face", "red apple", "green apple", "blue apple", "yellow apple", "Côte “quote” 17"),
        np.array([0, 1, 1, 1, 1, 2], np.int32),
        (("animal", "dog", "pet"), ("apple", "fruit"), ()),
    )
