"""`bisect demo`: what it does beside the hunt."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from perfbisect.cli.commands.demo import demo
from perfbisect.errors import INTERRUPTED


def test_an_interrupted_comparison_keeps_its_answers_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def interrupted(**_options: object) -> int:
        return INTERRUPTED

    monkeypatch.setattr("perfbisect.cli.commands.compare.compare", interrupted)
    done = CliRunner().invoke(demo, ["--changes", "3", "--folder", str(tmp_path)], standalone_mode=False)
    assert done.return_value == INTERRUPTED, done.output
    assert "planted" not in done.output
