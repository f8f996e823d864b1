"""CLIP's text encoder, whole and layer by layer, against transformers at toy size."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import CLIPTextConfig as ReferenceConfig
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from tests.models import toy
from tests.nn.reference import assert_close, parameters, randomise, run
from worker.models.clip_text import CLIPText, CLIPTextOutput
from worker.models.clip_text_config import CLIPTextConfig
from worker.nn.kernels import Kernels

END = 90
# One row ends where it is full; the other is padded with the end token; both hold ids above the end token's.
IDS = np.array([[7, 95, 3, 98, 11, 42, END], [7, 96, END, END, END, END, END]])


def reference_encoder(raw: dict[str, Any]) -> torch.nn.Module:
    projected = raw["architectures"] == ["CLIPTextModelWithProjection"]
    model = (CLIPTextModelWithProjection if projected else CLIPTextModel)(ReferenceConfig(**raw)).eval()
    randomise(model)
    return model


def encode(raw: dict[str, Any], model: torch.nn.Module, ids: np.ndarray) -> CLIPTextOutput:
    projected = raw["architectures"] == ["CLIPTextModelWithProjection"]
    encoder = CLIPText(CLIPTextConfig.from_json(raw, projected=projected), Kernels())
    return run(encoder, parameters(model, prefix="" if projected else "text_model."), ids)


@pytest.mark.parametrize("raw", [toy.TEXT_ENCODER, toy.OPENAI_TEXT_ENCODER], ids=["projected", "plain"])
def test_whole(raw: dict[str, Any]):
    model = reference_encoder(raw)
    with torch.no_grad():
        expected = model(torch.from_numpy(IDS), output_hidden_states=True)
    ours = encode(raw, model, IDS)
    assert_close(ours.last, expected.last_hidden_state)
    assert_close(ours.penultimate, expected.hidden_states[-2])
    pooled = expected.text_embeds if "text_embeds" in expected else expected.pooler_output
    assert_close(ours.pooled, pooled)


def test_each_layer():
    model = reference_encoder(toy.TEXT_ENCODER).text_model
    with torch.no_grad():
        states = model(torch.from_numpy(IDS), output_hidden_states=True).hidden_states
    encoder = CLIPText(CLIPTextConfig.from_json(toy.TEXT_ENCODER, projected=False), Kernels()).text_model.encoder
    ours = run(encoder, parameters(model.encoder), states[0].numpy())
    for state, expected in zip(ours, states, strict=True):
        assert_close(state, expected)


def test_old_configuration_with_the_wrong_end_token():
    """The reference then pools at the highest id, which is the end token as long as nothing was added."""
    raw = toy.TEXT_ENCODER | {"eos_token_id": 2, "vocab_size": END + 1}
    ids = np.array([[7, 15, 3, 28, 11, 42, END], [7, 36, END, END, END, END, END]])
    model = reference_encoder(raw)
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).text_embeds
    assert_close(encode(raw, model, ids).pooled, expected)


@pytest.mark.parametrize("vocab_size", [49408, 49410])
def test_end_token_of_the_published_vocabulary(vocab_size: int):
    raw = toy.TEXT_ENCODER | {"eos_token_id": 2, "vocab_size": vocab_size}
    right = toy.TEXT_ENCODER | {"eos_token_id": 49407, "vocab_size": vocab_size}
    assert CLIPTextConfig.from_json(raw, projected=True) == CLIPTextConfig.from_json(right, projected=True)


def test_later_tokens_are_not_seen():
    model = reference_encoder(toy.TEXT_ENCODER)
    changed = IDS.copy()
    changed[:, 4:] = 1
    before, after = (encode(toy.TEXT_ENCODER, model, ids).last for ids in (IDS, changed))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert np.abs(before[:, 4:] - after[:, 4:]).min() > 0
