"""What a traced program consists of."""

from collections.abc import Callable, Iterator
from typing import Any

import jax


def equations(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """Every primitive operation that `function` of arguments of these shapes carries out, loops included."""
    return list(_walk(jax.make_jaxpr(function)(*args, **kwargs).jaxpr))


def _walk(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "jaxpr")):
            if hasattr(parameter, "jaxpr"):
                yield from _walk(parameter.jaxpr)
