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


def places(wanted: int, sizes: Sequence[int]) -> int:
    """The size of the pass for so many pictures: the largest that is filled, else the smallest there is."""
    return max((size for size in sizes if size <= wanted), default=min(sizes))


def pass_sizes(pictures: int, most: int) -> list[int]:
    """Passes of 1, 2, 4 ... up to `most` that so many equal pictures are made in, so that few programs serve all."""
    sizes: list[int] = []
    while pictures:
        size = largest_power_of_two(min(pictures, most))
        sizes.append(size)
        pictures -= size
    return sizes


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4 ... up to `most`."""
    return [1 << exponent for exponent in range(most.bit_length())]


def largest_power_of_two(limit: int) -> int:
    """The largest that is not above the limit, which is at least 1."""
    return 1 << (limit.bit_length() - 1)
