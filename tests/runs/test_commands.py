"""Running a command as a method of a model."""

from __future__ import annotations

import swampstore
from swampstore.runs.method_run import MethodRequest, run_method
from swampstore.runs.outputs import Outputs


def test_what_a_command_prints_as_json_is_its_result(repo: swampstore.Repo) -> None:
    result = run_method(
        repo, MethodRequest("demo/host/web", "scan", command=["echo", '{"disk": 81}'])
    )
    assert (result.status, result.exit_code) == ("succeeded", 0)
    assert repo.latest("demo/host/web", "result").json() == {"disk": 81}
    assert repo.latest("demo/host/web", "log").text() == '{"disk": 81}\n'


def test_a_run_leaves_one_record_that_can_be_read_back(repo: swampstore.Repo) -> None:
    result = run_method(repo, MethodRequest("demo/host/web", "scan", command=["false"]))
    assert (result.status, result.exit_code) == ("failed", 1)
    (found,) = Outputs(repo).all()
    assert found == result.output
    assert Outputs(repo).find(found.id[:8]) == found
