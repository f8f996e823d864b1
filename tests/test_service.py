"""Whatever comes in, an answer goes out."""

import pytest

JOB = {"prompt": "a fox", "width": 72, "height": 104, "num_inference_steps": 2, "seed": 1}


@pytest.mark.xdist_group("sd1")
@pytest.mark.parametrize("job", [None, [], "job", {}, {"id": 3}, {"input": None}, {"id": "x", "input": []}])
def test_what_is_no_job_is_answered(toy, job):
    answer = toy("sd1").service.run(job)
    assert list(answer) == ["error"]
    assert answer["error"].startswith("input:")


@pytest.mark.xdist_group("sd1")
@pytest.mark.parametrize(
    "options",
    [
        {"use_karras_sigmas": True, "sigma_min": 5, "sigma_max": 5},
        {"use_lu_lambdas": True, "sigma_min": 5, "sigma_max": 5},
        {"lambda_min_clipped": 10**400},
        {"use_karras_sigmas": [True]},
        {"solver_order": 10**30},
    ],
)
@pytest.mark.parametrize("scheduler", ["DPM++", "UniPC", "DPM++ 2S", "LMS", "DEIS", "DPM++ SDE"])
def test_options_that_give_no_course_are_refused(toy, scheduler, options):
    answer = toy("sd1").service.run({"id": "x", "input": JOB | {"scheduler": scheduler, "scheduler_options": options}})
    assert "internal error" not in answer["error"]


@pytest.mark.xdist_group("sd1")
def test_an_answer_over_the_limit_is_an_error(toy):
    import dataclasses

    answer = dataclasses.replace(toy("sd1").service, max_answer_bytes=1000).run({"id": "x", "input": JOB})
    assert "allowed are 1000" in answer["error"]


def test_job_ids_name_folders_safely(tmp_path):
    from worker.storage import folder_store

    place = folder_store(tmp_path / "out")("../é" * 200, 0, b"data")
    assert (tmp_path / "out").resolve() in type(tmp_path)(place).resolve().parents
