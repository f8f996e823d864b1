import pytest
import torch
from diffusers.models.attention import BasicTransformerBlock as ReferenceBlock
from diffusers.models.transformers.transformer_2d import Transformer2DModel

from tests.nn.reference import assert_close, nchw, noise, parameters, randomise, run
from worker.nn.kernels import Kernels
from worker.nn.transformer import BasicTransformerBlock, Transformer2D


@pytest.mark.parametrize("only_cross_attention", [True, False])
def test_basic_transformer_block(only_cross_attention: bool):
    reference = ReferenceBlock(12, 3, 4, cross_attention_dim=10, only_cross_attention=only_cross_attention)
    randomise(reference)
    x, context = noise(2, 11, 12), noise(2, 7, 10, seed=1)
    block = BasicTransformerBlock(12, 10, 3, Kernels(), only_cross_attention=only_cross_attention)
    expected = reference(torch.from_numpy(x), encoder_hidden_states=torch.from_numpy(context))
    assert_close(run(block, parameters(reference), x, context), expected)


@pytest.mark.parametrize("linear_projection", [True, False])
def test_transformer_2d(linear_projection: bool):
    reference = Transformer2DModel(
        num_attention_heads=3,
        attention_head_dim=4,
        in_channels=12,
        num_layers=2,
        cross_attention_dim=10,
        norm_num_groups=4,
        use_linear_projection=linear_projection,
    )
    randomise(reference)
    x, context = noise(2, 5, 7, 12), noise(2, 7, 10, seed=1)
    model = Transformer2D(12, 10, 3, 2, Kernels(), groups=4, linear_projection=linear_projection)
    (expected,) = reference(nchw(x), encoder_hidden_states=torch.from_numpy(context), return_dict=False)
    assert_close(run(model, parameters(reference), x, context), expected)
