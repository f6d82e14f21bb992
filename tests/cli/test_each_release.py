"""`bisect compare --each-release` on releases of the demo's engine, one of which cannot be built."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from perfbisect.demo.history import Answer, write_history
from program import exits, printed

pytestmark = pytest.mark.tools

ANSWERS: dict[Path, Answer] = {}


def git(repo: Path, *words: str) -> str:
    """git in the demo's repository."""
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    return subprocess.run(
        ["git", "-C", str(repo), *identity, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's history with 1.0.1 to 1.0.8 on commits that can be built, then 1.0.9, broken, and 1.0.10; and two others."""
    folder = tmp_path_factory.mktemp("demo") / "repo"
    answer = ANSWERS[folder] = write_history(folder, 7)
    commits = git(folder, "rev-list", "--reverse", "--first-parent", "v1.1").splitlines()
    commits = commits[commits.index(git(folder, "rev-parse", "v1.0^{commit}")) :]
    sound = [commit for commit in commits if commit not in answer.broken]
    for number in range(1, 9):
        git(folder, "tag", f"v1.0.{number}", sound[(number - 1) * (len(sound) - 1) // 7])
    git(folder, "checkout", "-q", "--detach", "v1.1")
    source = folder / git(folder, "ls-files", "*.c").splitlines()[0]
    whole = source.read_text()
    for number, text in ((9, "#error broken\n" + whole), (10, whole)):
        source.write_text(text)
        git(folder, "commit", "-qam", "break it" if number == 9 else "mend it")
        git(folder, "tag", f"v1.0.{number}")
    git(folder, "tag", "v1.0.3-rc1", "v1.0.2")
    git(folder, "checkout", "-q", "v1.0.2")
    git(folder, "commit", "-q", "--allow-empty", "-m", "a fix of the branch")
    git(folder, "tag", "v1.0.2.1")
    return folder


def series(repo: Path, range_: str, *words: str) -> list[str]:
    """Arguments of a short series."""
    return [
        "compare", "--each-release", range_, "--builder", "demo", "-w", "update-index", "--repo", str(repo),
        "--warmup", "0.1", "--time", "1", "--runs", "1", *words,
    ]  # fmt: skip


def test_what_a_series_would_cost(repo: Path) -> None:
    first, *others = printed(*series(repo, "1.0.1..1.0.10", "--visits", "3", "--dry-run")).splitlines()
    assert first.startswith("10 builds: 1.0.1, 1.0.2, 1.0.3, ")
    assert "left out: 1.0.3-rc1, a pre-release" in others
    assert "left out: 1.0.2.1, 1.0.10 does not contain it" in others
    assert "3 rounds of 10 visits, 1 run each" in others
    assert any("11 s of runs" in line and "33 s" in line for line in others)
    assert "no hunts yet" in exits(3, "history"), "nothing is measured"


@pytest.mark.parametrize(
    ("range_", "more", "reason"),
    [
        ("1.0.1..1.0.4", (), "has 4 releases, and a line with steps needs 8"),
        ("1.0.1..1.0.4", (), "with the same options: bisect compare 1.0.1 1.0.2 1.0.3 1.0.4 …"),
        ("1.0.4..1.0.1", (), "is not before"),
        ("1.0.1..9.9", (), "'9.9' is no release"),
        ("1.0.1", (), "no range of releases"),
        ("1.0.1..1.0.9", ("v1.0",), "leave out the BUILDs"),
        ("1.0.1..1.0.10", ("--hunt",), "prints the command that hunts each step"),
    ],
)
def test_what_is_refused(repo: Path, range_: str, more: tuple[str, ...], reason: str) -> None:
    assert reason in exits(3, *series(repo, range_, *more))


@pytest.mark.slow
def test_a_planted_slowdown_is_a_step_and_a_broken_release_a_gap(repo: Path, tmp_path: Path) -> None:
    """The step is before the first release with the planted commit, and the command hunts between its neighbours."""
    words = series(repo, "1.0.1..1.0.10", "--visits", "1", "--metric", "instructions/o", "--json")
    found = json.loads(printed(*words, status=2))
    [line] = found["series"]["lines"]
    gaps = [each["release"] for each in line["releases"] if each["ratio"] is None]
    assert gaps == ["1.0.9"]
    slow = [tag for tag in git(repo, "tag", "--contains", ANSWERS[repo].commit).splitlines() if tag != "v1.1"]
    [step] = [step for step in line["steps"] if step["since"] == min(slow, key=lambda tag: int(tag[5:]))[1:]]
    assert step["worse"]
    assert step["ratio"]["low"] > 1.2
    hunt = found["series"]["hunts"][0]
    start = f"bisect run {hunt['good']} {hunt['bad']} --workload update-index --builder demo "
    assert hunt["command"].startswith(start)
    assert f"--repo {repo}" in hunt["command"]
    assert "--direction" not in hunt["command"], "more instructions are the usual change for the worse"
    left_out = [["1.0.2.1", "1.0.10 does not contain it"], ["1.0.3-rc1", "a pre-release"]]
    assert found["settings"]["series"]["left_out"] == left_out
    shown = printed("show", "c1")
    assert "update-index: instructions/o relative to 1.0.1" in shown
    assert hunt["command"] in shown
    assert "| after | since | within (95 %) |" in printed("show", "c1", "--markdown")
    head = "after\tsince\tnot before\tnot after\tratio\tlow\thigh\treal\tworkload"
    assert head in printed("show", "c1", "--tsv")
    assert re.search(r"^c1 .* 1\.0\.1\.\.1\.0\.10 .*compared", printed("history"), re.MULTILINE)
    page = tmp_path / "c1.html"
    exits(0, "report", "c1", "-o", str(page))
    assert 'class="chart series"' in page.read_text()
