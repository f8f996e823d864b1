"""What makes one program stand for another: machines and fingerprints."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from worker.engine import identity
from worker.engine.identity import Machine, default_device, fingerprint, layout, machine_of
from worker.nn.kernels import Kernels
from worker.weights.manifest import BakedPart, Manifest

PART = BakedPart(config={"layers": 2}, file="unet.safetensors", dtype="float32", sha256="0" * 64, size_bytes=0)
MANIFEST = Manifest(
    converter_version=1,
    source="toy",
    revision=None,
    content_sha256="0" * 64,
    licence=None,
    family="stable-diffusion",
    dtype="float32",
    parts={"unet": PART},
    tokenizers={},
    scheduler={},
    model_index={},
)


def gpu(name: str, capability: str, cores: int) -> Any:
    return SimpleNamespace(platform="gpu", device_kind=name, compute_capability=capability, core_count=cores)


def test_a_chip_has_one_machine_whatever_it_is_sold_as():
    h200, h100, pcie, l4 = (
        machine_of(gpu(*card), "")
        for card in (
            ("NVIDIA H200", "9.0", 132),
            ("NVIDIA H100 80GB HBM3", "9.0", 132),
            ("NVIDIA H100 PCIe", "9.0", 114),
            ("NVIDIA L4", "8.9", 58),
        )
    )
    assert h200 == h100
    assert len({machine.card for machine in (h200, pcie, l4)}) == 3
    assert "nvidia-cudnn-cu12" in h200.libraries


def test_the_cpu_s_machine():
    machine = machine_of(default_device(), "--xla_b=1  --xla_a=2")
    assert machine.card.startswith("cpu ")
    assert machine.flags == ("--xla_a=2", "--xla_b=1")
    assert machine.libraries.keys() == {"jax", "jaxlib"}
    assert machine == Machine.model_validate_json(machine.model_dump_json())


def test_a_cpu_with_other_instructions_is_another_machine(monkeypatch, tmp_path):
    cards: list[str] = []
    for flags in ("fpu sse avx512f", "fpu sse"):
        (tmp_path / "cpuinfo").write_text(f"processor: 0\nflags\t\t: {flags}\n" * 2)
        monkeypatch.setattr(identity, "Path", lambda _path: tmp_path / "cpuinfo")
        cards.append(machine_of(SimpleNamespace(platform="cpu"), "").card)
    assert cards[0] != cards[1]


def test_the_difference_is_named():
    ours = Machine(card="gpu 9.0", libraries={"jax": "1", "jaxlib": "2"}, flags=("--xla_a=1",))
    assert ours.difference(ours) == ""
    for change, words in (
        ({"card": "gpu 8.9"}, "for gpu 8.9, this is gpu 9.0"),
        ({"libraries": {"jax": "1", "jaxlib": "3"}}, "made with jaxlib 3, this is 2"),
        ({"libraries": {"jax": "1"}}, "made with jaxlib absent, this is 2"),
        ({"libraries": ours.libraries | {"more": "1"}}, "made with other libraries"),
        ({"flags": ()}, "made with XLA_FLAGS '', these are '--xla_a=1'"),
    ):
        assert ours.difference(ours.model_copy(update=change)) == words


@pytest.mark.parametrize(
    "change",
    [
        {"family": "stable-diffusion-xl"},
        {"parts": {"unet": PART.model_copy(update={"config": {"layers": 3}})}},
        {"parts": {"unet": PART.model_copy(update={"dtype": "bfloat16"})}},
    ],
)
def test_a_fingerprint_changes_with_the_model(change):
    known = fingerprint(MANIFEST, Kernels(), [77])
    assert fingerprint(MANIFEST.model_copy(update=change), Kernels(), [77]) != known


def test_a_fingerprint_is_of_programs_not_of_weights():
    known = fingerprint(MANIFEST, Kernels(), [77])
    for change in (
        {"source": "other", "content_sha256": "1" * 64, "scheduler": {"beta_start": 0.1}},
        {"parts": {"unet": PART.model_copy(update={"sha256": "1" * 64, "size_bytes": 5})}},
    ):
        assert fingerprint(MANIFEST.model_copy(update=change), Kernels(), [77]) == known
    assert fingerprint(MANIFEST, Kernels(), [77, 77]) != known
    for item in dataclasses.fields(Kernels):
        other = dataclasses.replace(Kernels(), **{item.name: "other"})
        assert fingerprint(MANIFEST, other, [77]) != known


def test_a_layout_is_of_names_shapes_and_the_model():
    def one(name: str, *shape: int) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
        return {"unet": {name: jax.ShapeDtypeStruct(shape, np.float32)}}

    known = layout(MANIFEST, one("conv_in.weight", 4, 3))
    weights = {"parts": {"unet": PART.model_copy(update={"sha256": "1" * 64, "size_bytes": 5})}, "source": "other"}
    assert layout(MANIFEST.model_copy(update=weights), one("conv_in.weight", 4, 3)) == known
    for shapes in (one("conv_in.weight", 3, 4), one("conv_in.bias", 4, 3), {}):
        assert layout(MANIFEST, shapes) != known
    config = {"parts": {"unet": PART.model_copy(update={"config": {"layers": 3}})}}
    assert layout(MANIFEST.model_copy(update=config), one("conv_in.weight", 4, 3)) != known


@pytest.mark.parametrize("digest", [lambda: fingerprint(MANIFEST, Kernels(), [77]), lambda: layout(MANIFEST, {})])
def test_a_digest_changes_with_the_code(monkeypatch, digest):
    known = digest()
    monkeypatch.setattr(identity, "_SOURCES", identity._SOURCES[1:])
    identity._sources_sha256.cache_clear()
    other = digest()
    identity._sources_sha256.cache_clear()
    assert other != known
