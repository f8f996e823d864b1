"""What tests do with published and baked folders."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from worker.families import FAMILIES
from worker.nn.functional import functional
from worker.nn.kernels import Kernels
from worker.weights.load import load
from worker.weights.manifest import read_manifest

STEM = "diffusion_pytorch_model"
FILES = {"text_encoder": "model.safetensors", "unet": f"{STEM}.safetensors", "vae": f"{STEM}.safetensors"}


def params_of(baked: Path) -> dict[str, dict[str, np.ndarray]]:
    """The parameters as the worker gets them."""
    manifest = read_manifest(baked)
    parts = FAMILIES[manifest.family].parts
    shapes = {
        part.name: functional(part.build(part.parse(manifest.parts[part.name].config), Kernels())).shapes
        for part in parts
    }
    params = load(baked, manifest, shapes, verify=True)
    return {part: {name: np.asarray(array) for name, array in found.items()} for part, found in params.items()}


def assert_equal(one: dict[str, dict[str, np.ndarray]], other: dict[str, dict[str, np.ndarray]]) -> None:
    assert one.keys() == other.keys()
    for part in one:
        assert one[part].keys() == other[part].keys()
        for name, value in one[part].items():
            assert value.dtype == other[part][name].dtype
            np.testing.assert_array_equal(value, other[part][name], err_msg=name)


def edit(path: Path, change) -> None:
    """Change the tensors of a safetensors file."""
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def edit_json(path: Path, **changes) -> None:
    path.write_text(json.dumps({k: v for k, v in (json.loads(path.read_text()) | changes).items() if v != "absent"}))


def shard(path: Path, names: tuple[str, ...]) -> None:
    """Split a file by turns into files of these names."""
    tensors = load_file(path)
    path.unlink()
    for i, name in enumerate(names):
        save_file(dict(list(tensors.items())[i :: len(names)]), path.with_name(name), metadata={"format": "pt"})


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "published")
