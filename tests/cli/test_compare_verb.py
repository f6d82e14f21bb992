"""bisect compare: real comparisons of a system that is a script, and what of them fails."""

import json
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

import postgres
from perfbisect.demo.history import Answer, write_history
from perfbisect.errors import UsageError
from program import bisect_until, exits, printed, rows, run

pytestmark = pytest.mark.tools

ANSWERS: dict[Path, Answer] = {}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's history with a drop of about a half planted in update-index; not to be changed."""
    folder = tmp_path_factory.mktemp("demo") / "repo"
    ANSWERS[folder] = write_history(folder, 6)
    return folder


def compare(repo: Path, *words: str) -> list[str]:
    """Arguments of a comparison of builds of the demo's engine, short and quick."""
    return ["compare", *words, "--builder", "demo", "--repo", str(repo), "--warmup", "0.1", "--time", "1"]


def installed(seal: Path, folder: Path) -> Path:
    """What the only build in the host's root has installed, copied elsewhere."""
    [prefix] = (seal / ".cache" / "perfbisect" / "builds").glob("*/prefix")
    subprocess.run(["cp", "-a", str(prefix), str(folder)], check=True)
    return folder


@pytest.mark.slow
def test_a_planted_slowdown_is_seen_and_the_same_binary_is_not_slower(repo: Path, seal: Path, tmp_path: Path) -> None:
    """A revision, another, and a tarball and a folder of what the first one installs."""
    said = exits(3, *compare(repo, "v1.0", "again=v1.0", "-w", "scan", "--visits", "1", "--runs", "1"))
    assert "again" in said, "a name with = is for binaries"
    run(*compare(repo, "v1.0", "v1.0~0", "-w", "scan", "--visits", "1", "--runs", "1"))
    folder = installed(seal, tmp_path / "demo-1.0")
    tarball = tmp_path / "demo-1.0.tar.xz"
    subprocess.run(["tar", "-C", str(tmp_path), "-cJf", str(tarball), folder.name], check=True)
    builds = ["v1.0", "v1.1", f"packed={tarball}", f"folder={folder}"]
    words = compare(repo, *builds, "-w", "update-index", "--visits", "5", "--runs", "1")
    told = json.loads(printed(*words, "--metric", "cpu/o", "--json"))  # others may work on this machine, too
    [row] = told["workloads"]
    slow, *alike = row["ratios"]
    assert slow["interval"]["low"] > 1.2
    assert all(each["rounds"] >= 5 for each in (slow, *alike)), "those in which both ways were compared count, too"
    for each in alike:  # of 100 of these intervals 95 hold 1: far from it is none of them
        assert each["ratio"] == pytest.approx(1, abs=0.35)
        assert each["interval"]["low"] < 1.05
        assert each["interval"]["high"] > 0.95
    binaries = [subject["binary"] for subject in told["settings"]["subjects"]]
    assert binaries[0] == binaries[2] == binaries[3] != binaries[1]
    assert row["counters"]["qps"][1] < 0.9

    assert re.search(r"^c2 .* v1.0 v1.1 packed folder .* compared$", printed("history"), re.MULTILINE)
    shown = printed("show", "c2")
    assert "cpu/o (above 1: worse) relative to: v1.0\ncol-1 : v1.1\ncol-2 : packed = " in shown
    assert "v1.0 and packed and folder are the same binary." in shown
    assert re.search(r"^ *[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+  cpu/o$", shown, re.MULTILINE)
    assert json.loads(printed("show", "c2", "--json"))["workloads"] == told["workloads"]
    issue = printed("show", "c2", "--markdown")
    assert issue.startswith("## demo update-index: v1.0, v1.1, packed, folder\n\n- Comparison c2, ")
    assert "| col-1 | col-2 | col-3 | workload |" in issue
    assert "col-1\tcol-2\tcol-3\tworkload\n" in printed("show", "c2", "--tsv")


