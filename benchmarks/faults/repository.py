"""The repository that is hunted in: a benchmark in C whose rate is computed, so that the right verdict is certain."""

import random
import subprocess
from dataclasses import dataclass
from pathlib import Path

SUBJECT = Path(__file__).parent / "subject"
FAST, SLOW = 1000, 600  # the rate before and after the planted change
BUILD, RUN = "sh ./build {side} {{jobs}}", "./bench {side}"
RATE = r"^rate: ([0-9.e+]+)$"


@dataclass(frozen=True, slots=True)
class Range:
    """The commits of a repository, oldest first, and what is wrong with them."""

    commits: tuple[str, ...]
    culprit: int | None  # the first slow one; None: nothing changed
    broken: frozenset[int]  # do not compile


def make_repository(folder: Path, random: random.Random) -> Range:
    """Write a repository with a line of commits, one of which may be slow, and one may not compile."""
    size = random.randint(16, 40)
    culprit = random.randrange(3, size - 2) if random.random() < 0.75 else None
    broken = {number for number in (random.randrange(2, size - 2),) if culprit is None or abs(number - culprit) > 1}
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    stream: list[str] = []
    files = {path.name: path.read_text() for path in sorted(SUBJECT.iterdir())}
    for number in range(size):
        level = SLOW if culprit is not None and number >= culprit else FAST
        more = "#error this commit does not compile\n" if number in broken else ""
        text = f"#define NUMBER {number}\n#define LEVEL {level}\n{more}"
        stream += [f"commit refs/heads/main\nmark :{number + 1}\n"]
        stream += [f"committer Author <author@example.org> {1_600_000_000 + 86400 * number} +0000\n"]
        stream += [_data(f"Change {number}")]
        stream += [_file(name, content) for name, content in files.items()] if not number else []
        stream += [_file("commit.h", text)]
    marks = folder / ".git" / "marks"
    importing = ["git", "-C", str(folder), "fast-import", "--quiet", f"--export-marks={marks}"]
    subprocess.run(importing, input="".join(stream), text=True, check=True)
    subprocess.run(["git", "-C", str(folder), "reset", "-q", "--hard"], check=True)
    found = dict(line.split() for line in marks.read_text().splitlines())
    return Range(tuple(found[f":{number + 1}"] for number in range(size)), culprit, frozenset(broken))


def _file(name: str, content: str) -> str:
    return f"M 100644 inline {name}\n{_data(content)}"


def _data(text: str) -> str:
    return f"data {len(text.encode())}\n{text}\n"
