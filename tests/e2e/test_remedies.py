"""Hunts in a history of which some commits do not compile any more, as they use a type whose header they do not include."""

import json
import signal
from pathlib import Path

import pytest

from program import Process, bisect, bisect_watched, rows
from repos import Repo
from small_hunt import BENCH, MAKEFILE, RATE

pytestmark = [pytest.mark.e2e, pytest.mark.tools]

COMMITS, CULPRIT = 16, 10
USED = BENCH.replace("int main(void) {", "COUNT counted(COUNT x) { return x; }\nint main(void) {")
WORK = "/* {} */\n#define WORK {}\n#define STATUS 0\n#define PAUSE 0\n#define COUNT {}\n"
RECIPE = """\
summary = "a small program"
driver = "small"
[build]
artifacts = ["bench"]
compile = [["sh", "-c", "cp -a {source}/. . && make CC={cc}"]]
install = [["sh", "-c", "mkdir -p {prefix} && cp bench {prefix}"]]
"""
HEADER = "--cflags '-include stdint.h'"
OPTION = "--cflags '-include stdint.h -Werror=int-conversion -Werror=int-to-pointer-cast'"


class Old:
    """A history whose commits of ``broken`` miss the header, and an inventory."""

    def __init__(self, folder: Path, broken: range, count: str = "uint64_t") -> None:
        self.folder, self.history = folder, folder / "h.db"
        (folder / "hosts.toml").write_text("")
        (folder / "builders" / "small").mkdir(parents=True)
        (folder / "builders" / "small" / "builder.toml").write_text(RECIPE)
        lines = (
            WORK.format(n, 3000 if n >= CULPRIT else 1000, count if n in broken else "unsigned long")
            for n in range(COMMITS)
        )
        trees = ({"bench.c": USED, "Makefile": MAKEFILE, "work.h": text} for text in lines)
        self.hashes = Repo(folder / "repo").history(trees)

    def words(self, *more: str) -> list[str]:
        quick = ["--no-layouts", "--pairing", "turns", "--no-explain", "--plain"]
        where = ["--repo", str(self.folder / "repo"), "--hosts", str(self.folder / "hosts.toml"), *self.kept]
        where += ["--builders", str(self.folder / "builders")]
        return ["run", "v0", f"v{COMMITS - 1}", "--run", "./bench", "--rate", RATE, *quick, *where, *more]

    @property
    def kept(self) -> list[str]:
        return ["--history", str(self.history)]

    def binaries(self) -> set[tuple[str, int]]:
        """Commits that were built, and how many binaries of each there were."""
        return set(rows(self.history, "select commit_hash, count(distinct binary_hash) from builds group by 1"))

    def check(self, said: str) -> None:
        """The culprit was found with the option, which is part of the verdict and of the command that repeats the hunt."""
        assert rows(self.history, "select culprit from culprits") == [(self.hashes[CULPRIT],)], said
        shown = json.loads(bisect("show", "--json", *self.kept).stdout)
        assert shown["verdict"][-1].endswith(
            f" does not build without {OPTION}, for a standard header that is missing: everything was built with that."
        )
        assert OPTION in shown["again"]
        assert (
            shown["settings"]["flags"]["cflags"]
            == "-include stdint.h -Werror=int-conversion -Werror=int-to-pointer-cast"
        )


@pytest.mark.slow
def test_an_end_that_misses_a_header_is_built_with_it_and_so_is_everything(tmp_path: Path) -> None:
    old = Old(tmp_path, range(12, COMMITS))
    ended = bisect(*old.words("--build", "make"))
    assert f"{old.hashes[-1][:10]} does not build without {OPTION}" in ended.stdout
    old.check(ended.stdout + ended.stderr)
    flags = rows(
        old.history, "select distinct json_extract(body, '$.facts.flags') from events where kind = 'BuildFinished'"
    )
    assert flags == [('[["--cflags","-include stdint.h -Werror=int-conversion -Werror=int-to-pointer-cast"]]',)]


@pytest.mark.slow
def test_three_candidates_that_miss_a_header_are_enough_and_equal_builds_keep_their_readings(tmp_path: Path) -> None:
    """Killed once it goes on with the option, and resumed."""
    old = Old(tmp_path, range(2, COMMITS - 1))

    def kill(line: str, process: Process) -> None:
        if " remedied " in line:
            process.send_signal(signal.SIGKILL)

    killed = bisect_watched(old.words("--builder", "small"), kill)
    assert killed.returncode == -signal.SIGKILL
    before = rows(old.history, "select count(*) from runs")
    assert before >= [(4,)], "both ends"
    assert rows(old.history, "select count(*) from skips") == [(2,)], "the third was tried instead"
    ended = bisect("resume", *old.kept, "--plain")
    old.check(killed.stdout + ended.stdout + ended.stderr)
    assert {count for _, count in old.binaries()} == {1}
    assert rows(old.history, "select max(n) from (select count(*) n from builds group by commit_hash)") == [(2,)]
    assert "no commit stands out yet" in ended.stdout, "the readings of the ends count"
    assert "next, for the ends" not in ended.stdout


@pytest.mark.slow
def test_builds_that_cannot_be_compared_are_measured_again(tmp_path: Path) -> None:
    old = Old(tmp_path, range(2, COMMITS - 1))
    ended = bisect(*old.words("--build", "make"))
    old.check(ended.stdout + ended.stderr)
    assert ended.stdout.count("next, for the ends") == 2, "builds by commands are never the same"


def test_without_remedies_and_for_other_errors_the_option_is_said(tmp_path: Path) -> None:
    old = Old(tmp_path, range(12, COMMITS))
    ended = bisect(*old.words("--build", "make", "--no-remedies"))
    assert ended.returncode == 4
    assert f"For a standard header that is missing: {HEADER}." in ended.stderr
    assert "Begin a new hunt: bisect run v0 v15 --build make" in ended.stderr
    assert f"{HEADER} --no-remedies --no-explain" in ended.stderr.replace("\n", " ")


def test_a_header_that_hides_what_a_source_asks_for_is_no_remedy(tmp_path: Path) -> None:
    """A function of GNU is declared only where the source's own definition comes before every header."""
    old = Old(tmp_path, range(12, COMMITS))
    repo = Repo(tmp_path / "repo")
    line = "#define _GNU_SOURCE\n#include <string.h>\nconst char *tail(const char *t) { return strchrnul(t, 'x'); }\n"
    work = WORK.format(99, 3000, "uint64_t")
    repo.write({"bench.c": line + USED, "work.h": work})
    bad = repo.commit()
    ended = bisect("run", "v0", bad, *old.words("--build", "make")[3:])
    assert ended.returncode == 4
    assert "it is tried with" in ended.stdout
    assert "does not compile: work.h" in ended.stderr, "and not for what the trial lacked"


def test_what_does_not_mend_is_said_with_the_error_that_follows(tmp_path: Path) -> None:
    old = Old(tmp_path, range(12, COMMITS), "uint64_t first(void); typedef absent")
    ended = bisect(*old.words("--build", "make"))
    assert ended.returncode == 4
    assert f"with {OPTION}: {old.hashes[-1][:10]} does not compile" in ended.stdout
