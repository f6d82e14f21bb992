"""Answers without an end and numbers without a bound."""

import json
import math
import os
import resource
import shutil
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from machine import Machine
from perfbisect.core.domain.metrics import quotient
from perfbisect.core.domain.orders import LARGEST_LOG, Interval
from perfbisect.core.inference.analysis import Contrast
from perfbisect.core.stats.paired_comparison import paired
from perfbisect.host.local import LocalHost
from perfbisect.host.registry import connect
from perfbisect.lab.build import checkout
from perfbisect.recipes.inventory import HostEntry
from perfbisect.repository.commits import describe, resolve
from perfbisect.repository.discovery import is_dirty, open_repository
from perfbisect.repository.range import read_range
from perfbisect.store.history import History
from perfbisect.wording.quantities import between, change, decimals, figure, ratio
from program import LIMIT, PROGRAM, bisect, rows, run
from repos import Repo
from waiting import finish

FORMS = ([], ["--csv"], ["--json"])
COUNT = "with recursive n(i) as (select 1 union all select i + 1 from n {limit}) select i, 'text ' || i as t from n"


@pytest.fixture
def history(tmp_path: Path) -> Path:
    path = tmp_path / "history.db"
    History.open(path).close()
    return path


@pytest.mark.tools
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_rows_of_a_query_without_an_end_appear(history: Path, form: list[str]) -> None:
    """The reader goes after some of them, which ends the query."""
    argv = [*PROGRAM, "query", COUNT.format(limit=""), *form, "--history", str(history)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [process.stdout.readline() for _ in range(5000)]
        process.stdout.close()
        said = process.stderr.read()
        assert (process.wait(timeout=LIMIT), said) == (0, "")
    assert "text 4000" in "".join(lines)


@pytest.mark.slow
@pytest.mark.tools
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_memory_of_a_query_does_not_grow_with_its_rows(history: Path, form: list[str], tmp_path: Path) -> None:
    """20,000 rows of 4 kB with an address space that would not hold a third of them."""
    sql = f"select i, t || '{'x' * 4000}' as t from ({COUNT.format(limit='where i < 20000')})"
    out = tmp_path / "out"

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (60 << 20, 60 << 20))

    with out.open("wb") as file:
        done = subprocess.run(
            [*PROGRAM, "query", sql, *form, "--history", str(history)],
            stdout=file, stderr=subprocess.PIPE, preexec_fn=bounded, check=False, timeout=LIMIT,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size > 80_000_000


@pytest.mark.parametrize("sql", ["select zeroblob(900000000)", "select hex(zeroblob(60000000))"])
def test_a_value_without_a_bound_is_refused(history: Path, sql: str) -> None:
    done = run("query", sql, "--csv", "--history", str(history))
    assert (done.status, done.out) == (3, "")
    assert done.err.startswith("Error: The query is wrong: string or blob too big.")


def test_a_wide_cell_behind_the_first_rows_is_shown_whole(history: Path) -> None:
    sql = f"select iif(i = 1500, '{'w' * 50}', 'x') as a, i from ({COUNT.format(limit='where i < 2000')})"
    lines = run("query", sql, "--history", str(history)).out.splitlines()
    assert len(lines) == 2001
    assert f"{'w' * 50}  1500" in lines
    assert "x  2000" in lines


def test_infinity_in_json_is_the_largest_number(history: Path) -> None:
    out = run("query", "select 9e999 as a, -9e999 as b, null as c", "--json", "--history", str(history)).out
    [row] = json.loads(out, parse_constant=pytest.fail)
    assert row == {"a": 1.7976931348623157e308, "b": -1.7976931348623157e308, "c": None}


@pytest.mark.parametrize("log", [0.0, 1e-300, 700.0, 710.0, 1480.0, -710.0, -1480.0, 1e308])
def test_every_ratio_is_a_number(log: float) -> None:
    found = paired({0: 0.0, 1: 0.0}, {0: log, 1: log / 2})
    assert found is not None
    assert found.interval is not None
    contrast = Contrast(log, 1.0, 3.0, 4.0, 0.1)
    for value in (found.ratio, *vars_of(found.interval), *vars_of(contrast.ratio(1.0)), *vars_of(contrast.ratio(-1.0))):
        assert math.exp(-LARGEST_LOG) <= value <= math.exp(LARGEST_LOG)
        assert len(figure(value)) < 20
    for words in (ratio(found.interval), between(found.interval), change(found.ratio), decimals(found.ratio, 2)):
        assert len(words) < 60


def vars_of(interval: Interval) -> tuple[float, float, float]:
    return interval.low, interval.middle, interval.high


def test_a_quotient_that_is_no_number_is_unknown() -> None:
    assert quotient(1e300, 1e-300) is None
    assert quotient(1.0, 4.0) == 0.25


@pytest.mark.tools
@pytest.mark.parametrize(
    ("good", "bad", "more"),
    [("1e308", "1e-308", ["--no-explain"]), pytest.param("1e-308", "1e308", [], marks=pytest.mark.calibrate)],
)
def test_rates_beyond_all_bounds_are_reported(git: Repo, good: str, bad: str, more: list[str]) -> None:
    git.history({"run.sh": f"echo rate {rate}\n"} for rate in (good, bad))
    command = ["--repo", str(git.path), "--build", "true", "--rate", "rate (.*)"]
    hunt = run("run", "HEAD~1", "HEAD", *command, "--run", "sh {prefix}/run.sh", "--direction", "any", "--plain", *more)
    assert hunt.status == 0, hunt.err
    assert hunt.err.count("\n") == 1, "what it takes"
    for words in (["show"], ["show", "--markdown"], ["history"], ["replay"], ["query", "select * from culprits"]):
        done = run(*words)
        assert done.status == 0, done.err
        assert max(map(len, done.out.splitlines())) < 300
    for words in (["show"], ["history"], ["query", "select * from culprits"], ["query", "select * from candidates"]):
        done = run(*words, "--json")
        json.loads(done.out, parse_constant=pytest.fail)


pytestmark = pytest.mark.tools


@pytest.fixture(scope="module")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with locales that have a decimal comma, Turkish letters, and an encoding without most signs."""
    folder = tmp_path_factory.mktemp("locales")
    for name in ("C.UTF-8", "de_DE.UTF-8", "fr_FR.UTF-8", "tr_TR.UTF-8", "en_US.ISO-8859-1"):
        language, _, encoding = name.partition(".")
        if not shutil.which("localedef") or not Path("/usr/share/i18n/locales", language).exists():
            pytest.skip("no sources of locales")
        subprocess.run(["localedef", "-c", "-i", language, "-f", encoding, str(folder / name)], check=False)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("LC_ALL", "de_DE.UTF-8"),
        ("LC_NUMERIC", "fr_FR.UTF-8"),
        ("LC_ALL", "tr_TR.UTF-8"),
        ("LC_ALL", "en_US.ISO-8859-1"),
    ],
)
def test_a_locale_changes_neither_builds_nor_locks_nor_histories(
    locales: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, name: str
) -> None:
    """Twice: the second session finds its host in the history, and its builds."""
    git = Repo(tmp_path / "dépôt …")
    for text in ("1", "2"):
        git.commit({"télé": text}, f"été … {text}")
    monkeypatch.delenv("LC_ALL")
    for key, value in {"LOCPATH": str(locales), variable: name, "LANGUAGE": name}.items():
        monkeypatch.setenv(key, value)
    command = ["--repo", str(git.path), "--build", "sh -c 'echo $LC_ALL >seen'", "--run", "grep -qx C seen"]
    argv = [*PROGRAM, "compare", "HEAD~1", "HEAD", *command, "--visits", "1", "--runs", "1", "--history", "h.db"]
    for said in ("building", "round"):
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert said.encode() in done.stderr
    assert "été".encode(name.partition(".")[2]) in done.stderr
    known = rows(tmp_path / "h.db", "select subject from commits order by 1")
    assert known == [("été … 1",), ("été … 2",)]


COMMITS, CULPRIT = 5, 3


def speeds(repo: Path, object_format: str = "sha256", extra: bytes = b"") -> list[str]:
    """A repository with a script that is slower from one commit on; with a file named ``extra`` that changes as well."""
    with mock.patch.dict(os.environ, GIT_DEFAULT_HASH=object_format):
        git = Repo(repo)
    hashes = []
    for number in range(COMMITS):
        rate = 1000 if number < CULPRIT else 700
        if extra:
            Path(os.fsdecode(os.fsencode(repo) + b"/" + extra)).write_text(f"{number}\n")
        script = f"echo rate $(({rate} + $(od -An -N1 -tu1 /dev/urandom) % 9)) # {number}\n"
        hashes.append(git.commit({"run.sh": script}, f"change {number}", f"v{number}"))
    return hashes


HUNT = ["run", "v0", f"v{COMMITS - 1}", "--build", "true", "--run", "sh run.sh", "--rate", r"rate (\d+)"]
HUNT += ["--no-explain", "--plain"]


@pytest.mark.e2e
def test_a_whole_hunt(tmp_path: Path) -> None:
    hashes = speeds(tmp_path / "repo", extra=b"caf\xe9\n\xff.c")
    done = run(*HUNT, "--repo", str(tmp_path / "repo"), "--history", str(tmp_path / "h.db"))
    assert done.status == 0, done.out + done.err
    assert rows(tmp_path / "h.db", "select culprit from culprits") == [(hashes[CULPRIT],)]
    for words in (["show"], ["show", "--markdown"], ["show", "--json"], ["replay"]):
        assert hashes[CULPRIT][:10] in run(*words, "--history", str(tmp_path / "h.db")).out


def test_sources_of_both_formats_reach_both_kinds_of_host(tmp_path: Path, host: LocalHost, machine: Machine) -> None:
    """A host's mirror of the same name is made anew when the format changes, and stays otherwise."""
    made = {name: speeds(tmp_path / name, name, b"caf\xe9") for name in ("sha1", "sha256")}
    with connect(HostEntry(name="far", address=machine.address, root=machine.root)) as far:
        for name, kept in (("sha256", False), ("sha1", False), ("sha1", True), ("sha256", False)):
            repo, commits = open_repository(tmp_path / name), made[name]
            assert repo.object_format == name
            assert resolve(repo, commits[2][:8], []) == resolve(repo, "v2", []) == commits[2]
            assert read_range(repo, commits[0], commits[-1], ["doc/**"]).candidates == tuple(commits)
            assert describe(repo, commits[1]).subject == "change 1"
            assert not is_dirty(repo)
            identities = set()
            for each in (host, far):
                bare = finish(checkout.mirror(each, repo, "n", [commits[-1]]))[1]
                source = each.root / "work" / "n" / "source"
                checkout.checkout(each, bare, commits[2], source, [])
                assert "# 2" in each.run(["cat", str(source / "run.sh")]).stdout
                assert each.run(["sh", "-c", 'cat "$1"/caf*', "cat", str(source)]).stdout == "2\n"
                identities.add(checkout.filtered_tree(each, bare, commits[2], ["doc/**"]))
                assert checkout.present(each, bare, commits[2], ["run.sh", "caf\N{REPLACEMENT CHARACTER}"]) == {
                    "run.sh"
                }
            assert len(identities) == 1
            mark = Path(host.root, "git", "n.git", "mark")
            assert mark.exists() == kept
            mark.touch()


def test_a_folder_whose_name_is_not_utf8_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    repo = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    speeds(tmp_path / "repo", "sha1")
    (tmp_path / "repo").rename(repo)
    for words, cwd in ((["--repo", repo], tmp_path), ([], repo)):
        done = bisect(*HUNT, *words, "--history", str(tmp_path / "h.db"), cwd=cwd)  # type: ignore[arg-type]
        assert done.returncode == 3, done.stderr
        assert "caf\\xe9 is not UTF-8" in done.stderr


def test_a_revision_that_is_not_utf8_is_unknown(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    speeds(repo, "sha1")
    for name in (b"caf\xe9", b"\xff", b"v0\xc3", b"\xed\xa0\x80"):
        words = [HUNT[0], os.fsdecode(name), *HUNT[2:], "--repo", str(repo), "--history", str(tmp_path / "h.db")]
        done = run(*words)
        assert done.status == 3, done.err
        assert "is neither a release nor a revision" in done.err
        subprocess.run([b"git", b"tag", name, b"v0"], cwd=repo, check=True)
        assert run(*words).status == 3
