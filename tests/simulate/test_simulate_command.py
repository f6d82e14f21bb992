"""The command `bisect simulate`."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from perfbisect.cli.commands.simulate import STEPS
from perfbisect.cli.main import main
from repos import Repo

pytestmark = pytest.mark.calibration  # simulates whole hunts

Bisect = Callable[..., tuple[int, str, str]]
EASY = ("--commits", "30", "--effect", "30%", "--hunts", "2")


@pytest.fixture
def bisect(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bisect:
    """``bisect(*args)`` gives exit status, output and errors."""

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["bisect", "simulate", *args])
        with pytest.raises(SystemExit) as leave:
            main()
        assert isinstance(leave.value.code, int)
        return leave.value.code, *capsys.readouterr()

    return run


def figures(bisect: Bisect, *args: str) -> Any:
    """What ``bisect simulate --json`` prints."""
    return json.loads(bisect(*args, "--json")[1])


def test_simulation_prints_its_plan_and_results(bisect: Bisect) -> None:
    shares = ("--layout", "0.0", "--outliers", "0.0%", "--drift", "00", "--cached", "1.00")
    status, printed, errors = bisect(*EASY, *shares)
    assert (status, errors) == (0, ""), "nothing and all are shares, however they are written"
    assert printed.startswith("30 candidates; 2 hunts\n")
    assert "right                      100 %" in printed
    assert bisect(*EASY)[1] == bisect(*EASY)[1]


def test_json_has_costs_in_runs_and_in_hours(bisect: Bisect) -> None:
    printed = figures(bisect, *EASY, "--build-cost", "30m", "--run-time", "3m", "--max-runs", "7")
    assert (printed["candidates"], printed["options"]["build_cost"]) == (30, "30.0 minutes")
    runs, builds = printed["runs"]["mean"], printed["builds"]["mean"]
    assert printed["runs"]["most"] <= 7
    assert printed["cost"]["mean"] == pytest.approx(runs + 10 * (builds - 2))
    assert printed["hours"]["mean"] == pytest.approx((3 * runs + 30 * builds) / 60)


def test_simulation_with_randomized_layouts_finds_the_culprit(bisect: Bisect) -> None:
    world = ("--commits", "30", "--effect", "5%", "--noise", "0.5%", "--modes", "15%", "--hunts", "2", "--seed", "3")
    again = figures(bisect, *world, "--layouts", "--link-cost", "30s")
    assert again["right"]["middle"] == 1.0
    assert again["options"].items() >= {"link_cost": "0.5 minutes", "layouts": True}.items()


def test_noisier_host_needs_more_runs(bisect: Bisect) -> None:
    plan = ("--hunts", "1", "--commits", "8", "--effect", "30%")
    easy, hard = (figures(bisect, *plan, *noise)["runs"]["mean"] for noise in ((), ("--noise", "20%")))
    assert hard > easy


def test_simulation_uses_the_range_of_a_repository(bisect: Bisect, git: Repo) -> None:
    git.history({"code.c": str(number)} for number in range(6))
    status, printed, _ = bisect("v0", "v5", "--repo", str(git.path), "--effect", "30%", "--hunts", "1")
    assert status == 0 and printed.startswith("5 candidates; 1 hunt\n")


@pytest.mark.parametrize(("args", "said"), [
    (("v1",), "is only one end of a range"),
    (("v1", "v2"), "--repo"),
    (("--repo", "."), "GOOD BAD"),
    (("v1", "v2", "--commits", "9"), "a random range"),
    (("--build-cost", "-1"), "Examples: 10, 15m"),
    (("--effect", "0"), "not between 0.0001% and 99.9999%"),
    (("--steps", "many"), "culprit-on-slope"),
    (("--failing", "100%"), "not between 0.0001% and 99.9999%"),
    (("--first-parent",), "GOOD BAD"),
    (("--builds-between",), "--build-hosts"),
])  # fmt: skip
def test_invalid_options_are_refused(bisect: Bisect, args: tuple[str, ...], said: str) -> None:
    status, _, errors = bisect(*args)
    assert status == 3 and said in errors


@pytest.mark.slow
def test_simulation_of_all_changes_counts_the_steps(bisect: Bisect) -> None:
    asked = (*EASY, "--noise", "0.3%", "--layout", "0", "--steps", "before-and-after", "--all")
    steps = figures(bisect, *asked)["steps"]
    assert steps["right"] >= 4
    assert steps["wrong"] == steps["missed"] == 0
    assert "100 % are named" in bisect(*asked)[1]


@pytest.mark.parametrize("steps", STEPS)
def test_smallest_range_works_with_all_kinds_of_steps(bisect: Bisect, steps: str) -> None:
    assert bisect("--commits", "1", "--hunts", "1", "--steps", steps, "--cached", "100%")[0] == 0


def test_unmeasured_builds_of_build_hosts_are_printed(bisect: Bisect) -> None:
    short = ("--commits", "20", "--effect", "30%", "--hunts", "1")
    assert "  not measured" in bisect(*short, "--build-hosts", "2")[1]
    assert "  not measured" not in bisect(*short)[1]
