"""T5's encoder, whole and layer by layer, against transformers at toy size."""

import numpy as np
import pytest
import torch
from transformers import T5Config as ReferenceConfig
from transformers import T5EncoderModel

from tests.models import toy
from tests.nn.reference import assert_close, parameters, randomise, run
from worker.errors import CheckpointError
from worker.models.t5_text import T5Text, distance_buckets
from worker.models.t5_text_config import T5TextConfig
from worker.nn.kernels import Kernels

CONFIG = T5TextConfig.from_json(toy.T5)


def weights(model: torch.nn.Module) -> dict:
    """As they are published: the tied table of embeddings once."""
    return {name: value for name, value in parameters(model).items() if name != "encoder.embed_tokens.weight"}


def reference_encoder() -> T5EncoderModel:
    model = T5EncoderModel(ReferenceConfig(**toy.T5)).eval()
    randomise(model)
    with torch.no_grad():
        for block in model.encoder.block:
            # Logits are not scaled: the queries are, as T5 begins its training. Else rounding is amplified in both.
            block.layer[0].SelfAttention.q.weight *= CONFIG.d_kv**-0.5
    return model


@pytest.mark.parametrize("length", [1, 7, 50])
def test_whole(length: int):
    model = reference_encoder()
    ids = np.random.default_rng(0).integers(0, 99, (2, length)).astype(np.int32)
    with torch.no_grad():
        expected = model(torch.from_numpy(ids).long()).last_hidden_state
    assert_close(run(T5Text(CONFIG, Kernels()), weights(model), ids), expected)


@pytest.mark.parametrize(
    "raw", [toy.T5, {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}]
)
def test_buckets_of_every_distance(raw):
    config = T5TextConfig.from_json(toy.T5 | raw)
    attention = T5EncoderModel(ReferenceConfig(**toy.T5 | raw)).encoder.block[0].layer[0].SelfAttention
    places = torch.arange(512)
    expected = attention._relative_position_bucket(
        places[None] - places[:, None], num_buckets=config.buckets, max_distance=config.max_distance
    )
    np.testing.assert_array_equal(distance_buckets(512, config), expected.numpy())


@pytest.mark.parametrize(
    ("change", "message"),
    [({"feed_forward_proj": "relu"}, "feed_forward_proj = 'relu'"), ({"model_type": "umt5"}, "model_type = 'umt5'")],
)
def test_what_is_not_handled(change, message):
    with pytest.raises(CheckpointError, match=message):
        T5TextConfig.from_json(toy.T5 | change)
