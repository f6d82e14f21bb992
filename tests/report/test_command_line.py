"""The commands that repeat and resume a hunt."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import sample_hunt as sample
from perfbisect.cli.commands.run import run as run_command
from perfbisect.cli.commands.trials import compare as compare_command
from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.settings import (
    COUNTED,
    USUAL_HOST,
    ChangeDirection,
    Flags,
    Pairing,
    Policy,
    QuickCommand,
    Settings,
)
from perfbisect.report.command_line import bisect_command, command_to_compare, command_to_run
from perfbisect.store.connection import default_history_path

REQUESTED = Settings(
    "v1 $(x)", "v2", "/a b", "b", "w", "h", variant="lto", metric="p95", first_parent=True,
    overrides={"time": 5, "threads": 2, "keys": "one $(x)", "table-size": "5"},
    policy=Policy(
        confidence=0.9, direction=ChangeDirection.ANY, min_effect=0.05, max_builds=7, max_runs=9, max_minutes=4 / 60,
    ),
    builders_path="/b", workloads_path="/w", hosts_path="/h.toml", configure=("-DWITH_X=a b", "--without-y"),
    programs=("out/x",), flags=Flags("-O1 '-DX=a b'", "", "-lm"),
)  # fmt: skip
QUICK = QuickCommand(
    "./x 'a b'", ("./configure", "make '-j{jobs}'"), "ops: ([0-9]+)", operations="$.n", unit="MB/s", name="x a b"
)
AUTO = Policy(pairing=Pairing.AUTO)
COMMAND = replace(REQUESTED, builder="repo-1", workload="x-1", metric="rate", policy=AUTO, explain=True, quick=QUICK)
HUNTS = (
    REQUESTED,
    sample.SETTINGS,
    COMMAND,
    replace(COMMAND, builder="b", quick=QuickCommand("./x", cost="$.a['b c']", name="x")),
    replace(COMMAND, quick=QuickCommand("./x", (), name="x", then=("{cxx} '/a b.cc'", "true"))),
)
COMPARED = ("host", "workload", "builder", "metric", "variant", "overrides", "quick", "flags", "programs", "configure")
ASKED = ("good", "bad", "repository", "builder", "workload", "host", "variant", "metric", "first_parent", "overrides",
         "builders_path", "workloads_path", "hosts_path", "configure", "explain", "quick")  # fmt: skip


def test_printed_run_command_requests_the_same_hunt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`bisect run` parses the printed command, up to the point at which the hunt would begin."""
    requested: list[Settings] = []

    def stop(settings: Settings, direction: ChangeDirection | None = None, **_options: object) -> None:
        worse = ChangeDirection.DROP if find_metric(settings.metric).higher_is_better else ChangeDirection.RISE
        requested.append(replace(settings, policy=replace(settings.policy, direction=direction or worse)))
        raise SystemExit

    for name, stand_in in {
        "hunt.resolve.resolve_settings": stop,
        "hunt.resolve.with_default_repository": stop,
        "cli.options.measurement.recipe_folders": lambda *_: (),  # the folders of the settings do not exist
        "cli.commands.run.announce_and_read_recipes": lambda settings: (None, (settings.workload,)),
    }.items():
        monkeypatch.setattr(f"perfbisect.{name}", stand_in)
    for settings in HUNTS:
        for verb, command in (
            (run_command, command_to_run(settings, tmp_path / "h.db")),
            (compare_command, command_to_compare(settings, "p", "c")),
        ):
            CliRunner().invoke(verb, shlex.split(command)[2:], catch_exceptions=False)
        found, compared = requested[-2:]
        assert [getattr(compared, name) for name in COMPARED] == [getattr(found, name) for name in COMPARED]
        usual = settings.policy.min_effect == Policy().min_effect
        counted = COUNTED if usual else settings.policy.min_effect
        assert found.policy == replace(settings.policy, min_counted=counted, auto_effect=usual, typed=not usual)
        if settings.quick:  # the names follow from the command
            builder = settings.builder if settings.quick.build is None else ""
            settings = replace(settings, workload="", builder=builder)
        assert [getattr(found, name) for name in ASKED] == [getattr(settings, name) for name in ASKED]
    assert len(requested) == 2 * len(HUNTS)


def test_printed_command_omits_default_and_inapplicable_options() -> None:
    usual = replace(COMMAND, host=USUAL_HOST, usual_variant="lto", linkable=False)
    for command in (command_to_run(usual, default_history_path()), command_to_compare(usual, "p", "c")):
        assert not [option for option in ("--host ", "--variant", "--no-layouts") if option in command]
    for option, other in {
        "--variant lto": replace(usual, usual_variant="o2"),
        "--host h": replace(usual, host="h"),
        "--no-layouts": replace(usual, linkable=True),
    }.items():
        assert option in command_to_run(other, default_history_path())


def test_printed_command_names_the_history_unless_it_is_the_default(tmp_path: Path) -> None:
    assert bisect_command("resume", 3, default_history_path()) == "bisect resume 3"
    assert bisect_command("resume", 3, tmp_path / "a b.db") == f"bisect resume 3 --history '{tmp_path}/a b.db'"
