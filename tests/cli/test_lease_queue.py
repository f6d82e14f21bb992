"""What is shown while a leased machine is waited for."""

import io
import sys
from pathlib import Path

import pytest

from perfbisect.cli.options.common import leasing
from perfbisect.errors import EnvironmentFailure
from perfbisect.ui.stream import START_OF_LINE

LEASE = """
[leases.one]
acquire = ["sleep", "1.2"]
status = ["echo", "PENDING"]
release = [{release}]
"""


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def screen(written: str) -> list[str]:
    """The lines that it shows in the end: text after a START_OF_LINE stands in place of what was there."""
    return [line.rpartition(START_OF_LINE)[2] for line in written.split("\n")]


@pytest.mark.parametrize("released", [True, False])
def test_the_line_with_the_clock_is_gone_when_nothing_is_leased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    """Neither what could not be released nor the error that follows stands behind it."""
    (tmp_path / "hosts.toml").write_text(LEASE.format(release='"true"' if released else '"false"'))
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with (
        pytest.raises(EnvironmentFailure, match="printed 0 lines"),
        leasing(["one:a"], tmp_path / "hosts.toml"),
    ):
        raise AssertionError("it is leased")
    assert "waiting for one:a: PENDING" in terminal.getvalue()
    *said, last = screen(terminal.getvalue())
    assert last == ""
    assert not [line for line in said if "waiting" in line]
    assert any("could not be released" in line for line in said) is not released
