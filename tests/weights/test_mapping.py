import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.errors import CheckpointError
from worker.weights.mapping import (
    RULES,
    Drop,
    Rename,
    pair,
    published_shape,
    runtime_shape,
    to_published,
    to_runtime,
)
from worker.weights.tensors import TensorInfo


def published(**shapes):
    return {name.replace("__", "."): TensorInfo("F32", shape, 0, 0) for name, shape in shapes.items()}


def expected(**shapes):
    return {name.replace("__", "."): jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}


MODEL = {"conv__weight": (8, 3, 3, 4), "conv__bias": (8,), "linear__weight": (6, 8)}
SOURCE = {"conv__weight": (8, 4, 3, 3), "conv__bias": (8,), "linear__weight": (6, 8)}


def test_equal_names_need_no_rule():
    mapped = pair("unet", (), published(**SOURCE), expected(**MODEL))
    assert mapped.sources == {name: name for name in expected(**MODEL)}
    assert mapped.dropped == {}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({k: v for k, v in SOURCE.items() if k != "conv__bias"}, r"missing \(1\): conv.bias$"),
        (SOURCE | {"extra__weight": (2,)}, r"unknown \(1\): extra.weight$"),
        (SOURCE | {"linear__weight": (8, 6)}, r"shape \(1\): linear.weight is \[8, 6\], \[6, 8\] is expected$"),
        (SOURCE | {"conv__weight": (8, 3, 3, 4)}, r"conv.weight is \[8, 3, 3, 4\], \[8, 4, 3, 3\] is expected$"),
        (SOURCE | {"linear__weight": (6, 8, 1, 1, 1)}, r"shape \(1\): linear.weight"),
        (SOURCE | {"linear__weight": (6, 8, 3, 3)}, r"shape \(1\): linear.weight"),
        (SOURCE | {"conv__bias": ()}, r"conv.bias is \[\], \[8\] is expected$"),
    ],
    ids=["missing", "extra", "transposed", "already ours", "more axes", "kernel for linear", "scalar"],
)
def test_one_difference_is_named(source, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        pair("unet", (), published(**source), expected(**MODEL))
    assert str(caught.value).startswith("unet: ")
    assert str(caught.value).count("(1)") == 1


@pytest.mark.parametrize("dtype", ["I64", "U8", "F8_E4M3", "BOOL"])
def test_a_dtype_that_is_no_weight_is_named(dtype):
    source = published(**SOURCE) | {"conv.bias": TensorInfo(dtype, (8,), 0, 0)}
    with pytest.raises(CheckpointError, match=rf"dtype \(1\): conv.bias is {dtype}"):
        pair("unet", (), source, expected(**MODEL))


def test_two_rules_on_one_name():
    rules = (Rename("{block}.weight", "{block}.w"), Drop("conv.{leaf}", because="unused"))
    source = published(conv__weight=(8,))
    with pytest.raises(
        CheckpointError, match=r"doubly matched \(1\): conv.weight by the rules {block}.weight and conv"
    ):
        pair("unet", rules, source, expected(conv__w=(8,)) | expected(conv__weight=(8,)))


def test_two_tensors_for_one_parameter():
    rules = (Rename("{block}.query.{leaf}", "{block}.to_q.{leaf}"),)
    source = published(a__query__bias=(8,), a__to_q__bias=(8,))
    with pytest.raises(
        CheckpointError, match=r"doubly matched \(1\): a.to_q.bias by the tensors a.query.bias and a.to_q"
    ):
        pair("vae", rules, source, expected(a__to_q__bias=(8,)))


def test_all_differences_come_in_one_error_ten_of_each():
    source = {f"new{i}": TensorInfo("F32", (1,), 0, 0) for i in range(25)}
    source |= published(conv__bias=(9,), conv__weight=(8, 4, 3, 3))
    with pytest.raises(CheckpointError) as caught:
        pair("unet", (), source, expected(**MODEL))
    text = str(caught.value)
    assert "unknown (25): new0, " in text
    assert "new9, ...;" in text
    assert "new10" not in text
    assert "missing (1): linear.weight" in text
    assert "shape (1): conv.bias" in text
    assert "\n" not in text


def test_dropped_tensors_have_a_reason():
    mapped = pair("unet", RULES["unet"], published(conv__bias=(8,), v_pred=(0,), ztsnr=(0,)), expected(conv__bias=(8,)))
    assert mapped.dropped.keys() == {"v_pred", "ztsnr"}
    assert all(mapped.dropped.values())


def test_a_hole_is_whole_segments_of_any_number():
    rules = (Rename("{block}.key.{leaf}", "{block}.to_k.{leaf}"),)
    names = ["mid.attentions.0.key.weight", "a.key.bias"]
    for name in names:
        ours = name.replace(".key.", ".to_k.")
        assert pair("vae", rules, published(**{name: (2,)}), expected(**{ours: (2,)})).sources == {ours: name}
    for name in ["a.keys.bias", "key.bias", "a.monkey.bias", "a.key"]:
        assert pair("vae", rules, published(**{name: (2,)}), expected(**{name: (2,)})).sources == {name: name}


@pytest.mark.parametrize(
    ("old", "new"), [("query", "to_q"), ("key", "to_k"), ("value", "to_v"), ("proj_attn", "to_out.0")]
)
@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1, 1)], ids=["linear", "1x1"])
def test_both_names_of_the_autoencoders_attention(old, new, shape):
    block = "decoder.mid_block.attentions.0"
    targets = expected(**{f"{block}.{new}.weight": (8, 8), f"{block}.{new}.bias": (8,)})
    for name in (old, new):
        source = published(**{f"{block}.{name}.weight": shape, f"{block}.{name}.bias": (8,)})
        mapped = pair("vae", RULES["autoencoder"], source, targets)
        assert mapped.sources == {f"{block}.{new}.{leaf}": f"{block}.{name}.{leaf}" for leaf in ("weight", "bias")}


