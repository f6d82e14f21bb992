"""`bisect narrow` with a real compiler: the part of the culprit's diff that makes it slower."""

import re
import signal
from pathlib import Path

import pytest

from program import bisect, bisect_until, exits
from repos import Repo, git
from small_hunt import BENCH, MAKEFILE, RATE, Hunt

pytestmark = [pytest.mark.e2e, pytest.mark.tools]

# The culprit changes six files. Its loop calls a function of a new file, which the changed Makefile compiles.
LINKED = (
    MAKEFILE.replace("bench: bench.o", "bench: bench.o helper.o").replace("$<\nbench.o", "$^\nbench.o")
    + "helper.o: helper.c\n\t$(CC) -O1 -c helper.c\n"
)
HELPER = "long half(long a)\n{\n    return a / 2;\n}\n\nlong further(long a)\n{\n    return half(a) * 0 + 6000;\n}\n\nlong unused(long a)\n{\n    return a;\n}\n"
WORK = "/* {} */\nlong further(long a);\n#define WORK {}\n#define STATUS 0\n#define PAUSE 0\n"


def test_narrow_names_the_part_after_a_kill_and_marks_it_on_the_page(tmp_path: Path) -> None:
    hunt = Hunt(tmp_path, commits=1, culprit=0)
    before = {"bench.c": BENCH + "/* end */\n" * 9, "notes.md": "a\n"}
    parent = Repo(hunt.repo).commit(before)
    called = before["bench.c"].replace("j < WORK;", "j < WORK + further(j);") + "/* last */\n"
    changed = {
        "bench.c": called,
        "Makefile": LINKED,
        "helper.c": HELPER,
        "work.h": WORK.format(2, 3000),
        "notes.md": "b\n",
        "more.md": "c\n",
    }
    culprit = Repo(hunt.repo).commit(changed, tag="v3")
    hunt.last, hunt.culprit = 3, culprit
    hunt.check(bisect(*hunt.words("--clean-builds")))
    refs, status = git(hunt.repo, "show-ref"), git(hunt.repo, "status", "--porcelain")
    killed = bisect_until(["narrow", *hunt.kept(), "--json"], '"RunFinished"', signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    ended = bisect(*hunt.resumed("--plain"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert hunt.ask("select commit_hash from builds where not reused group by 1 having count(*) > 1") == []
    shown = exits(0, "show", "2", *hunt.kept())
    [line] = [number for number, text in enumerate(called.splitlines(), 1) if "further" in text]
    assert f"The part of {culprit[:10]} is bench.c:{line} in main(): 9" in shown
    assert f"Put on {parent[:10]} with " in shown and f"\n{culprit[:10]} without it: " in shown
    assert re.search("repeat: +bisect narrow 1", shown.lower())
    assert f"hunt 2: The part of {culprit[:10]} is bench.c:{line}" in exits(0, "show", "1", *hunt.kept())
    page = tmp_path / "page.html"
    exits(0, "report", "2", *hunt.kept(), "--output", str(page))
    _, marked = page.read_text().split('class="hunk marked"')
    assert "further(j)" in marked.split('class="hunk')[0]
    assert (refs, status) == (git(hunt.repo, "show-ref"), git(hunt.repo, "status", "--porcelain"))


@pytest.mark.slow
def test_narrow_of_a_batch_on_two_hosts_resumes_with_more_time(tmp_path: Path) -> None:
    places = [f'[hosts.{name}]\nroot = "{tmp_path}/{name}"\njobs = 1\nclass = "pair"\n' for name in ("one", "two")]
    hunt = Hunt(tmp_path, "".join(places), commits=1, culprit=0)
    repo = Repo(hunt.repo)
    parent = repo.commit({"bench.c": BENCH, "more.c": "int more;\n"})
    culprit = repo.commit(
        {"work.h": WORK.format(2, 9000), "more.c": "int less;\n", "bench.c": BENCH + "/* end */\n"}, tag="v3"
    )
    file = tmp_path / "two.toml"
    file.write_text(
        f'[defaults]\ngood = "{parent}"\nbad = "v3"\nrepo = "{hunt.repo}"\nbuild = "make"\nrun = "./bench"\n'
        f'rate = \'{RATE}\'\nlayouts = false\nexplain = false\npairing = "interleaved"\nhosts = "{tmp_path}/hosts.toml"\n'
        'host = ["one", "two"]\n[[hunt]]\n[[hunt]]\ndirection = "rise"\n'
    )
    assert bisect("batch", str(file), *hunt.kept()).returncode == 1, "the second hunt finds no change"
    begun = bisect("narrow", "b1", "--max-time", "1s", *hunt.kept(), "--plain")
    assert begun.returncode == 2, begun.stdout + begun.stderr
    assert "Not searched: Hunt 2 named no culprit" in begun.stderr
    assert "Inconclusive: " in begun.stdout and "bisect resume 3 --max-time MORE" in begun.stdout
    assert "bisect narrow 1 --max-time 1s" in exits(0, "show", "3", *hunt.kept())
    ended = bisect("resume", "3", "--max-time", "10m", *hunt.kept(), "--plain")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"The part of {culprit[:10]} is work.h:" in ended.stdout and f"{culprit[:10]} without it: " in ended.stdout
