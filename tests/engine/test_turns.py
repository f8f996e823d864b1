"""Whose turn it is."""

from dataclasses import dataclass

import pytest

from worker.engine.turns import Lane, choose, cost, pass_sizes, pass_slots, places

SMALL, LARGE = Lane(8, 8, True), Lane(16, 16, True)


@dataclass(eq=False)
class Picture:
    left: int
    lane: Lane = SMALL
    rows: int = 0
    alone: bool = False


def simulate(arrivals: dict[int, list[Picture]], slots: int = 2, turns: int = 10_000) -> dict[int, int]:
    """Serve one row a turn; job arriving at turn -> turn at which its last picture ended."""
    jobs: dict[int, list[Picture]] = {}
    ended: dict[int, int] = {}
    for turn in range(turns):
        if turn in arrivals:
            jobs[turn] = arrivals[turn]
        if not jobs and turn > max(arrivals):
            return ended
        if jobs:
            for picture in choose(list(jobs.values()), turn)[:slots]:
                picture.left, picture.rows = picture.left - 1, picture.rows + 1
        jobs = {name: [picture for picture in job if picture.left] for name, job in jobs.items()}
        for name in [name for name, job in jobs.items() if not job]:
            del jobs[name]
            ended[name] = turn
    raise AssertionError("it never ends")


def test_cost_counts_rows_area_and_guidance():
    assert cost([Picture(3, Lane(8, 8, False))]) * 2 == cost([Picture(3, SMALL)])
    assert cost([Picture(3, LARGE), Picture(1, LARGE)]) == 16 * cost([Picture(1, SMALL)])


@pytest.mark.parametrize("lane", [SMALL, LARGE])
def test_a_long_job_does_not_keep_a_short_one_waiting(lane):
    ended = simulate({0: [Picture(1000) for _ in range(8)], 5: [Picture(10, lane)]})
    assert ended[5] <= 5 + 2 * 10 + 1


@pytest.mark.parametrize("lane", [SMALL, LARGE])
def test_short_jobs_without_end_do_not_keep_a_long_one_waiting(lane):
    arrivals = {0: [Picture(100, lane)]} | {turn: [Picture(4), Picture(4)] for turn in range(1, 2000, 2)}
    assert simulate(arrivals)[0] <= 2 * 100 + 4


def test_equal_jobs_are_finished_in_their_order():
    ended = simulate({turn: [Picture(20)] for turn in range(8)}, slots=2)
    assert sorted(ended, key=lambda name: ended[name]) == list(range(8))
    assert max(ended.values()) <= 8 * 20 // 2 + 1, "no place is left empty"


def test_another_shape_gets_its_turn():
    ended = simulate({0: [Picture(50)], 1: [Picture(50, LARGE)], 2: [Picture(50)]}, slots=4)
    assert max(ended.values()) <= 101


def test_pictures_under_way_go_first_and_only_one_lane_at_a_time():
    begun, fresh, other = Picture(5, rows=5), Picture(10), Picture(1, LARGE)
    assert choose([[fresh, begun], [Picture(90, LARGE)]], 0) == [begun, fresh]
    assert choose([[fresh], [other]], 1) == [fresh]
    assert choose([[fresh], [other]], 0) == [other]


def test_who_is_to_be_alone_is():
    alone, mate = Picture(5, alone=True), Picture(9)
    assert choose([[alone, mate]], 0) in ([alone], [mate])
    assert choose([[alone], [mate]], 1) == [alone]
    assert choose([[mate], [alone]], 1) == [mate]


@pytest.mark.parametrize(
    ("wanted", "sizes", "size"), [(1, (1, 2, 4), 1), (3, (1, 2, 4), 2), (9, (1, 2, 4), 4), (3, (4,), 4), (3, (2, 4), 2)]
)
def test_the_size_of_a_pass(wanted, sizes, size):
    assert places(wanted, sizes) == size


@pytest.mark.parametrize(("wanted", "size"), [(1, 1), (2, 3), (3, 3), (4, 3), (5, 3), (6, 6), (20, 12)])
def test_several_devices_work_side_by_side(wanted, size):
    assert places(wanted, (1, 3, 6, 12), devices=3) == size


@pytest.mark.parametrize(
    ("pictures", "most", "devices", "sizes"),
    [
        (1, 4, 1, [1]),
        (3, 4, 1, [2, 1]),
        (7, 4, 1, [4, 2, 1]),
        (6, 3, 1, [2, 2, 2]),
        (16, 16, 1, [16]),
        (6, 1, 4, [4, 4]),
        (9, 2, 4, [8, 1]),
    ],
)
def test_the_passes_of_a_job(pictures, most, devices, sizes):
    assert pass_sizes(pictures, pass_slots(most, devices), devices) == sizes


@pytest.mark.parametrize(
    ("most", "devices", "slots"), [(1, 1, [1]), (6, 1, [1, 2, 4]), (1, 3, [1, 3]), (4, 2, [1, 2, 4, 8])]
)
def test_sizes_of_passes(most, devices, slots):
    assert pass_slots(most, devices) == slots
