import numpy as np
import pytest

from builder.embedded.data import COLOURS, Emoji, colour_versions, load_data, prevailing_hue, shift_hue


def disc(colour, background=(255, 255, 255)):
    rows, columns = np.mgrid[:64, :64]
    inside = (rows - 32) ** 2 + (columns - 32) ** 2 < 24**2
    return np.where(inside[..., None], colour, background).astype(np.uint8)


@pytest.mark.parametrize(("colour", "hue"), [((220, 30, 30), 0), ((40, 200, 40), 120), ((30, 60, 230), 231)])
def test_the_prevailing_hue_is_that_of_the_thing(colour, hue):
    assert abs((prevailing_hue(disc(colour)) - hue + 180) % 360 - 180) < 3


def test_no_hue_prevails_in_grey_small_or_mixed_pictures():
    small = disc((255, 255, 255))
    small[:8, :8] = (220, 30, 30)
    mixed = disc((220, 30, 30))
    mixed[:32] = disc((30, 60, 230))[:32]
    assert [prevailing_hue(picture) for picture in (disc((90, 90, 90)), small, mixed)] == [None, None, None]


def test_turning_hues_gives_the_colour_and_keeps_white_and_shape():
    turned = shift_hue(disc((220, 30, 30)), COLOURS["blue"])
    assert abs(prevailing_hue(turned) - COLOURS["blue"]) < 3
    assert (np.all(turned == 255, axis=-1) == np.all(disc((220, 30, 30)) == 255, axis=-1)).all()


def test_names_of_other_colours_replace_the_colour_word():
    names = [name for name, _ in colour_versions(Emoji("red apple", (), disc((220, 30, 30))))]
    assert names[0] == "red apple"
    assert {"green apple", "blue apple"} < set(names)
    assert not [name for name in names[1:] if "red" in name.split()]


@pytest.mark.parametrize("name", ["white flower", "brown bear"])
def test_what_is_named_by_another_colour_stays_alone(name):
    assert len(colour_versions(Emoji(name, (), disc((220, 30, 30))))) == 1


def test_a_written_set_is_read_back(data, tmp_path):
    data.write(tmp_path)
    read = load_data(tmp_path)
    assert (read.names, read.keywords) == (data.names, data.keywords)
    np.testing.assert_array_equal(read.pictures, data.pictures)
    np.testing.assert_array_equal(read.owner, data.owner)


def test_the_first_picture_of_each_is_its_own(data):
    assert data.emoji.tolist() == [0, 1, 5]
    assert data.own_names == ["dog face", "red apple", "Côte “quote” 17"]
