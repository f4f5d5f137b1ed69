"""A rehearsed preemption shows whether a training goes on as if it had not been preempted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.core.errors import DataError
from tasks.core.files import write_json
from tasks.runs import plan
from tasks.supervision import rehearsal
from tasks.supervision.rehearsal import rehearse
from tests.supervision.conftest import processes_of
from tests.supervision.fakes import make_config, make_run
from tests.supervision.test_agent import wait_for


@pytest.mark.parametrize("does", ["goes on", pytest.param("forgets", marks=pytest.mark.proof), "fails"])
def test_two_short_trainings_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    make_run(tmp_path)  # which makes the version, too
    (version,) = (tmp_path / "data" / "versions").iterdir()
    behaviour = {"step_s": 0.1, **({"nan_at": 7} if does == "fails" else {})}

    def planned(*arguments: object) -> object:
        run = plan.plan(*arguments)  # type: ignore[arg-type]
        wrong = {"seed": "another"} if does == "forgets" and "preempted" in run.path.parent.name else {}
        write_json(run.path / "fake.json", {**behaviour, **wrong})
        (run.path / "loader.json").write_bytes(next(tmp_path.glob("runs/fake-*/loader.json")).read_bytes())
        return run

    monkeypatch.setattr(rehearsal, "plan", planned)
    seen: set[str] = set()
    if does == "fails":
        with pytest.raises(DataError, match="loss was not finite"):
            rehearse(make_config(tmp_path), version, lambda what, status: seen.add(what))
        return
    found = rehearse(make_config(tmp_path), version, lambda what, status: seen.add(what))
    assert seen == {"undisturbed", "preempted", "resumed"}
    wait_for(lambda: processes_of(tmp_path) == [])
    assert 10 <= found.preempted_at < 20 == found.steps and 0 < found.obeyed_s < found.grace_s
    assert found.is_exact is (does == "goes on") and found.folder.exists() is (does != "goes on")
    if does == "forgets":
        assert found.difference == "the weights of step 20"
