"""Pictures reach a folder or the answer, and are found where they are kept."""

import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.s3_servers import StubS3, bucket_at
from worker.errors import GenerationError
from worker.outputs import PictureFile
from worker.places import Found, Place, picture_name
from worker.s3 import s3_store
from worker.settings import Settings
from worker.storage import folder_store, inline_store, operator_store

FILE = PictureFile(b"not really a picture", "image/webp", "webp")
FACTS = {"request": "9" * 64, "seed": "7"}


@pytest.mark.parametrize("job_id", ["../../etc", "a/b", "", "a b?#%", "é" * 500])
def test_a_job_id_is_one_part_of_a_key(tmp_path, job_id):
    stub = StubS3()
    key = s3_store(bucket_at(stub.endpoint, prefix="p")).put(job_id, "0", FILE, {}).key
    stub.close()
    assert key is not None
    assert key.startswith("p/")
    assert key.count("/") == 2
    assert len(key) < 256
    path = folder_store(tmp_path).put(job_id, "0", FILE, {}).url
    assert (tmp_path / key.removeprefix("p/")).read_bytes() == FILE.data
    assert path == str(tmp_path / key.removeprefix("p/"))


def test_pictures_of_one_job_have_names_of_their_own():
    names = [picture_name(index, picture) for index in (None, *range(30)) for picture in range(16)]
    assert len(set(names)) == len(names)
    assert picture_name(None, 2) == "2"
    assert picture_name(3, 0) == "3-0"


# A folder.


def test_a_picture_in_a_folder_is_found_with_its_facts(tmp_path):
    place = folder_store(tmp_path).put("job", "3-0", FILE, FACTS)
    assert place == Place(str(tmp_path / "job" / "3-0.webp"))
    found = folder_store(tmp_path).find("job", "3-0", "webp")
    assert found == Found(place, FACTS, len(FILE.data), "image/webp")


@pytest.mark.parametrize("names", [("job", "1", "webp"), ("job", "0", "png"), ("other", "0", "webp")])
def test_what_is_not_in_the_folder_is_not_found(tmp_path, names):
    store = folder_store(tmp_path)
    store.put("job", "0", FILE, FACTS)
    assert store.find(*names) is None


def test_a_repeated_job_overwrites_picture_and_facts(tmp_path):
    store = folder_store(tmp_path)
    store.put("job", "0", FILE, FACTS)
    store.put("job", "0", replace(FILE, data=b"another"), {"request": "8"})
    found = store.find("job", "0", "webp")
    assert found is not None
    assert (found.facts, found.size_bytes) == ({"request": "8"}, 7)
    store.put("job", "0", FILE, {})
    assert store.find("job", "0", "webp") is None, "without facts it is nobody's"
    assert len(list((tmp_path / "job").iterdir())) == 2


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
@pytest.mark.parametrize("before", [False, True])
def test_a_run_that_is_cut_off_at_any_write_leaves_a_whole_picture_or_none(tmp_path, monkeypatch, kept, before):
    """`kept` of the writes and renamings of one `put` happen, then the process ends."""
    store = folder_store(tmp_path)
    new = replace(FILE, data=b"another")
    if before:
        store.put("job", "0", FILE, FACTS)
    steps = iter(range(kept))
    with monkeypatch.context() as patch:
        for name in ("write_bytes", "replace"):
            cut_off(patch, name, steps)
        with pytest.raises(KeyboardInterrupt):
            store.put("job", "0", new, {"request": "8"})
    found = store.find("job", "0", "webp")
    if found is not None:
        assert before
        assert (found.facts, found.size_bytes) == (FACTS, len(FILE.data))
    assert store.put("job", "0", new, FACTS) == Place(str(tmp_path / "job" / "0.webp"))
    assert store.find("job", "0", "webp") is not None


def cut_off(patch, name, steps):
    original = getattr(Path, name)

    def step(*arguments):
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return original(*arguments)

    patch.setattr(Path, name, step)


@pytest.mark.parametrize("damage", [b"", b"not really", b"NOT really a picture"])
def test_a_damaged_picture_is_not_found(tmp_path, damage):
    store = folder_store(tmp_path)
    path = tmp_path / "job" / "0.webp"
    store.put("job", "0", FILE, FACTS)
    path.write_bytes(damage)
    assert store.find("job", "0", "webp") is None
    path.write_bytes(FILE.data)
    assert store.find("job", "0", "webp") is not None
    path.with_name("0.webp.json").write_bytes(damage)
    assert store.find("job", "0", "webp") is None


def test_a_folder_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "job").write_bytes(b"a file")
    with pytest.raises(GenerationError, match=r"picture 0: cannot be written to .*job/0.webp: File exists"):
        folder_store(tmp_path).put("job", "0", FILE, FACTS)


def test_two_runs_may_write_one_picture_at_once(tmp_path):
    store = folder_store(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        places = list(threads.map(lambda _: store.put("job", "0", FILE, FACTS), range(400)))
    assert set(places) == {Place(str(tmp_path / "job" / "0.webp"))}
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["0.webp", "0.webp.json"]


# The answer.


def test_without_a_bucket_a_picture_is_in_the_answer_and_kept_nowhere():
    place = inline_store.put("job", "0", FILE, FACTS)
    assert place.key is None
    assert urllib.request.urlopen(place.url).read() == FILE.data
    assert place.url.startswith("data:image/webp;base64,")
    assert inline_store.find("job", "0", "webp") is None


# The operator's choice.


def test_a_bucket_goes_before_a_folder_and_a_folder_is_for_local_runs(tmp_path):
    settings = Settings(output_dir=tmp_path)
    assert operator_store(settings, local=False) is inline_store
    assert operator_store(settings, local=True).put("job", "0", FILE, {}).url == str(tmp_path / "job" / "0.webp")
    bucket = {
        "bucket_endpoint_url": "https://s3.example.org",
        "bucket_name": "pictures",
        "bucket_access_key_id": "key",
        "bucket_secret_access_key": "secret",
    }
    for local in (False, True):
        store = operator_store(replace(settings, **bucket), local=local)
        assert store is not inline_store
        assert not list(tmp_path.glob("*.partial"))
