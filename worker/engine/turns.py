"""Whose turn it is on the device: pure decisions over the jobs in hand."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class Lane(NamedTuple):
    """Pictures of one lane can share a pass: height and width of their latents, and whether they have guidance."""

    height: int
    width: int
    guided: bool


class Picture(Protocol):
    """A picture on its way. `rows` of its step table are done, `left` are not; `alone`: it shares no pass."""

    @property
    def lane(self) -> Lane: ...
    @property
    def rows(self) -> int: ...
    @property
    def left(self) -> int: ...
    @property
    def alone(self) -> bool: ...


def cost(pictures: Iterable[Picture]) -> int:
    """What is still to be computed, in evaluated latents."""
    return sum(
        picture.left * picture.lane.height * picture.lane.width * (1 + picture.lane.guided) for picture in pictures
    )


def choose[P: Picture](jobs: Sequence[Sequence[P]], turn: int) -> list[P]:
    """The pictures that could run in this turn, in the order in which they should get the places of a pass.

    `jobs` are the unfinished pictures of each job, in the order of arrival. Every second turn belongs to the job that
    came first, the others to the one that would be done soonest: a short job is not kept waiting by a long one, nor a
    long one by ever new short ones, each by more than the double of its time. Whoever can share the pass goes along,
    the nearest to its end first.
    """
    by_cost = sorted(jobs, key=cost)
    head = jobs[0] if turn % 2 else by_cost[0]
    order = [head, *(job for job in by_cost if job is not head)]
    # Pictures under way are finished before others are begun.
    pictures = [picture for job in order for picture in sorted(job, key=lambda picture: -picture.rows)]
    first = pictures[0]
    if first.alone:
        return [first]
    return [picture for picture in pictures if picture.lane == first.lane and not picture.alone]


def places(wanted: int, sizes: Iterable[int], devices: int = 1) -> int:
    """The size of the pass for so many pictures: the one that carries most in a time, of equal ones the smallest.

    A place costs its device's time whether it is filled or not; devices work side by side.
    """

    def worth(size: int) -> tuple[float, int, int]:
        carried = min(wanted, size)
        return carried / max(1, size / devices), carried, -size

    return max(sizes, key=worth)


def pass_sizes(pictures: int, sizes: Sequence[int], devices: int = 1) -> list[int]:
    """The passes in which so many equal pictures are made."""
    passes: list[int] = []
    while pictures > 0:
        passes.append(places(pictures, sizes, devices))
        pictures -= passes[-1]
    return passes


def pass_slots(most: int, devices: int = 1) -> list[int]:
    """Sizes of passes, so few that their programs serve all: 1, then 1, 2, 4 ... up to `most` on each device."""
    return sorted({1} | {devices << exponent for exponent in range(most.bit_length())})
