"""What every tokeniser gives."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Tokens(NamedTuple):
    """`ids`: int32 [B, L]; `lost`: tokens that did not fit, per text."""

    ids: NDArray[np.int32]
    lost: tuple[int, ...]


class TextTokenizer(Protocol):
    """Texts to rows of `length` token ids, which are below `vocabulary`."""

    @property
    def length(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    def __call__(self, texts: Sequence[str]) -> Tokens: ...
