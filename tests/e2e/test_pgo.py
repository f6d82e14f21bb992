"""Optimisation with a profile, by real compilers: what trained builds are made of, and what is left behind.

Compilers move code that training never executed away from what it did. So the order of functions shows that a profile
was used.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import postgres
from program import bisect

pytestmark = [pytest.mark.e2e, pytest.mark.tools, pytest.mark.slow]

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
    """Whether `never` lies before `often` in the program of that build, as in no plain one."""
    symbols = subprocess.run(
        ["nm", f"{root}/builds/{key}/prefix/bin/prog"], capture_output=True, text=True, check=True
    ).stdout
    at = {line[19:]: int(line[:16], 16) for line in symbols.splitlines() if line[19:] in ("never", "often")}
    return at["never"] < at["often"]


@pytest.mark.parametrize(
    "variant",
    [
        "pgo",
        pytest.param(
            "clang-pgo",
            marks=pytest.mark.skipif(not profiling_clang(), reason=NO_CLANG),
        ),
    ],
)
def test_a_server_is_trained_and_built_by_its_profile(folder: Path, git: Callable[..., str], variant: str) -> None:
    """Once: what was trained is found again. Nothing stays in the tree or on the host."""
    with tempfile.TemporaryDirectory(prefix="lab") as root:  # short, for the sake of the socket
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


def test_what_cannot_be_trained_is_left_out_with_the_reason(folder: Path, git: Callable[..., str]) -> None:
    with tempfile.TemporaryDirectory(prefix="lab") as root:
        wrong = compare(folder, root, "v1", "v1@wrong")
        assert wrong.returncode == 3
        assert "There is no workload and no group 'asc' for small. Did you mean 'ask'?" in wrong.stderr
        (folder / "repo" / "Makefile").write_text(TRAINED["Makefile"].replace("$(CC)", "gcc"))
        git("commit", "-qam", "its own compiler")
        done = compare(folder, root, "v1", "HEAD", "v1@odd", "v1@unlinked", "HEAD@pgo")
        assert done.returncode == 2, done.stderr
        assert "v1@odd is left out: " in done.stderr
        assert "fails in its training with small/fails: it ended with status 127" in done.stderr
        assert "v1@unlinked is left out: the instrumented build of " in done.stderr
        assert "HEAD@pgo is left out: " in done.stderr
        assert "has no profile after its training with small/ask" in done.stderr
        assert "compiled and linked with {cflags} and {ldflags} of the variant" in done.stderr
        assert not [*Path(root, "jobs").glob("*-build-*")], "what failed is in its log"
        assert not Path(root, "work", "small", "profile").exists()


def test_what_a_host_lacks_for_training_is_said_before_anything_is_built(folder: Path) -> None:
    """And is no fault of the commit."""
    with tempfile.TemporaryDirectory(prefix="lab") as root:
        done = compare(folder, root, "v1@needy", "v1")
        assert "no-such-tool is not installed on host here" in done.stderr
        assert "is left out" not in done.stderr
        assert not Path(root, "work", "small", "prefix").exists()


def test_a_hunt_trains_every_candidate(folder: Path, git: Callable[..., str]) -> None:
    """Which are not linked in other layouts: the profile says where functions are."""
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
        assert "Layouts are not available: code that is optimised with a profile" in done.stdout
