"""bisect demo: where it writes, and how it ends when it is interrupted."""

from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from perfbisect.cli.commands.demo import demo
from perfbisect.demo.history import Answer
from perfbisect.errors import INTERRUPTED, UsageError
from perfbisect.hunt import setup
from program import exits, run

# `bisect demo --folder`: what lies there and is not a demo's stays.


ANSWER = Answer("c", "p", "subject", 1, 2, 0.5, ())


@pytest.mark.parametrize("answer", [None, b"42", b'{"commit": "c"}', b"\xff"])
def test_what_is_not_a_demos_stays(tmp_path: Path, answer: bytes | None) -> None:
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "thesis").touch()
    if answer is not None:
        (tmp_path / "answer.json").write_bytes(answer)
    said = exits(3, "demo", "--folder", str(tmp_path))
    assert str(tmp_path) in said
    assert "Choose a folder that does not exist yet" in said
    assert (tmp_path / "repository" / "thesis").exists()
    assert answer is None or (tmp_path / "answer.json").read_bytes() == answer


@pytest.mark.tools
@pytest.mark.parametrize("where", ["given", "of its own"])
def test_an_earlier_demo_is_written_anew(
    seal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """In its own folder also one that was cut short before it had an answer."""

    def begin(*_: object, **__: object) -> None:
        raise UsageError("far enough")

    monkeypatch.setattr(setup.HuntSetup, "set_up", begin)
    folder = tmp_path if where == "given" else seal / ".cache" / "perfbisect" / "demo" / "seed-1"
    (folder / "repository").mkdir(parents=True)
    (folder / "repository" / "old").touch()
    if where == "given":
        (folder / "answer.json").write_bytes(msgspec.json.encode(ANSWER))
    status, _, said = run("demo", *(["--folder", str(folder)] if where == "given" else []))
    assert "far enough" in said
    assert status == 3
    assert not (folder / "repository" / "old").exists()
    assert msgspec.json.decode((folder / "answer.json").read_bytes(), type=Answer).commits == 60


# `bisect demo`: what it does beside the hunt.


def test_an_interrupted_comparison_keeps_its_answers_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def interrupted(**_options: object) -> int:
        return INTERRUPTED

    monkeypatch.setattr("perfbisect.cli.commands.compare.compare", interrupted)
    done = CliRunner().invoke(demo, ["--changes", "3", "--folder", str(tmp_path)], standalone_mode=False)
    assert done.return_value == INTERRUPTED, done.output
    assert "planted" not in done.output
