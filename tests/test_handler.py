"""`python handler.py` as a process of its own, through the real SDK."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.diffusers_pictures import picture
from tests.handler_process import ROOT, handler
from tests.jobs import JOB
from worker.errors import StartupError
from worker.local import check_job


@pytest.mark.xdist_group("sd1")
def test_a_job_becomes_the_picture_that_diffusers_makes_and_the_next_run_compiles_nothing(toy, tmp_path):
    made = toy("sd1")
    done = handler(made.model_dir, tmp_path, "--test_input", json.dumps({"input": JOB}))
    assert done.returncode == 0, done.stdout + done.stderr
    found = np.asarray(Image.open(tmp_path / "output" / "local_test" / "0.png")).astype(int)
    assert np.abs(found - picture(made.source, JOB).astype(int)).max() <= 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "output/local_test/0.png  72x104, seed 3\n4 steps, guidance 7.5, PNDMScheduler\n" in done.stdout
    again = handler(made.model_dir, tmp_path, "--test_input", json.dumps({"input": JOB}))
    assert ": compiled " in done.stderr
    assert ": compiled " not in again.stderr
    assert (np.asarray(Image.open(tmp_path / "output" / "local_test" / "0.png")) == found).all()


@pytest.mark.xdist_group("sd1")
def test_a_bad_job_fails_with_all_its_faults_and_without_a_traceback(toy, tmp_path):
    job = {"input": {"prompt": "a fox", "width": 3, "steps": 4}}
    done = handler(toy("sd1").model_dir, tmp_path, "--test_input", json.dumps(job))
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "width: 3" in said
    assert "steps: unknown field" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{input: {prompt: a fox}}", "cannot be read (Expecting property name"),
        ('{"input": {"seed": 1' + "0" * 5_000 + "}}", "cannot be read (Exceeds the limit"),
        ("[" * 99_999, "cannot be read (maximum recursion"),
        ("[]", 'not an object with "input"'),
        ('{"prompt": "a fox"}', 'not an object with "input"'),
    ],
)
def test_a_job_that_is_none_is_one_line(tmp_path, monkeypatch, text, words):
    monkeypatch.chdir(tmp_path)
    for arguments in (["--test_input", text], [f"--test_input={text}"], []):
        Path("test_input.json").write_text("{}" if arguments else text)
        with pytest.raises(StartupError, match=re.escape(words)) as caught:
            check_job(arguments)
        assert str(caught.value).startswith("--test_input: " if arguments else "test_input.json: ")
    check_job(["--test_input", text, "--rp_serve_api"])


@pytest.mark.parametrize(("model_dir", "named"), [("absent", "absent"), ("", "models/emoji/baked")])
def test_a_start_that_cannot_succeed_ends_with_one_line(tmp_path, model_dir, named):
    done = handler(model_dir, tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("worker: ")
    assert f"{named}: not a baked model" in last
    assert "Traceback" not in done.stdout + done.stderr


def test_a_start_imports_nothing_that_no_job_needs():
    """Each costs a tenth of a second or more; the SDK asks for the processor's name in a process of its own."""
    code = (
        "import json, sys; from worker.sdk import serverless; "
        "import worker.engine.device, worker.runner, worker.service; "
        "print(json.dumps([serverless.utils.rp_debugger.PROCESSOR, *{name.partition('.')[0] for name in sys.modules}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    processor, *imported = json.loads(done.stdout)
    assert "Unable" in processor
    assert not {"flax", "optax", "torch", "scipy", "boto3", "botocore", "invoke", "cryptography"} & set(imported)
