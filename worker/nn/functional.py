"""A Flax NNX module as a pure function of a flat parameter dictionary."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
from flax import nnx, traverse_util

from worker.nn.layers import Linear


@dataclass(frozen=True)
class Functional:
    """`shapes`: dotted path -> shape, the names of the checkpoint; `apply(params, *args, method=...)` is pure."""

    shapes: dict[str, jax.ShapeDtypeStruct]
    apply: Callable[..., Any]


def functional(module: nnx.Module, *, scaled: bool = False) -> Functional:
    """Split an abstract module once; merging happens only while a caller traces `apply`.

    `scaled` gives every linear layer a `weight_scale`. Raises ValueError where `apply` is given other names.
    """
    if scaled:
        for _, node in nnx.iter_graph(module):
            if isinstance(node, Linear):
                node.add_scale()
    graph, state = cast(tuple[Any, Any], nnx.split(module))
    nested = cast(dict[tuple[Any, ...], Any], traverse_util.flatten_dict(nnx.to_pure_dict(state)))
    paths = {".".join(map(str, path)): path for path in nested}
    shapes: dict[str, jax.ShapeDtypeStruct] = {name: nested[path] for name, path in paths.items()}

    def apply(params: dict[str, Any], *args: Any, method: str = "__call__", **kwargs: Any) -> Any:
        if params.keys() != paths.keys():
            raise ValueError(f"parameters differ: {sorted(params.keys() ^ paths.keys())[:10]}")
        tree = cast(Any, traverse_util.unflatten_dict({paths[name]: value for name, value in params.items()}))
        return getattr(nnx.merge(graph, tree), method)(*args, **kwargs)

    return Functional(shapes, apply)
