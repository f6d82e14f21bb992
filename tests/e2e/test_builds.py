"""Hunts with special builds, by real compilers: old commits that lack a header, and builds optimised by a profile.

Compilers move code that the training never executed away from executed code, so the order of functions shows that a
profile was used.
"""

import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import postgres
from program import Process, bisect, bisect_watched, rows
from repos import Repo
from small_hunt import BENCH, MAKEFILE, RATE

pytestmark = [pytest.mark.e2e, pytest.mark.tools]

COMMITS, CULPRIT = 16, 10
USED = BENCH.replace("int main(void) {", "COUNT counted(COUNT x) { return x; }\nint main(void) {")
WORK = "/* {} */\n#define WORK {}\n#define STATUS 0\n#define PAUSE 0\n#define COUNT {}\n"
RECIPE = (Path(__file__).parent / "programs" / "small.toml").read_text()
HEADER = "--cflags '-include stdint.h'"
OPTION = "--cflags '-include stdint.h -Werror=int-conversion -Werror=int-to-pointer-cast'"


class Old:
    """A repository in which the commits ``broken`` lack a header, and a hosts.toml."""

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
        quick = ["--no-layouts", "--pairing", "interleaved", "--no-explain", "--plain"]
        where = ["--repo", str(self.folder / "repo"), "--hosts", str(self.folder / "hosts.toml"), *self.kept]
        where += ["--builders", str(self.folder / "builders")]
        return ["run", "v0", f"v{COMMITS - 1}", "--run", "./bench", "--rate", RATE, *quick, *where, *more]

    @property
    def kept(self) -> list[str]:
        return ["--history", str(self.history)]

    def binaries(self) -> set[tuple[str, int]]:
        """The built commits, each with its number of different binaries."""
        return set(rows(self.history, "select commit_hash, count(distinct binary_hash) from builds group by 1"))

    def check(self, said: str) -> None:
        """Assert that the culprit was found with the option, which verdict and repeated command contain."""
        assert rows(self.history, "select culprit from culprits") == [(self.hashes[CULPRIT],)], said
        shown = json.loads(bisect("show", "--json", *self.kept).stdout)
        assert shown["verdict"][-1].endswith(
            f" builds only with {OPTION}, because of a standard header that is missing: everything was built with that."
        )
        assert OPTION in shown["again"]
        assert (
            shown["settings"]["flags"]["cflags"]
            == "-include stdint.h -Werror=int-conversion -Werror=int-to-pointer-cast"
        )


@pytest.mark.slow
def test_end_that_lacks_a_header_makes_all_builds_use_the_option(tmp_path: Path) -> None:
    old = Old(tmp_path, range(12, COMMITS))
    ended = bisect(*old.words("--build", "make"))
    assert f"{old.hashes[-1][:10]} builds only with {OPTION}" in ended.stdout
    old.check(ended.stdout + ended.stderr)
    flags = rows(
        old.history, "select distinct json_extract(body, '$.facts.flags') from events where kind = 'BuildFinished'"
    )
    assert flags == [('[["--cflags","-include stdint.h -Werror=int-conversion -Werror=int-to-pointer-cast"]]',)]


@pytest.mark.slow
def test_three_candidates_that_lack_a_header_make_builds_use_the_option(tmp_path: Path) -> None:
    """The hunt is killed after it has added the option, then resumed. Unchanged binaries keep their readings."""
    old = Old(tmp_path, range(2, COMMITS - 1))

    def kill(line: str, process: Process) -> None:
        if " remedied " in line:
            process.send_signal(signal.SIGKILL)

    killed = bisect_watched(old.words("--builder", "small"), kill)
    assert killed.returncode == -signal.SIGKILL
    before = rows(old.history, "select count(*) from runs")
    assert before >= [(4,)], "both ends"
    assert rows(old.history, "select count(*) from skips") == [(2,)], "the third candidate was built with the option"
    ended = bisect("resume", *old.kept, "--plain")
    old.check(killed.stdout + ended.stdout + ended.stderr)
    assert {count for _, count in old.binaries()} == {1}
    assert rows(old.history, "select max(n) from (select count(*) n from builds group by commit_hash)") == [(2,)]
    assert "no commit is clearly most probable yet" in ended.stdout, "the readings of the ends count"
    assert "next: 2 runs of bad" not in ended.stdout


