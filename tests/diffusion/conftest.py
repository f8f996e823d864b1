import numpy as np
import pytest
import torch
from diffusers.utils import logging

from tests.diffusion.reference import SHAPE


@pytest.fixture(autouse=True, scope="package")
def _quiet_single_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def image():
    return np.random.default_rng(5).normal(size=SHAPE)


@pytest.fixture
def mask():
    return (np.random.default_rng(3).random((*SHAPE[:-1], 1)) > 0.5).astype(float)
