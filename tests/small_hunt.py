"""A whole hunt in seconds: a program in C whose loop takes three times as long from one commit on."""

import subprocess
from pathlib import Path
from typing import Any

from program import rows
from repos import Repo

MAKEFILE = "bench: bench.o\n\t$(CC) -o $@ $<\nbench.o: bench.c work.h\n\t$(CC) -O1 -c bench.c\n"
BENCH = (Path(__file__).parent / "given" / "bench.c").read_text()
RATE, OPERATIONS = '$.results[0]["ops/s"]', "$.results[0].operations"


class Hunt:
    """A repository, a hosts.toml, and a hunt with the history ``h.db``, all in one folder."""

    def __init__(
        self, folder: Path, hosts: str = "", *, commits: int = 8, culprit: int = 5, status: dict[int, str] | None = None,
        pause: float = 0.0, longer: float = 0.0, builds: tuple[str, ...] = ("make",),
    ) -> None:  # fmt: skip
        """``hosts`` is the text of hosts.toml, ``status`` the exit status of some commits, ``pause`` a run's sleep.

        From the culprit on, a run sleeps for ``longer`` more seconds.
        """
        self.folder, self.repo, self.last = folder, folder / "repo", commits - 1
        (folder / "hosts.toml").write_text(hosts)
        line = "/* {} */\n#define WORK {}\n#define STATUS {}\n#define PAUSE {}\n"
        works = ((3000, pause + longer) if number >= culprit else (1000, pause) for number in range(commits))
        texts = (
            line.format(n, work, (status or {}).get(n, "0"), round(sleep * 1e6))
            for n, (work, sleep) in enumerate(works)
        )
        self.hashes = Repo(self.repo).history(
            {"bench.c": BENCH, "Makefile": MAKEFILE, "work.h": text} for text in texts
        )
        self.culprit = self.hashes[culprit]
        self.asked = [*(word for each in builds for word in ("--build", each)), "--run", "./bench", "--rate", RATE]

    def words(self, *more: str, history: str = "h.db") -> list[str]:
        """The arguments of `bisect run`, with further options."""
        place = ["--repo", str(self.repo), "--hosts", str(self.folder / "hosts.toml"), *self.kept(history)]
        explained = [] if "--explain" in more else ["--no-explain"]
        quick = ["--no-layouts", "--pairing", "interleaved"]
        return ["run", "v0", f"v{self.last}", *self.asked, *quick, *explained, *place, *more]

    def kept(self, history: str = "h.db") -> list[str]:
        return ["--history", str(self.folder / history)]

    def resumed(self, form: str = "--json") -> list[str]:
        return ["resume", *self.kept(), form]

    def ask(self, sql: str, history: str = "h.db") -> list[tuple[Any, ...]]:
        return rows(self.folder / history, sql)

    def check(self, ended: subprocess.CompletedProcess[str], history: str = "h.db") -> None:
        """Check that the hunt named the culprit, that no host built a commit twice, and that no run is stored twice."""
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert self.ask("select culprit from culprits", history) == [(self.culprit,)]
        for what in ("started from runs", "commit_hash from builds where not reused"):
            assert self.ask(f"select host, {what} group by 1, 2 having count(*) > 1", history) == [], what
