"""`bisect compare`: real comparisons, failures, series of releases, and hunts for the drops of a comparison."""

import json
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

import postgres
import sample_hunt as sample
from perfbisect.core.domain.facts import TrialRun
from perfbisect.core.domain.settings import Settings, TrialBuild, TrialWorkload
from perfbisect.demo.history import DemoAnswer, write_history
from perfbisect.errors import Interrupted, UsageError
from perfbisect.hunt.drop_hunts import huntable_drops
from perfbisect.hunt.resolve import resolve_settings
from perfbisect.store.history import History
from program import SCRIPT, bisect_until, exits, printed, rows, run
from repos import Repo

pytestmark = pytest.mark.tools

Script = Callable[[str], str]
Demo = tuple[Repo, DemoAnswer]
HISTORY = ".local/state/perfbisect/history.db"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demo's repository, in which one commit slows update-index by about a half. Tests must not change it.

    Releases 1.0.1 to 1.0.8 and 1.0.10 can be built, 1.0.9 cannot. 1.0.3-rc1 is a pre-release, 1.0.2.1 is on a branch.
    """
    folder = tmp_path_factory.mktemp("demo") / "repo"
    answer, repo = write_history(folder, 7), Repo(folder)
    commits = repo("rev-list", "--reverse", "--first-parent", "v1.0..v1.1").splitlines()
    sound = [repo("rev-parse", "v1.0^{commit}"), *(commit for commit in commits if commit not in answer.broken)]
    for number in range(1, 9):
        repo("tag", f"v1.0.{number}", sound[(number - 1) * (len(sound) - 1) // 7])
    repo("checkout", "-q", "--detach", "v1.1")
    source = repo("ls-files", "*.c").splitlines()[0]
    whole = (folder / source).read_text()
    repo.commit({source: f"#error broken\n{whole}"}, tag="v1.0.9")
    repo.commit({source: whole}, tag="v1.0.10")
    repo("tag", "v1.0.3-rc1", "v1.0.2")
    repo("checkout", "-q", "v1.0.2")
    repo.commit(title="a fix of the branch", tag="v1.0.2.1")
    return repo, answer


def compare(demo: Demo, *words: str) -> list[str]:
    """The arguments of a short comparison of builds of the demo engine."""
    of_demo = ["--builder", "demo", "--repo", str(demo[0].path)]
    return ["compare", *words, *of_demo, "--warmup", "0.1", "--time", "1", "--runs", "1"]


@pytest.mark.slow
def test_compare_finds_slower_build_and_treats_equal_binaries_as_equal(demo: Demo, seal: Path, tmp_path: Path) -> None:
    """The builds: two revisions, and a tarball and a folder with the installed files of the first revision."""
    run(*compare(demo, "v1.0", "v1.0~0", "-w", "scan", "--visits", "1"))
    [prefix] = (seal / ".cache" / "perfbisect" / "builds").glob("*/prefix")
    folder, tarball = tmp_path / "demo-1.0", tmp_path / "demo-1.0.tar.xz"
    subprocess.run(["cp", "-a", str(prefix), str(folder)], check=True)
    subprocess.run(["tar", "-C", str(tmp_path), "-cJf", str(tarball), folder.name], check=True)
    builds = ["v1.0", "v1.1", f"packed={tarball}", f"folder={folder}"]
    words = compare(demo, *builds, "-w", "update-index", "--visits", "5")
    result = json.loads(printed(*words, "--metric", "cpu/o", "--json"))  # other processes may use this machine
    [row] = result["workloads"]
    slow, *alike = row["ratios"]
    assert slow["interval"]["low"] > 1.2 and row["counters"]["qps"][1] < 0.9
    assert all(each["rounds"] >= 5 for each in (slow, *alike)), "rounds that compared paired and interleaved runs count"
    for each in alike:  # 95 % of these intervals contain 1, and all are close to 1
        assert each["ratio"] == pytest.approx(1, abs=0.35)
        assert each["interval"]["low"] < 1.05 and each["interval"]["high"] > 0.95
    binaries = [subject["binary"] for subject in result["settings"]["subjects"]]
    assert binaries[0] == binaries[2] == binaries[3] != binaries[1]
    assert re.search(r"^c2 .* v1.0, v1.1, packed, folder .* compared$", printed("history"), re.MULTILINE)
    shown = printed("show", "c2")
    assert "cpu/o (above 1: worse) relative to: v1.0\ncol-1 : v1.1\ncol-2 : packed = " in shown
    assert "v1.0 and packed and folder have the same binary." in shown
    assert json.loads(printed("show", "c2", "--json"))["workloads"] == result["workloads"]


@pytest.mark.calibrate
@pytest.mark.dbms
@postgres.needs_postgres
def test_compare_measures_three_configurations_of_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's PostgreSQL by its path and by a link, and with two configurations without indexes, which are slower."""
    start = ["{prefix}/bin/postgres", *postgres.OPTIONS, "-c", "listen_addresses=", "-c", "config_file={config}"]
    config = 'config = "pg.conf"\nreserved = ["data_directory"]\n[server.sysbench]'
    table = postgres.served("{prefix}/bin", ["{prefix}/bin/no-such-program"]).replace("[server.sysbench]", config)
    shutil.copytree(Path(__file__).with_name("installed"), tmp_path, dirs_exist_ok=True)
    recipe = (tmp_path / "builders/pg/builder.toml").read_text().replace("START", json.dumps(start))
    files = {"builders/pg/builder.toml": recipe.replace("SERVED", table), "workloads/pg/suite.toml": postgres.SUITE}
    folder, other = postgres.BIN.parent, tmp_path / "other"
    other.symlink_to(folder)
    builds = [f"debian={folder}", f"other={other}", f"seq={folder}+seq", f"mine={folder}+my.conf"]
    monkeypatch.chdir(tmp_path)
    with tempfile.TemporaryDirectory(prefix="lab") as root:  # short: the path of a socket is limited
        postgres.write(tmp_path, {**files, "hosts.toml": f'[hosts.here]\nroot = "{root}"\n'})
        asked = ["--builder", "pg", "--workload", "one-row", "--host", "here", "--visits", "3", "--runs", "2"]
        asked += ["--metric", "cpu/o"]  # a busy machine changes CPU time little
        done = run("compare", *builds, *asked, *postgres.FOLDERS, "--json")
    assert done.status == 0, done.err
    assert "of my.conf, data_directory is left out: the recipe decides that" in done.err
    result = json.loads(done.out)
    [row] = result["workloads"]
    again, *slower = [ratio["ratio"] for ratio in row["ratios"]]
    assert 0.5 < again < 2 and [ratio > 1.4 for ratio in slower] == [True, True], (again, slower)
    assert [ratio["rounds"] for ratio in row["ratios"]] == [3, 3, 3] and result["runs"] == 24
    subjects = result["settings"]["subjects"]
    argv = [postgres.BIN / "postgres", "--version"]
    assert subjects[0]["version"] in subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert len({each["key"] for each in subjects}) == 1, "the four names have the same binary"
    assert [each["config"] for each in subjects] == ["", "", "seq", str(tmp_path / "my.conf")]
    assert f" = {folder}+seq\n" in printed("show", "c1")