def test_error_advises_the_option_with_no_remedies(tmp_path: Path) -> None:
    old = Old(tmp_path, range(12, COMMITS))
    ended = bisect(*old.words("--build", "make", "--no-remedies"))
    assert ended.returncode == 4
    assert f"The cause is probably a standard header that is missing. Remedy: {HEADER}." in ended.stderr
    assert "Begin a new hunt: bisect run v0 v15 --build make" in ended.stderr
    assert f"{HEADER} --no-remedies --no-explain" in ended.stderr.replace("\n", " ")


def test_header_that_hides_a_needed_declaration_is_no_remedy(tmp_path: Path) -> None:
    """A GNU function is declared only if the source's own ``#define`` comes before each header."""
    old = Old(tmp_path, range(12, COMMITS))
    repo = Repo(tmp_path / "repo")
    line = "#define _GNU_SOURCE\n#include <string.h>\nconst char *tail(const char *t) { return strchrnul(t, 'x'); }\n"
    work = WORK.format(99, 3000, "uint64_t")
    repo.write({"bench.c": line + USED, "work.h": work})
    bad = repo.commit()
    ended = bisect("run", "v0", bad, *old.words("--build", "make")[3:])
    assert ended.returncode == 4
    assert "perfbisect builds it again with" in ended.stdout
    assert "does not compile: work.h" in ended.stderr, "the first error is reported"


def test_option_that_does_not_help_is_reported_with_the_next_error(tmp_path: Path) -> None:
    old = Old(tmp_path, range(12, COMMITS), "uint64_t first(void); typedef absent")
    ended = bisect(*old.words("--build", "make"))
    assert ended.returncode == 4
    assert f"with {OPTION}: {old.hashes[-1][:10]} does not compile" in ended.stdout


TRAINED = {file.name: file.read_text() for file in (Path(__file__).parent / "programs" / "trained").iterdir()}

NO_CLANG = "no clang with a profile: apt-get install clang llvm libclang-rt-dev"


def profiling_clang() -> bool:
    """Whether clang, the runtime of its profiles and the program that merges them are installed."""
    if not shutil.which("clang") or not shutil.which("llvm-profdata"):
        return False
    words = ["clang", "-fprofile-generate", "-x", "c", "-", "-o", "/dev/null"]
    return not subprocess.run(words, input=b"int main(void) { return 0; }", capture_output=True, check=False).returncode


@pytest.fixture
def folder(tmp_path: Path, git: Callable[..., str]) -> Path:
    """Recipes, a host, and a repository of one commit."""
    postgres.write(tmp_path, {
        "builders/small/builder.toml": TRAINED["builder.toml"],
        "workloads/small/suite.toml": TRAINED["suite.toml"],
        "repo/prog.c": TRAINED["prog.c"],
        "repo/Makefile": TRAINED["Makefile"],
    })  # fmt: skip
    git("add", ".")
    git("commit", "-qm", "first")
    git("tag", "v1")
    return tmp_path


def compare(folder: Path, root: str, *builds: str) -> subprocess.CompletedProcess[str]:
    (folder / "hosts.toml").write_text(f'[hosts.here]\nroot = "{root}"\n')
    folders = ["--builders", "builders", "--workloads", "workloads", "--hosts", "hosts.toml", "--repo", "repo"]
    how = ["--builder", "small", "--workload", "ask", "--host", "here", "--visits", "1", "--runs", "1"]
    return bisect("compare", *builds, *how, *folders, "--json", cwd=folder)


