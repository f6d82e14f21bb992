"""`bisect steps`: the steps of a series of numbers that another tool measured, and the hunts for these steps."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from perfbisect.cli.commands.run import run
from program import exits, printed

COMMITS = [f"{number:x}".ljust(40, "0") for number in range(100, 140)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A CSV file: `get` becomes slower at the 21st commit and faster at the 31st, `put` is constant."""
    chance, path = random.Random(5), tmp_path / "results.csv"
    rows = ["commit,name,value", f"{COMMITS[0]},once,5", *(f"{commit},zero,0" for commit in COMMITS)]
    for place, commit in enumerate(COMMITS):
        size = 1.1 if 20 <= place < 30 else 1.05 if place >= 30 else 1.0
        rows += [f"{commit},get,{size * chance.gauss(10, 0.04)}" for _ in range(2)]
        rows.append(f"{commit},put,{chance.gauss(10, 0.1)}")
    path.write_text("\n".join(rows))
    return path


def test_steps_are_listed_with_the_hunt_command_of_each_step(file: Path) -> None:
    output = exits(0, "steps", str(file), "--", "--run", "./bench {series}")
    assert "get: 40 commits with a scatter of" in output and "put: 40 commits" in output
    lines = output.splitlines()
    for place, how, hunt in ((20, "worse", "'./bench get'"), (30, "better", "'./bench get' --direction drop")):
        good, bad = (COMMITS[each][:10] for each in (place - 1, place))
        [row] = [number for number, line in enumerate(lines) if re.match(f"{good} +{bad} ", line)]
        assert how in lines[row] and "<0.1 %" in lines[row]
        assert lines[row + 1].strip() == f"bisect run {good} {bad} --run {hunt}"
    assert (
        "series once has 1 commit, but at least 20 are necessary" in output
        and "that is not a positive number" in output
    )
    assert "40 values are for a commit that already has a value" in output
    report = json.loads(printed("steps", str(file), "--higher-is-better", "--only", "get", "--json"))
    assert [step["worse"] for step in report["series"][0]["steps"]] == [False, True]


def test_hunt_option_starts_only_the_hunts_for_worse_steps(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[list[str]] = []

    def main(args: list[str], **_: Any) -> int:
        begun.append(args)
        return 2

    monkeypatch.setattr(run, "main", main)
    exits(2, "steps", str(file), "--only", "g*", "--hunt", "--", "-b", "kv")
    assert begun == [[COMMITS[19][:10], COMMITS[20][:10], "-b", "kv"]]


def test_unknown_series_is_refused_with_the_known_series(file: Path) -> None:
    assert "The series of the file: once, zero, get, put" in exits(3, "steps", str(file), "--only", "scan")
