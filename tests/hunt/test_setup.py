"""What a hunt by exact counts is set up as."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import machine
from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.domain.settings import Policy, Settings
from perfbisect.hunt.resolve import resolve_settings
from perfbisect.hunt.setup import HuntSetup, with_layouts
from perfbisect.lab.measure import counting

pytestmark = pytest.mark.tools  # starts git, and looks for everything a hunt needs


@pytest.fixture
def timed(git: Callable[..., str], tmp_path: Path) -> Settings:
    """A hunt through two commits, by QPS."""
    folder = tmp_path / "repo"
    for number in range(2):
        (folder / "file.c").write_text(f"int x = {number};\n")
        git("add", "-A")
        git("commit", "-qm", f"commit {number}")
    return Settings(
        good="HEAD~1", bad="HEAD", repository=str(folder), builder="demo", workload="update-index", host="local",
        policy=Policy(layouts=True),
    )  # fmt: skip


@pytest.fixture
def by_valgrind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "method", lambda _: "valgrind-3.19.0")


@pytest.mark.usefixtures("by_valgrind")
def test_builds_that_are_counted_are_those_that_are_timed(timed: Settings) -> None:
    """Otherwise `--metric auto` would build the ends twice, and find them built differently afterwards."""
    [setup] = HuntSetup.set_up([resolve_settings(timed)])
    counted = setup.by_metric(replace(setup.settings, metric=INSTRUCTIONS))
    assert (setup.settings.prior.exact, counted.settings.prior.exact) == (False, True)
    assert setup.settings.policy.layouts is counted.settings.policy.layouts is True
    without = with_layouts(replace(setup, settings=replace(setup.settings, repository="")))
    assert setup.settings.linkable and not without.settings.linkable


def test_hosts_that_count_by_different_methods_count_nothing_exactly(
    timed: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    [setup] = HuntSetup.set_up([resolve_settings(timed)])
    by_perf, by_valgrind = setup.hosts[0].host, object()
    monkeypatch.setattr(counting, "method", lambda host: counting.PERF if host is by_perf else "valgrind-3.19.0")
    both = replace(setup, hosts=(setup.hosts[0], replace(setup.hosts[0], host=by_valgrind)))
    exact = replace(setup.settings, metric=INSTRUCTIONS)
    assert setup.by_metric(exact).settings.prior.exact
    mixed = both.by_metric(exact)
    assert not mixed.settings.prior.exact
    assert {each.counts for each in mixed.hosts} == {""}


@pytest.mark.usefixtures("by_valgrind")
def test_options_on_the_time_of_counted_runs_have_no_effect_and_that_is_said(timed: Settings) -> None:
    def said(**changes: object) -> list[str]:
        [setup] = HuntSetup.set_up([resolve_settings(replace(timed, **changes))])  # type: ignore[arg-type]
        return [warning.text for warning in setup.warnings if "no effect" in warning.text]

    given = {"time": 5.0, "warmup": 1.0}
    assert said(overrides=given) == said(metric=INSTRUCTIONS) == []
    (sentence,) = said(overrides=given, metric=INSTRUCTIONS)
    assert sentence.startswith("--time and --warmup have no effect on runs in which instructions are counted exactly")
    (sentence,) = said(overrides={"time": 5.0}, metric=INSTRUCTIONS)
    assert sentence.startswith("--time has no effect")


@pytest.mark.skipif(bool(machine.why_not()), reason="needs a view of the file system of its own")
def test_a_host_stands_in_for_its_only_build_host_if_it_would_make_the_same_builds(
    timed: Settings, tmp_path: Path
) -> None:
    def can_build(root: Path) -> bool:
        """``b`` is this machine with another folder at ``root``."""
        root.mkdir()
        (tmp_path / "hosts.toml").write_text(
            f'[hosts.quiet]\nroot = "{tmp_path}/root"\nbuild_hosts = ["b"]\n[hosts.b]\nroot = "{root}"\n'
            f"through = ['unshare', '--mount', 'sh', '-c', 'mount -t tmpfs -o mode=755 none {root} && exec \"$@\"', 'sh']\n"
        )
        settings = replace(timed, host="quiet", hosts_path=str(tmp_path / "hosts.toml"))
        return HuntSetup.set_up([resolve_settings(settings)])[0].hosts[0].can_build

    assert can_build(tmp_path / "root")
    assert not can_build(tmp_path / "other"), "paths get into builds"