@pytest.mark.slow
def test_a_comparison_that_is_cut_goes_on(repo: Path, seal: Path) -> None:
    words = compare(repo, "v1.0", "v1.1", "-w", "update-index,point", "--visits", "2", "--runs", "1")
    cut = bisect_until(words, "run 6 of 8", signal.SIGINT)
    assert cut.returncode == 130
    assert "Interrupted. What was measured is kept; go on with: bisect resume c1" in cut.stderr
    assert "Throughput relative to: v1.0" in cut.stdout
    assert re.search(r"^c1 .* interrupted$", printed("history"), re.MULTILINE)
    done = run("resume", "c1")
    assert done.status == 0, done.err
    assert "continuing c1" in done.err
    assert "Throughput relative to: v1.0" in done.out
    history = seal / ".local/state/perfbisect/history.db"
    rounds = rows(history, "select round, count(*) from runs group by round order by round")
    assert [count for _, count in rounds if count == 4] == [4] * 2
    assert [count for _, count in rounds if count < 4], "the incomplete round stays, under its own number"
    assert rows(history, "select count(*) from sessions where ended is null") == [(0,)]
    assert "c1 is complete" in exits(3, "resume", "c1")


@pytest.mark.slow
def test_a_build_that_fails_is_left_out_and_one_that_is_the_base_is_not(repo: Path) -> None:
    broken = ANSWERS[repo].broken[0]
    done = run(*compare(repo, "v1.0", broken, "v1.1", "-w", "scan", "--visits", "1", "--runs", "1"))
    assert done.status == 2, done.err
    assert f"{broken} is left out: " in done.err
    assert re.search(r"^ +– +[\d.]+  scan$", done.out, re.MULTILINE)
    assert f"{broken} was not measured: " in done.out
    assert f"{broken} cannot be built" in exits(4, *compare(repo, broken, "v1.0", "-w", "scan"))


@pytest.mark.slow
def test_variants_of_one_revision_are_builds_of_their_own(repo: Path) -> None:
    """One of them is what the default builds, which is built once."""
    builds = ["v1.0", "v1.0@lto", "v1.0^0@o2nofp", "v1.0@pgo"]
    told = json.loads(printed(*compare(repo, *builds, "-w", "scan", "--visits", "1", "--runs", "1", "--json")))
    subjects = told["settings"]["subjects"]
    assert [each["name"] for each in subjects] == builds
    assert [each["variant"] for each in subjects] == ["", "lto", "", "pgo"]
    keys = [each["key"] for each in subjects]
    assert keys[0] == keys[2]
    assert len(set(keys)) == 3
    assert "v1.0 and v1.0^0@o2nofp are the same binary." in printed("show", "c1")
    wrong = exits(3, *compare(repo, "v1.0", "v1.0@lot", "-w", "scan"))
    assert "has no variant 'lot'. Did you mean 'lto'?" in wrong


SERVER = f"""
summary = "an installed PostgreSQL"
driver = "pgsql"
installed_version = ["{{prefix}}/bin/postgres", "--version"]
{postgres.served("{prefix}/bin", ["{prefix}/bin/no-such-program"])}
[[when]]
version = ">=9"
change.server.start = {json.dumps(["{prefix}/bin/postgres", *postgres.OPTIONS, "-c", "listen_addresses=", "-c", "fsync=off"])}
"""


