import numpy as np

from builder.embedded.evaluate import ranks_of_named, sheet


def test_an_emoji_is_nearest_to_its_own_name_and_another_is_not(data):
    own = data.emoji.tolist()
    assert ranks_of_named(data.pictures[own], own, data).tolist() == [0, 0, 0]
    assert ranks_of_named(data.pictures[own[1:]], own[:2], data).min() > 0


def test_the_nearest_of_those_with_the_same_name_counts(data):
    twin = type(data)(data.pictures[:2], ("dog face", "dog face"), np.array([0, 1], np.int32), ((), ()))
    assert ranks_of_named(data.pictures[1:2], [0], twin).tolist() == [0]


def test_a_sheet_is_filled_up_with_white(data):
    made = sheet(data.pictures[:3], 2)
    assert made.shape == (128, 128, 3)
    np.testing.assert_array_equal(made[64:, :64], data.pictures[2])
    assert (made[64:, 64:] == 255).all()
