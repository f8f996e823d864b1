import jax
import numpy as np
import pytest
import torch
from diffusers import LatentConsistencyModelPipeline
from diffusers.models.embeddings import TimestepEmbedding as ReferenceTimestepEmbedding
from diffusers.models.embeddings import get_timestep_embedding

from tests.nn.reference import assert_close, noise, parameters, randomise, run
from worker.nn.embeddings import TimestepEmbedding
from worker.nn.sinusoids import guidance_embedding, timestep_sinusoids

TIMES = np.array([0, 1, 20, 499, 980, 999, 0.25, 721.3749], np.float32)


@pytest.mark.parametrize("flip_sin_to_cos", [True, False])
@pytest.mark.parametrize("freq_shift", [0, 1])
@pytest.mark.parametrize("features", [320, 256, 6])
def test_timestep_sinusoids(features: int, freq_shift: float, flip_sin_to_cos: bool):
    ours = jax.jit(lambda t: timestep_sinusoids(t, features, flip_sin_to_cos=flip_sin_to_cos, freq_shift=freq_shift))(
        TIMES
    )
    expected = get_timestep_embedding(torch.from_numpy(TIMES), features, flip_sin_to_cos, freq_shift)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=ulp_of_angle(TIMES.max()))


def test_guidance_embedding():
    weights = np.array([0.0, 0.5, 6.5, 7.5, 13.0], np.float32)
    ours = jax.jit(lambda w: guidance_embedding(w, 256))(weights)
    expected = LatentConsistencyModelPipeline.get_guidance_scale_embedding(
        None, torch.from_numpy(weights), embedding_dim=256
    )
    np.testing.assert_allclose(ours, expected, rtol=0, atol=ulp_of_angle(1000 * weights.max()))


def ulp_of_angle(angle: float) -> float:
    """What one unit in the last place of a frequency moves a sinusoid of this largest angle by."""
    return float(np.spacing(np.float32(angle)))


@pytest.mark.parametrize("conditioned", [True, False])
def test_timestep_embedding(conditioned: bool):
    reference = ReferenceTimestepEmbedding(6, 20, cond_proj_dim=10)
    randomise(reference)
    x, condition = noise(2, 6), noise(2, 10, seed=1) if conditioned else None
    ours = run(TimestepEmbedding(6, 20, condition_features=10), parameters(reference), x, condition)
    assert_close(ours, reference(torch.from_numpy(x), None if condition is None else torch.from_numpy(condition)))