# The rate of each run is `level` plus the number of earlier runs modulo 8, so that the rates of runs differ.
RATE = "echo again >>{count}\necho rate $(({level} + $(wc -l <{count}) % 8))\n"


def test_comparison_of_command_resumes(git: Repo, seal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--run` takes a command instead of recipes. The first line that `compare` prints is the result."""
    monkeypatch.chdir(git.path)
    for level in (100_000, 80_000):
        git.commit({"bench": RATE.format(level=level, count=tmp_path / "count")})
    command = ["--run", "sh bench", "--rate", "rate ([0-9]+)"]
    quick = ["--pairing", "interleaved", "--visits"]
    words = ["compare", "HEAD~1", "HEAD", *command, *quick, "3", "--runs", "1"]
    cut = bisect_until(words, "run 3 of 6", signal.SIGINT)
    assert cut.returncode == 130
    assert "Interrupted. All measurements are kept. To continue: bisect resume c1" in cut.stderr
    assert re.search(r"^c1 .* interrupted$", printed("history"), re.MULTILINE)
    done = run("resume", "c1")
    assert "continuing c1" in done.err
    assert re.match(
        r"HEAD is 20 % slower \((?:19\.9|20\.0)\d*–20\.\d+ %\) than HEAD~1: \d runs of each build\.\n", done.out
    )
    rounds = rows(seal / HISTORY, "select count(*) from runs group by round")
    assert rounds.count((2,)) == 3, "an incomplete round stays, under its own number"
    assert rows(seal / HISTORY, "select count(*) from sessions where ended is null") == [(0,)]
    assert "c1 is complete" in exits(3, "resume", "c1")
    assert "between rounds" in printed("noise", "local", "--rev", "HEAD", *command, *quick, "2", "--runs", "2")


@pytest.mark.parametrize("verb", ["run", "compare", "nightly"])
def test_build_system_is_printed_at_the_start(verb: str, git: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    git.history([{"Makefile": "all:\n\techo 0\n"}, {"Makefile": "all:\n\techo 1\n"}])
    monkeypatch.setattr("perfbisect.cli.commands.nightly.check_host_daily", lambda *_: None)
    stop = Mock(side_effect=UsageError("It would begin now."))
    monkeypatch.setattr("perfbisect.hunt.session.begin", stop)
    ends = ["HEAD"] if verb == "nightly" else ["HEAD~1", "HEAD"]
    said = exits(3, verb, *ends, "--repo", str(git.path), "--run", "true")
    assert "Built with make: make, then make install if the Makefile has this target\n" in said


# Builds and runs that fail.

HOW = [*SCRIPT, "--runs", "1"]
FAILS_LATER = """\
[ "$1" = one ] || echo again >>COUNT
[ "$1" = one ] || [ $(wc -l <COUNT) = 1 ] || exit 7
echo rate 50"""


def listed() -> list[tuple[str, str, str]]:
    """The id, the state and the failure of each session."""
    result = json.loads(exits(0, "history", "--json"))
    return [(each["id"], each["state"], each.get("failure") or "") for each in result]


def test_failed_build_and_failed_run_are_printed_and_stored(script: Script, tmp_path: Path) -> None:
    """A build that fails is left out of the comparison. If the baseline cannot be built, the comparison fails."""
    broken, base = script("does not build"), script("echo rate 100")
    other = script(FAILS_LATER.replace("COUNT", str(tmp_path / "count")))
    status, out, err = run("compare", base, broken, other, *HOW, "--workload", "all", "--visits", "2")
    reason = f"{other} fails in workload two: the command ended with status 7"
    assert status == 2, err
    assert f"{broken} is omitted: " in err and f"{broken} was not measured: " in out
    assert reason in err and reason in out and "  50.0 rate" in err
    assert len(re.findall(r"^ +– +0.50  (one|two)$", out, re.MULTILINE)) == 2, "runs before the failure count"
    assert re.search(r" compared$", exits(0, "history"), re.MULTILINE)
    assert reason in exits(0, "show", "c1")
    [skip] = json.loads(exits(0, "show", "c1", "--json"))["skips"]
    assert (skip["work"], skip["subject"], skip["facts"]["stage"]) == (1, 2, "run")
    assert f"{broken} cannot be built" in exits(4, "compare", broken, base, *HOW, "--visits", "1")
    number, state, failure = listed()[-1]
    assert (number, state, f"{broken} cannot be built" in failure) == ("c2", "failed", True)


def test_comparison_without_runs_says_why_and_can_be_repeated(script: Script, tmp_path: Path) -> None:
    """The same command begins a new session. `bisect resume` continues the latest unfinished session."""
    fixed = tmp_path / "fixed"
    builds = [script(f"[ -e {fixed} ] || exit 3; echo rate 200"), script("echo rate 100")]
    for number in (1, 2):
        err = exits(4, "compare", *builds, "--visits", "2", *HOW)
        assert f"Nothing was measured: {builds[0]} fails in workload one: the command ended with status 3" in err
        assert "continuing" not in err and f"To continue: bisect resume c{number}" in err
        name, state, failure = listed()[-1]
        assert (name, state, failure[:20]) == (f"c{number}", "failed", "Nothing was measured")
    fixed.touch()
    assert "0.50" in exits(0, "resume")
    assert "c2 is complete" in exits(3, "resume", "c2")


@pytest.mark.parametrize("whole", [0, 3])
def test_failed_noise_trial_is_stored_with_its_reason(script: Script, tmp_path: Path, whole: int) -> None:
    count = tmp_path / "count"
    build = script(f"echo again >>{count}; [ $(wc -l <{count}) -le {whole} ] || exit 7; echo rate $(wc -l <{count})")
    reason = f"{build} fails in workload one: the command ended with status 7"
    said = exits(4, "noise", "--rev", build, "--visits", "6", *HOW)
    assert reason in said and (whole or f"Nothing was measured: {reason}" in said)
    [entry] = json.loads(exits(0, "history", "--json"))
    assert (entry["id"], entry["state"], entry["runs"]) == ("n1", "failed", whole)
    result = json.loads(exits(0, "show", "n1", "--json"))
    assert reason in result["failure"] and result["settings"]["subjects"][0]["commit"] == build
    assert whole or (result["noise"], result["detectable"]) == (None, [])


# `--each-release`.


def test_dry_run_of_a_series_of_releases_lists_builds_and_time(demo: Demo) -> None:
    series = ["--each-release", "1.0.1..1.0.10", "-w", "update-index", "--visits", "3"]
    first, *others = printed(*compare(demo, *series, "--dry-run")).splitlines()
    assert first.startswith("10 builds: 1.0.1, 1.0.2, 1.0.3, ")
    assert "left out: 1.0.3-rc1 (a pre-release)" in others
    assert "left out: 1.0.2.1 (1.0.10 does not contain it)" in others
    assert "3 rounds of 10 visits; a visit: 1 run of one build in one workload" in others
    assert any("11 s a round" in line and "33 s" in line for line in others)
    assert "no hunts yet" in exits(3, "history"), "nothing is measured"


@pytest.mark.slow
def test_slower_release_is_a_step_and_broken_release_a_gap(demo: Demo) -> None:
    """The step is at the first release with the slow commit. The printed command starts a hunt for this commit."""
    repo, answer = demo
    how = ["-w", "update-index", "--visits", "1", "--metric", "instructions/o", "--json"]
    found = json.loads(printed(*compare(demo, "--each-release", "1.0.1..1.0.10", *how), status=2))
    [line] = found["series"]["lines"]
    assert [each["release"] for each in line["releases"] if each["ratio"] is None] == ["1.0.9"]
    slow = [tag for tag in repo("tag", "--contains", answer.commit).splitlines() if tag != "v1.1"]
    [step] = [step for step in line["steps"] if step["since"] == min(slow, key=lambda tag: int(tag[5:]))[1:]]
    assert step["worse"] and step["ratio"]["low"] > 1.2
    [hunt, *_] = found["series"]["hunts"]
    start = f"bisect run {hunt['good']} {hunt['bad']} --workload update-index --builder demo "
    assert hunt["command"].startswith(start) and f"--repo {repo.path}" in hunt["command"]
    assert "--direction" not in hunt["command"], "more instructions are the usual change for the worse"
    shown = printed("show", "c1")
    assert "update-index: instructions/o relative to 1.0.1" in shown and hunt["command"] in shown


# `--hunt`: hunts for the drops of a comparison.

NOISY = """\
# commit {number}
noise=$(od -An -N1 -tu1 /dev/urandom)
case $1 in
one) echo "rate $(({one} + noise))";;
two) echo "rate $((100000 + noise))";;
esac
"""
HUNTED = ["-b", "script", "-w", "one,two", "--repo", "repo", "--visits", "3", "--runs", "1", "--no-explain"]


@pytest.fixture
def commits(script: Script, git: Repo) -> list[str]:
    """Commits 0 to 6, with releases v1 (0), v2 (3) and v3 (6). Workload one becomes slower at commits 2 and 5."""
    hashes = []
    for number, release in enumerate(["v1", "", "", "v2", "", "", "v3"]):
        rate = round(100_000 * 0.8 ** sum(at <= number for at in (2, 5)))
        hashes.append(script(NOISY.format(number=number, one=rate)))
        if release:
            git("tag", release)
    return hashes


@pytest.mark.slow
def test_compare_hunts_for_a_drop_between_two_releases(commits: list[str]) -> None:
    """One command compares and hunts. All output formats of the comparison show the culprit."""
    status, out, err = run("compare", "v1", "v2", *HUNTED, "--hunt")
    assert status == 0, out + err
    assert re.search(rf"0\.80 {commits[2][:10]}  one\n", out)
    assert f"one, v1 to v2: {commits[2][:10]} change (hunt 2)" in out
    exits(0, "report", "c1", "-o", "c1.html")
    forms = [exits(0, "show", "c1", *form) for form in ((), ("--tsv",), ("--csv",), ("--markdown",))]
    assert all(commits[2][:10] in text for text in (*forms, Path("c1.html").read_text()))
    result = json.loads(exits(0, "show", "c1", "--json"))["hunts"]
    [found] = [(one["workload"], one["first"], one["last"], one["culprit"]) for one in result]
    assert found == ("one", "v1", "v2", commits[2])
    assert json.loads(exits(0, "compare", "c1", "--hunt", "--json"))["hunts"] == result, "nothing is hunted twice"
    assert len(re.findall(r"^ *\d+ ", exits(0, "history"), re.MULTILINE)) == 1


def compared(commits: Mapping[str, str], rates: Mapping[str, Sequence[float]], rounds: int = 3) -> int:
    """Store a comparison of these commits with the rates of each workload. Returns the number of the comparison."""
    names = [*commits.values()]
    settings = resolve_settings(Settings(
        names[0], names[-1], str(Path("repo").absolute()), "script", "one", "local",
        metric="rate", builders_path="builders", workloads_path="workloads",
    ))  # fmt: skip
    trial = sample.comparison(0, [], rounds=rounds, metric="rate")
    builds = tuple(TrialBuild(name, commit, key=commit) for name, commit in commits.items())
    works = tuple(TrialWorkload(work, "all", 0.0, 10.0) for work in rates)
    request = replace(trial.request, builder="script", subjects=builds, works=works)
    runs = [
        TrialRun(number, work, place, 0.0, 1.0, replace(sample.run(0, 1.0), commit=commit, reported=rate + number))
        for number in range(rounds)
        for work, each in enumerate(rates.values())
        for place, (commit, rate) in enumerate(zip(names, each, strict=True))
    ]
    with closing(History.open(None)) as history:
        number = sample.write_trial(history, replace(trial, request=request, runs=runs))
        history.update_settings(number, settings)
    return number


def test_dry_run_lists_the_hunts_that_would_begin(commits: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C in a hunt, `compare` prints the command that continues."""
    before = exits(0, "compare", "v1", "v3", *HUNTED, "--hunt", "--dry-run")
    assert "\nhunts for drops, v1 to v3: 6 candidate commits\n" in before
    assert "unknown, because the command decides when it ends; each visit also needs a copy of the data" in before
    compared({"v1": commits[0], "v3": commits[6]}, {"one": (10_000, 6_400), "two": (10_000, 8_000)})
    result = exits(0, "compare", "c1", "--hunt", "--dry-run")
    assert (
        result
        == "Drops to hunt in one and two, v1 to v3:\n  one: 36 % slower\n  two: 20 % slower\n  6 candidate commits\n"
    )
    alone = exits(0, "compare", "v1", "v3", "v3@lto", *HUNTED, "--hunt", "--dry-run")
    assert (
        "hunts for drops, v3@lto and other builds: none: a hunt needs two revisions with the same variant and configuration, and no other build has these."
        in alone
    )
    monkeypatch.setattr("perfbisect.hunt.drop_hunts.run_drop_hunts", Mock(side_effect=Interrupted("")))
    hunt = ["compare", "c1", "--hunt", "--no-explain"]
    assert f"To continue: bisect {' '.join(hunt)}" in exits(130, *hunt)


def test_no_hunt_begins_without_a_drop(commits: list[str]) -> None:
    """No hunt begins for a drop between a commit and its parent, nor after a single round, which cannot show a drop."""
    at = []
    for first, last, slow, rounds in ((0, 3, 8_000, 3), (1, 2, 8_000, 3), (2, 3, 10_000, 3), (0, 3, 8_000, 1)):
        at.append(compared({"a": commits[first], "b": commits[last]}, {"one": (10_000, slow)}, rounds))
    with closing(History.open(None)) as history:
        assert [len(huntable_drops(None, history.read_trial(number))) for number in at] == [1, 0, 0, 0]
    status, out, err = run("compare", "c3", "--hunt", "--json")
    assert (status, json.loads(out)["hunts"]) == (0, [])
    assert "Comparison c3 has no drop that is significant and at least --min-effect" in err
    said = exits(0, "compare", "c4", "--hunt", "--dry-run")
    assert "so no hunt would begin. A drop can be significant only with 2 rounds or more: --visits 2" in said