def moved(root: str, key: str) -> bool:
    """Whether `never` is before `often` in the program of a build, as only with a profile."""
    symbols = subprocess.run(
        ["nm", f"{root}/builds/{key}/prefix/bin/prog"], capture_output=True, text=True, check=True
    ).stdout
    at = {line[19:]: int(line[:16], 16) for line in symbols.splitlines() if line[19:] in ("never", "often")}
    return at["never"] < at["often"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant",
    [
        "pgo",
        pytest.param("clang-pgo", marks=pytest.mark.skipif(not profiling_clang(), reason=NO_CLANG)),
    ],
)
def test_trained_build_uses_its_profile_and_is_reused(folder: Path, git: Callable[..., str], variant: str) -> None:
    """The training leaves no files in the tree or on the host."""
    with tempfile.TemporaryDirectory(prefix="lab") as root:  # short, because the path of the socket is limited
        done = compare(folder, root, "v1", f"v1@{variant}")
        assert done.returncode == 0, done.stderr
        plain, trained = (each["key"] for each in json.loads(done.stdout)["settings"]["subjects"])
        assert not moved(root, plain)
        assert moved(root, trained)
        assert not Path(root, "work", "small", "profile").exists()
        assert not git("status", "--porcelain")
        made = Path(root, "builds", trained, "build.json").stat().st_mtime_ns
        again = compare(folder, root, "v1", f"v1@{variant}")
        assert [each["key"] for each in json.loads(again.stdout)["settings"]["subjects"]] == [plain, trained]
        assert Path(root, "builds", trained, "build.json").stat().st_mtime_ns == made


@pytest.mark.slow
def test_build_that_cannot_be_trained_is_omitted_with_the_reason(folder: Path, git: Callable[..., str]) -> None:
    with tempfile.TemporaryDirectory(prefix="lab") as root:
        wrong = compare(folder, root, "v1", "v1@wrong")
        assert wrong.returncode == 3
        assert "There is no workload and no group 'asc' for small. Did you mean 'ask'?" in wrong.stderr
        (folder / "repo" / "Makefile").write_text(TRAINED["Makefile"].replace("$(CC)", "gcc"))
        git("commit", "-qam", "its own compiler")
        done = compare(folder, root, "v1", "HEAD", "v1@odd", "v1@unlinked", "HEAD@pgo")
        assert done.returncode == 2, done.stderr
        assert "v1@odd is omitted: " in done.stderr
        assert "fails during the training with small/fails: the command ended with status 127" in done.stderr
        assert "v1@unlinked is omitted: the instrumented build of " in done.stderr
        assert "HEAD@pgo is omitted: " in done.stderr
        assert "has no profile after its training with small/ask" in done.stderr
        assert "compile and link with {cflags} and {ldflags} of the variant" in done.stderr
        assert not [*Path(root, "jobs").glob("*-build-*")], "the logs contain the failures"
        assert not Path(root, "work", "small", "profile").exists()


@pytest.mark.slow
def test_program_missing_for_training_is_reported_before_builds(folder: Path) -> None:
    """The commit is not skipped."""
    with tempfile.TemporaryDirectory(prefix="lab") as root:
        done = compare(folder, root, "v1@needy", "v1")
        assert "no-such-tool is not installed on host here" in done.stderr
        assert "is left out" not in done.stderr
        assert not Path(root, "work", "small", "prefix").exists()


@pytest.mark.slow
def test_hunt_trains_each_candidate(folder: Path, git: Callable[..., str]) -> None:
    """Randomized layouts are not available, because the profile determines the order of functions."""
    (folder / "repo" / "prog.c").write_text(TRAINED["prog.c"].replace("x * 5 + i", "x * 5 / (i + 1) + i / (x | 1) + i"))
    git("commit", "-qam", "slower")
    with tempfile.TemporaryDirectory(prefix="lab") as root:
        (folder / "hosts.toml").write_text(f'[hosts.here]\nroot = "{root}"\n')
        folders = ["--builders", "builders", "--workloads", "workloads", "--hosts", "hosts.toml", "--repo", "repo"]
        how = ["--builder", "small", "--workload", "ask", "--host", "here", "--max-runs", "4", "--plain"]
        done = bisect("run", "v1", "HEAD", "--variant", "pgo", *how, *folders, cwd=folder)
        assert done.returncode in (0, 1, 2), done.stderr
        keys = [path.parent.name for path in Path(root, "builds").glob("*/build.json")]
        assert len(keys) == 2
        assert all(moved(root, key) for key in keys)
        assert "Randomized layouts are not available: with profile-guided optimisation (PGO)" in done.stdout