@pytest.mark.parametrize("prefix", ["text_model.", ""])
def test_text_encoders_with_and_without_prefix(prefix):
    leaves = {
        "embeddings.token_embedding.weight": (64, 8),
        "embeddings.position_embedding.weight": (77, 8),
        "encoder.layers.0.self_attn.q_proj.weight": (8, 8),
        "final_layer_norm.weight": (8,),
    }
    targets = expected(**{f"text_model.{leaf}": shape for leaf, shape in leaves.items()})
    targets |= expected(text_projection__weight=(6, 8))
    source = published(**{prefix + leaf: shape for leaf, shape in leaves.items()}, text_projection__weight=(6, 8))
    source[f"{prefix}embeddings.position_ids"] = TensorInfo("I64", (1, 77), 0, 0)
    mapped = pair("text_encoder", RULES["clip_text"], source, targets)
    assert mapped.sources == {f"text_model.{leaf}": prefix + leaf for leaf in leaves} | {
        "text_projection.weight": "text_projection.weight"
    }
    assert list(mapped.dropped) == [f"{prefix}embeddings.position_ids"]


sizes = st.integers(1, 5)


@given(st.one_of(st.tuples(sizes), st.tuples(sizes, sizes), st.tuples(sizes, sizes, sizes, sizes)))
def test_layouts_come_back(shape):
    tensor = np.arange(np.prod(shape)).reshape(shape)
    ours = to_runtime(tensor, tensor.ndim)
    assert ours.shape == runtime_shape(shape, len(shape))
    assert published_shape(ours.shape) == shape
    np.testing.assert_array_equal(to_published(ours), tensor)


def test_kernels_are_out_height_width_in():
    tensor = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
    ours = to_runtime(tensor, 4)
    for index in np.ndindex(tensor.shape):
        out, into, height, width = index
        assert ours[out, height, width, into] == tensor[index]


def test_a_1x1_kernel_is_a_linear_weight():
    tensor = np.random.default_rng(0).standard_normal((2, 3, 1, 1))
    x = np.random.default_rng(1).standard_normal((7, 3))
    convolved = np.einsum("oihw,bi->bo", tensor, x)
    np.testing.assert_allclose(x @ to_runtime(tensor, 2).T, convolved)
