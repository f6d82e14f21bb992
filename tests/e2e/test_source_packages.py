"""A hunt in a history of a distribution's source package, by --run alone: how it is built is read from its tree."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from program import bisect, rows
from source_package import Absent, unpack

pytestmark = [pytest.mark.e2e, pytest.mark.dbms, pytest.mark.tools, pytest.mark.calibrate]

PACKAGE = "redis"
GET = re.compile(r"^int getGenericCommand\(client \*c\) \{\n", re.MULTILINE)
IDLE = "    for (volatile int turn = 0; turn < 200000; turn++);\n"  # for each key that is read
# A server of its own, without a port, for as long as the benchmark takes.
RUN = """\
src/redis-server --port 0 --unixsocket "$0/socket" --dir "$0" --save '' >/dev/null &
server=$!
until src/redis-cli -s "$0/socket" ping >/dev/null 2>&1; do kill -0 $server && sleep 0.05 || exit; done
src/redis-benchmark -s "$0/socket" -t get -n 5000 --csv
kill $server && wait $server
"""


@pytest.fixture
def commits(tmp_path: Path, git: Callable[..., str]) -> list[str]:
    """The package, then commits that change a file each; the third makes reading a key slow."""
    folder = tmp_path / "package"
    try:
        unpack(PACKAGE, folder)
    except Absent as absent:
        pytest.skip(str(absent))
    (tmp_path / "repo" / ".git").rename(folder / ".git")
    hashes = []
    for number, name in enumerate(["README.md", "t_hash.c", "t_string.c", "t_set.c", "t_list.c"]):
        source = folder / name if number == 0 else folder / "src" / name
        text = source.read_text() + (f"\nint change_{number};\n" if number else "")
        if name == "t_string.c":
            text, places = GET.subn(lambda found: found[0] + IDLE, text)
            assert places == 1
        source.write_text(text)
        git("add", "--all", "--force", cwd=folder)
        git("commit", "-q", "-m", f"change {number}", cwd=folder)
        hashes.append(git("rev-parse", "HEAD", cwd=folder))
    return hashes


def test_a_slow_command_of_a_server_is_found_without_a_recipe(tmp_path: Path, commits: list[str]) -> None:
    history = tmp_path / "history.db"
    hunt = ["run", commits[0], commits[-1], "--repo", str(tmp_path / "package"), "--configure", "MALLOC=libc"]
    hunt += ["--plain", "--no-explain"]
    run = shlex.join(["sh", "-c", RUN, "{data}"])
    ended = bisect(*hunt, "--run", run, "--rate", r'"GET","([0-9.]+)"', "--history", str(history))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert rows(history, "select culprit from culprits") == [(commits[2],)]
    builds = rows(history, "select cache_hits, cache_misses from builds where not reused order by at")
    (hits, misses), *later = builds
    assert hits < misses, "nothing was known to the compiler's cache"
    assert later
    assert all(hits > 5 * misses for hits, misses in later), builds
