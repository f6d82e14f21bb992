"""Repositories with SHA-256, and names that are not UTF-8: they work, or are refused before anything is built."""

import os
import subprocess
from pathlib import Path

import pytest

from machine import PROJECT, Machine, why_not
from perfbisect.host.local import LocalHost
from perfbisect.host.registry import connect
from perfbisect.lab.build import checkout
from perfbisect.recipes.inventory import HostEntry
from perfbisect.repository.commits import describe, resolve
from perfbisect.repository.discovery import is_dirty, open_repository
from perfbisect.repository.range import read_range
from program import bisect, rows
from waiting import finish

pytestmark = pytest.mark.tools

COMMITS, CULPRIT = 5, 3


def speeds(repo: Path, object_format: str = "sha256", extra: bytes = b"") -> list[str]:
    """A repository with a script that is slower from one commit on; with a file named ``extra`` that changes as well."""
    subprocess.run(["git", "init", "-q", "-b", "main", f"--object-format={object_format}", repo], check=True)
    hashes = []
    for number in range(COMMITS):
        rate = 1000 if number < CULPRIT else 700
        (repo / "run.sh").write_text(f"echo rate $(({rate} + $(od -An -N1 -tu1 /dev/urandom) % 9)) # {number}\n")
        if extra:
            Path(os.fsdecode(os.fsencode(repo) + b"/" + extra)).write_text(f"{number}\n")
        run = ["git", "-C", repo]
        subprocess.run([*run, "add", "-A"], check=True)
        subprocess.run([*run, "commit", "-q", "-m", f"change {number}"], check=True)
        subprocess.run([*run, "tag", f"v{number}"], check=True)
        hashes.append(
            subprocess.run([*run, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
        )
    return hashes


HUNT = ["run", "v0", f"v{COMMITS - 1}", "--build", "true", "--run", "sh run.sh", "--rate", r"rate (\d+)"]
HUNT += ["--no-explain", "--plain"]


@pytest.mark.e2e
def test_a_whole_hunt(tmp_path: Path) -> None:
    hashes = speeds(tmp_path / "repo", extra=b"caf\xe9\n\xff.c")
    history = str(tmp_path / "h.db")
    done = bisect(*HUNT, "--repo", str(tmp_path / "repo"), "--history", history)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows(tmp_path / "h.db", "select culprit from culprits") == [(hashes[CULPRIT],)]
    for words in (["show"], ["show", "--markdown"], ["show", "--json"], ["replay"]):
        assert hashes[CULPRIT][:10] in bisect(*words, "--history", history).stdout


def test_sources_of_both_formats_reach_both_kinds_of_host(tmp_path: Path, host: LocalHost, seal: Path) -> None:
    """A host's mirror of the same name is made anew when the format changes, and stays otherwise."""
    if reason := why_not():
        pytest.skip(reason)
    made = {name: speeds(tmp_path / name, name, b"caf\xe9") for name in ("sha1", "sha256")}
    machine = Machine(seal / ".ssh", hidden=[PROJECT])
    try:
        machine.make_known()
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
    finally:
        machine.remove()


def test_a_folder_whose_name_is_not_utf8_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    repo = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    speeds(tmp_path / "repo", "sha1")
    (tmp_path / "repo").rename(repo)
    for words, cwd in ((["--repo", repo], tmp_path), ([], repo)):
        done = bisect(*HUNT, *words, "--history", str(tmp_path / "h.db"), cwd=cwd)  # type: ignore[arg-type]
        assert done.returncode == 3, done.stderr
        assert "caf\\xe9 is not UTF-8" in done.stderr


@pytest.mark.parametrize("name", [b"caf\xe9", b"\xff", b"v0\xc3", b"\xed\xa0\x80"])
def test_a_revision_that_is_not_utf8_is_unknown(tmp_path: Path, name: bytes) -> None:
    speeds(tmp_path / "repo", "sha1")
    odd = os.fsdecode(name)
    done = bisect(HUNT[0], odd, *HUNT[2:], "--repo", str(tmp_path / "repo"), "--history", str(tmp_path / "h.db"))
    assert done.returncode == 3, done.stderr
    assert "is neither a release nor a revision" in done.stderr
    subprocess.run([b"git", b"tag", name, b"v0"], cwd=tmp_path / "repo", check=True)
    again = bisect(HUNT[0], odd, *HUNT[2:], "--repo", str(tmp_path / "repo"), "--history", str(tmp_path / "h.db"))
    assert again.returncode == 3, again.stderr