@pytest.mark.calibrate
@pytest.mark.dbms
@postgres.needs_postgres
def test_an_installed_server_in_three_configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's own PostgreSQL, in place: as it is, through another path, with a config of the recipe and with a file of the
    user: indexes are used in the first two only.
    """
    recipe = SERVER.replace('"-c", "fsync=off"', '"-c", "config_file={config}"').replace(
        "[server.sysbench]", 'config = "pg.conf"\nreserved = ["data_directory"]\n[server.sysbench]'
    )
    recipe += '[configs.seq]\nsettings = {enable_indexscan = "off", enable_bitmapscan = "off"}\n'
    postgres.write(tmp_path, {
        "builders/pg/builder.toml": recipe,
        "builders/pg/pg.conf": "listen_addresses = ''\nfsync = off\n{settings}\n",
        "workloads/pg/suite.toml": postgres.SUITE,
        "my.conf": "data_directory = '/nowhere'\nenable_indexscan = off\nenable_bitmapscan = off\n",
    })  # fmt: skip
    folder, other = postgres.BIN.parent, tmp_path / "other"
    other.symlink_to(folder)
    builds = [f"debian={folder}", f"other={other}", f"seq={folder}+seq", f"mine={folder}+my.conf"]
    monkeypatch.chdir(tmp_path)
    with tempfile.TemporaryDirectory(prefix="lab") as root:  # short, for the sake of the socket
        (tmp_path / "hosts.toml").write_text(f'[hosts.here]\nroot = "{root}"\n')
        asked = ["--builder", "pg", "--workload", "one-row", "--host", "here", "--visits", "3", "--runs", "2"]
        asked += ["--metric", "cpu/o"]  # which a busy machine changes little
        done = run("compare", *builds, *asked, *postgres.FOLDERS, "--json")
    assert done.status == 0, done.err
    assert "of my.conf, data_directory is left out: the recipe decides that" in done.err
    told = json.loads(done.out)
    [row] = told["workloads"]
    again, *slower = [ratio["ratio"] for ratio in row["ratios"]]
    assert 0.5 < again < 2, (again, slower)
    assert [ratio > 1.4 for ratio in slower] == [True, True]
    assert [ratio["rounds"] for ratio in row["ratios"]] == [3, 3, 3]
    subjects = told["settings"]["subjects"]
    argv = [postgres.BIN / "postgres", "--version"]
    version = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert subjects[0]["version"] in version
    assert len({each["key"] for each in subjects}) == 1, "it is the same binary, whatever it is called"
    assert [each["config"] for each in subjects] == ["", "", "seq", str(tmp_path / "my.conf")]
    assert told["runs"] == 24
    assert f" = {folder}+seq\n" in printed("show", "c1")


# `bisect compare` where something fails on the way.


HOW = ["--builder", "script", "--repo", "repo", "--runs", "1"]
FAILS_LATER = """\
[ "$1" = one ] || echo again >>COUNT
[ "$1" = one ] || [ $(wc -l <COUNT) = 1 ] || exit 7
echo rate 50"""


def test_what_fails_on_the_way_is_said_kept_and_reported_later(script: Callable[[str], str], tmp_path: Path) -> None:
    base = script("echo rate 100")
    other = script(FAILS_LATER.replace("COUNT", str(tmp_path / "count")))
    status, out, err = run("compare", base, other, "--workload", "all", "--visits", "2", *HOW)
    reason = f"{other} fails in two: it ended with status 7"
    assert status == 2, err
    assert reason in err
    assert reason in out
    assert "  50.0 rate" in err
    assert len(re.findall(r"^ 0.50  (one|two)$", out, re.MULTILINE)) == 2, "what was measured counts"
    assert re.search(r" compared$", exits(0, "history"), re.MULTILINE)
    assert reason in exits(0, "show", "c1")
    [skip] = json.loads(exits(0, "show", "c1", "--json"))["skips"]
    assert (skip["work"], skip["subject"], skip["facts"]["stage"]) == (1, 1, "run")


def test_where_nothing_could_be_measured_it_is_said_why_and_begun_anew(script: Callable[[str], str]) -> None:
    builds = [script("exit 3 # now"), script("exit 3")]
    for number in (1, 2):
        err = exits(4, "compare", *builds, "--workload", "one", "--visits", "1", *HOW)
        assert f"Nothing was measured: {builds[0]} fails in one: it ended with status 3" in err
        assert "continuing" not in err
        [*_, last] = json.loads(exits(0, "history", "--json"))
        assert (last["id"], last["state"]) == (f"c{number}", "failed")
        assert last["failure"].startswith("Nothing was measured")


def test_a_base_that_does_not_build_is_listed_with_its_reason(script: Callable[[str], str]) -> None:
    builds = [script("does not build"), script("echo rate 100")]
    exits(4, "compare", *builds, "--workload", "one", "--visits", "1", *HOW)
    [failed] = json.loads(exits(0, "history", "--json"))
    assert (failed["id"], failed["state"]) == ("c1", "failed")
    assert f"{builds[0]} cannot be built" in failed["failure"]


def test_what_kept_a_comparison_from_measuring_anything_is_tried_again(
    script: Callable[[str], str], tmp_path: Path
) -> None:
    """The latest unfinished session goes on, whatever it is."""
    fixed = tmp_path / "fixed"
    builds = [script(f"[ -e {fixed} ] || exit 3; echo rate 200"), script("echo rate 100")]
    assert "go on with: bisect resume c1" in exits(4, "compare", *builds, "--workload", "one", "--visits", "2", *HOW)
    fixed.touch()
    assert "0.50" in exits(0, "resume")
    assert "c1 is complete" in exits(3, "resume", "c1")


def test_an_aa_of_a_build_that_fails_on_the_way_has_failed(script: Callable[[str], str], tmp_path: Path) -> None:
    count = tmp_path / "count"
    build = script(f"echo again >>{count}; [ $(wc -l <{count}) -le 3 ] || exit 7; echo rate $(wc -l <{count})")
    err = exits(4, "noise", "--rev", build, "--workload", "one", "--visits", "6", *HOW)
    assert f"{build} fails in one: it ended with status 7" in err
    [failed] = json.loads(exits(0, "history", "--json"))
    assert (failed["id"], failed["state"], failed["runs"]) == ("n1", "failed", 3)


def test_an_aa_that_fails_at_once_is_reported_with_its_reason(script: Callable[[str], str]) -> None:
    build = script("exit 7")
    exits(4, "noise", "--rev", build, "--workload", "one", *HOW)
    told = json.loads(exits(0, "show", "n1", "--json"))
    assert (told["id"], told["state"], told["noise"], told["detectable"]) == ("n1", "failed", None, [])
    assert f"{build} fails in one: it ended with status 7" in told["failure"]
    assert told["settings"]["subjects"][0]["commit"] == build


@pytest.mark.slow
def test_builds_are_compared_at_the_same_time(repo: Path, tmp_path: Path) -> None:
    words = compare(repo, "v1.0", "v1.1", "-w", "update-index", "--visits", "4", "--runs", "1", "--pairing", "together")
    told = json.loads(printed(*words, "--json", "--history", str(tmp_path / "h.db")))
    (row,) = told["workloads"]
    assert row["ratios"][0]["rounds"] == 4
    beside = rows(
        tmp_path / "h.db", "select json_extract(body, '$.facts.round') from events where kind = 'RunFinished'"
    )
    assert len(beside) == 8
    assert len(set(beside)) == 4


RATE = "echo rate $(({level} + $(od -An -N1 -tu1 /dev/urandom) / 32))\n"  # one of eight numbers


def test_any_two_commits_of_any_repository_are_compared_by_one_command(
    git: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a command in place of recipes; interrupted, it goes on. Its first line is the answer."""
    monkeypatch.chdir(tmp_path / "repo")
    for level in (1000, 800):
        (tmp_path / "repo" / "bench").write_text(RATE.format(level=level))
        git("add", ".")
        git("commit", "-qm", "change")
    command = ["--run", "sh bench", "--rate", "rate ([0-9]+)"]
    words = ["compare", "HEAD~1", "HEAD", *command, "--pairing", "turns", "--visits", "4", "--runs", "2"]
    cut = bisect_until(words, "run 3 of 16", signal.SIGINT)
    assert "bisect resume c1" in cut.stderr
    told = printed("resume", "c1")
    answer = re.match(
        r"HEAD is (20|19) % slower \((?:19|20)\.\d+–2[01]\.\d+ %\) than HEAD~1: (\d+) runs each\.\n", told
    )
    assert answer, told
    assert int(answer[2]) >= 8
    assert "between rounds" in printed("noise", "local", "--rev", "HEAD", *command, "--visits", "2", "--runs", "2")
    assert "--workload is missing" in exits(3, "compare", "HEAD~1", "HEAD", "--builder", "demo")
    assert "exclude each other" in exits(3, "noise", "local", "--rev", "HEAD", *command, "-w", "scan")


@pytest.mark.parametrize("verb", ["run", "compare", "nightly"])
def test_the_build_system_is_said_at_the_start(
    verb: str, tmp_path: Path, git: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        (tmp_path / "repo" / "Makefile").write_text(f"all:\n\techo {number}\n")
        git("add", ".")
        git("commit", "-qm", "change")
    monkeypatch.setattr("perfbisect.cli.commands.nightly.check", lambda *_: None)
    stop = Mock(side_effect=UsageError("It would begin now."))
    for module in ("hunt.session", "hunt.trials.session"):
        monkeypatch.setattr(f"perfbisect.{module}.begin", stop)
    ends = ["HEAD"] if verb == "nightly" else ["HEAD~1", "HEAD"]
    said = exits(3, verb, *ends, "--repo", str(tmp_path / "repo"), "--run", "true")
    assert "Built with make: make, and make install if the Makefile has it\n" in said
