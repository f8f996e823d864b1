"""Which implementation carries out the heavy operations."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Kernels:
    """A choice per operation: equal results, other speed.

    `attention`: "xla" everywhere; "cudnn" is the fused kernel of NVIDIA GPUs.
    `convolution`: "xla" is `lax.conv_general_dilated`; "shifted" writes a 3x3 convolution as one matrix
    product over shifted slices where the grid is small, which is quicker on CPUs.
    `loop`: "device" runs many rows of a step table in one dispatch; "host" one row, for CPUs, where XLA runs a
    convolution inside a loop on one thread and without its library (12 times slower, measured).
    """

    attention: Literal["xla", "cudnn"] = "xla"
    convolution: Literal["xla", "shifted"] = "xla"
    loop: Literal["device", "host"] = "device"
