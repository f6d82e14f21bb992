"""A commit that git cannot check out is skipped; nothing is written outside of the checkout, and the next one is exact."""

import re
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path, PurePosixPath

import pytest

from fake_host import FakeHost
from perfbisect.errors import BuildFailed, CommandFailed, EnvironmentFailure
from perfbisect.host.local import LocalHost
from perfbisect.lab.build import checkout
from perfbisect.lab.build.host_git import push
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.range import read_range
from program import Process, bisect_watched, rows, run
from traps import FILE, FOLDER, LINK, MODULE, Entry, OddTrees, forbidden
from waiting import finish

pytestmark = pytest.mark.tools

Git = Callable[..., str]

# git checks out one of two entries, or what it makes of the mode.
HARMLESS = {"file and folder of one name", "twice the same name", "link and folder of one name", "an unknown mode",
            "folder and link of one name", "a file of a submodule", "names in no order"}  # fmt: skip
UNREADABLE = {"no name", "a mode that is no number"}  # git walks no history that contains them


@pytest.fixture
def odd(git: Git, tmp_path: Path) -> OddTrees:
    return OddTrees(tmp_path / "repo")


def commit(odd: OddTrees, entries: list[Entry], *parents: str) -> str:
    lines = [f"tree {odd.tree(*entries)}", *(f"parent {parent}" for parent in parents)]
    lines += [f"{who} T <t@example.org> 1600000000 +0000" for who in ("author", "committer")]
    return odd.write("commit", ("\n".join(lines) + "\n\nchange\n").encode())


def listing(folder: PurePosixPath) -> dict[str, str]:
    files = [path for path in Path(folder).rglob("*") if path.is_symlink() or not path.is_dir()]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def test_every_odd_tree(odd: OddTrees, host: LocalHost, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    source = host.root / "work" / "n" / "source"
    repo = open_repository(odd.repo)
    fine = commit(odd, [(FILE, b"a", odd.blob(b"fine\n"))])
    bare = finish(checkout.mirror(host, repo, "n", []))[1]
    before = {path.relative_to(host.root) for path in Path(host.root).rglob("*") if "work" not in path.parts}
    for name, entries in forbidden(odd).items():
        sha = commit(odd, [(FILE, b"a", odd.blob(b"odd\n")), *entries()], fine)
        last = commit(odd, [(FILE, b"a", odd.blob(b"last\n"))], sha)
        try:
            assert read_range(repo, fine, last, ["doc/**"]).candidates == (fine, sha, last), name
            assert name not in UNREADABLE
        except EnvironmentFailure:
            assert name in UNREADABLE
        skipped = []
        for step in (
            lambda sha=sha: checkout.filtered_tree(host, bare, sha, ["doc/**"]),
            lambda sha=sha: checkout.present(host, bare, sha, ["z", "y/x"]),
            lambda sha=sha: checkout.checkout(host, bare, sha, source, ["doc/**"]),
        ):
            try:
                step()
            except BuildFailed as failed:
                skipped.append(failed)
        assert bool(skipped) == (name not in HARMLESS), name
        assert {failed.stage for failed in skipped} <= {"checkout"}
        assert all(str(failed).startswith(f"{sha[:10]} cannot be checked out: ") for failed in skipped)
        assert all(len(str(failed)) < 400 and Path(failed.log).read_text() for failed in skipped)
        checkout.checkout(host, bare, fine, source, [])
        assert listing(source) == {"a": "fine\n"}, name
        assert not list(outside.iterdir()), name
    after = {path.relative_to(host.root) for path in Path(host.root).rglob("*") if "work" not in path.parts}
    assert {path.parts[0] for path in after - before} <= {"logs", "git"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "repo", "root"]
    assert not Path("/tmp/outside").exists()


@pytest.mark.slow
def test_they_reach_another_machine(odd: OddTrees, host: LocalHost, tmp_path: Path, seal: Path) -> None:
    """As far as the repository has them: a commit is skipped there as it is here, whatever checks are configured."""
    (seal / ".gitconfig").write_text("[transfer]\n\tfsckObjects = true\n[receive]\n\tfsckObjects = true\n")
    bare = host.root / "sent.git"
    host.run(["git", "init", "-q", "--bare", str(bare)])
    repo = open_repository(odd.repo)
    incomplete = {
        name for name in forbidden(odd) if re.search("missing|damaged|that is a file|no name|no number", name)
    }
    source = host.root / "work" / "n" / "source"
    for name, entries in forbidden(odd).items():
        sha = commit(odd, [(FILE, b"a", odd.blob()), *entries()])
        failure = (
            (EnvironmentFailure, "/repo cannot be pushed to host here: ")
            if name in incomplete
            else (BuildFailed, "cannot be checked out: ")
        )
        with nullcontext() if name in HARMLESS else pytest.raises(failure[0], match=failure[1]):
            list(push(host, bare, repo, [sha]))
            checkout.checkout(host, bare, sha, source, [])


def test_no_path_leads_through_a_link(odd: OddTrees, host: LocalHost, tmp_path: Path) -> None:
    """Neither one of a commit, nor one that a build has put in the place of a folder or of the checkout itself."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("not ours\n")
    source = host.root / "work" / "n" / "source"
    repo = open_repository(odd.repo)
    link, folder = odd.blob(str(outside).encode()), odd.tree((FILE, b"x", odd.blob(b"x\n")), (FILE, b"y", odd.blob()))
    shas = [
        commit(odd, [(FILE, b"a", odd.blob()), (LINK, b"z", link)]),
        commit(odd, [(FILE, b"a", odd.blob()), (FOLDER, b"z", folder)]),
        commit(odd, [(LINK, b"a", link), (FOLDER, b"z", odd.tree((LINK, b"x", link), (FOLDER, b"y", folder)))]),
        commit(odd, [(LINK, b"z", link), (FOLDER, b"z", folder)]),
        commit(odd, [(FOLDER, b"Z", folder), (LINK, b"z", odd.blob(b"Z"))]),
    ]
    bare = finish(checkout.mirror(host, repo, "n", []))[1]
    replacements = [
        'rm -rf "$1/z" && ln -s "$2" "$1/z"',
        'rm -rf "$1" && ln -s "$2" "$1"',
        'rm -rf "$1/z" "$1/a"; ln -s "$2" "$1/a"; ln -s "$2" "$1/new"; mkdir -p "$1/z" && ln -s "$2" "$1/z/y"',
        'ln -s "$2" "$1/z.tmp"; ln -sfn / "$1/root"',
    ]
    for number, replacement in enumerate(replacements):
        for place, first in enumerate(shas):
            checkout.checkout(host, bare, first, source, [])
            host.run(["sh", "-c", replacement, "build", str(source), str(outside)])
            checkout.checkout(host, bare, shas[place + number - 3], source, ["doc/**"])
            assert not Path(source).is_symlink()
            assert listing(PurePosixPath(outside)) == {"x": "not ours\n"}
    checkout.checkout(host, bare, shas[1], source, [])
    assert listing(source) == {"a": "content\n", "z/x": "x\n", "z/y": "content\n"}


def test_submodules_are_empty_folders(odd: OddTrees, host: LocalHost, tmp_path: Path) -> None:
    """.gitmodules and .gitattributes are only files."""
    trace = tmp_path / "trace"
    modules = (
        f'[submodule "m"]\n\tpath = m\n\turl = ext::touch {trace}\n\tupdate = !touch {trace}\n'
        f"[core]\n\tfsmonitor = touch {trace}\n\tworktree = {tmp_path}\n[include]\n\tpath = {trace}\n"
    )
    attributes = "* filter=evil diff=evil working-tree-encoding=UTF-16 ident export-subst\n"
    files = {".gitattributes": attributes, ".gitconfig": modules, ".gitmodules": modules, "a": "$Id$\n"}
    entries: list[Entry] = [(FILE, name.encode(), odd.blob(text.encode())) for name, text in files.items()]
    sha = commit(odd, [*entries, (MODULE, b"m", "1234512345" * 4)])
    source = host.root / "work" / "n" / "source"
    bare = finish(checkout.mirror(host, open_repository(odd.repo), "n", []))[1]
    checkout.checkout(host, bare, sha, source, [])
    assert sorted(path.name for path in Path(source).iterdir()) == [*files, "m"]
    assert not list(Path(source, "m").iterdir())
    assert not trace.exists()


def test_what_the_host_cannot_do_is_not_the_commits_fault() -> None:
    for reason in (
        "error: unable to create file a: Permission denied",
        "fatal: cannot create directory at 'a': Read-only file system",
        "fatal: unable to write new index file: Disk quota exceeded",
        "error: unable to create file a: Operation not permitted",
        "error: file write error: Input/output error",
        'error: open("objects/pack/x.pack"): Too many open files',
        "fatal: Out of memory, malloc failed (tried to allocate 1073741825 bytes)",
    ):
        failed = CommandFailed("git failed", status=128, output=f"some progress\n{reason}\nmore\n")
        host = FakeHost("h", {"df *": "Avail\n99999999999\n", "git */source *": failed, "git *": ""})
        bare, source = host.root / "git" / "n.git", host.root / "work" / "source"
        for status in (128, 1, 2, 124, 137):
            failed.status = status
            with pytest.raises(EnvironmentFailure, match="cannot be checked out on host h") as caught:
                checkout.checkout(host, bare, "12345" * 8, source, [])
            assert status != 128 or str(caught.value).endswith(
                f"commit 1234512345 cannot be checked out on host h: {reason}"
            )


SPEEDS = 12
CULPRIT = 9
ODD = {5: "a folder .git", 6: "a missing file", 3: "a missing folder", 2: "a name too long"}


@pytest.fixture
def history(odd: OddTrees, git: Git) -> list[str]:
    """Commits of which four cannot be checked out, two of them in the middle of the range; one makes a script slower."""
    entries = forbidden(odd)
    hashes: list[str] = []
    for number in range(SPEEDS):
        rate = 1000 if number < CULPRIT else 700
        script = f"echo rate $(({rate} + $(od -An -N1 -tu1 /dev/urandom) % 9)) # {number}\n"
        extra = entries[ODD[number]]() if number in ODD else []
        hashes.append(commit(odd, [*extra, (FILE, b"run.sh", odd.blob(script.encode()))], *hashes[-1:]))
        git("tag", f"v{number}", hashes[-1])
    return hashes


def hunt(tmp_path: Path, good: int, bad: int) -> list[str]:
    commands = ["--build", "true", "--run", "sh run.sh", "--rate", r"rate (\d+)", "--repo", str(tmp_path / "repo")]
    commands.append("--no-explain")
    return ["run", f"v{good}", f"v{bad}", *commands, "--history", str(tmp_path / "h.db")]


@pytest.mark.e2e
@pytest.mark.slow
def test_a_hunt_skips_them_and_so_does_its_continuation(tmp_path: Path, history: list[str]) -> None:
    whole = run(*hunt(tmp_path, 0, SPEEDS - 1), "--plain")
    assert whole.status == 0, whole.out + whole.err
    skips = "select distinct commit_hash, stage from skips where session_id = {}"
    found = set(rows(tmp_path / "h.db", skips.format(1)))
    assert found
    assert found <= {(history[number], "checkout") for number in ODD}
    assert "cannot be checked out: " in whole.out

    def kill(line: str, process: Process) -> None:
        if '"CandidateSkipped"' in line:
            process.send_signal(signal.SIGKILL)

    killed = bisect_watched([*hunt(tmp_path, 0, SPEEDS - 1), "--json"], kill)
    assert killed.returncode == -signal.SIGKILL
    resumed = run("resume", "--plain", "--history", str(tmp_path / "h.db"))
    assert resumed.status == 0, resumed.out + resumed.err
    assert set(rows(tmp_path / "h.db", "select culprit from culprits")) == {(history[CULPRIT],)}
    assert set(rows(tmp_path / "h.db", skips.format(2))) <= {(history[number], "checkout") for number in ODD}
    assert "checkout: " in run("show", "--history", str(tmp_path / "h.db")).out


@pytest.mark.parametrize(
    ("end", "good", "bad", "reason"),
    [
        ("good", 5, 8, "error: invalid path '.git/config'"),
        pytest.param("bad", 4, 6, "error: unable to read sha1 file of z", marks=pytest.mark.slow),
    ],
)
def test_an_end_that_cannot_be_checked_out_ends_the_hunt(
    tmp_path: Path, history: list[str], end: str, good: int, bad: int, reason: str
) -> None:
    sha = history[good if end == "good" else bad][:10]
    why = f"{sha} cannot be checked out: {reason}"
    done, dry = (run(*hunt(tmp_path, good, bad), form) for form in ("--plain", "--dry-run"))
    assert (done.status, dry.status) == (4, 4)
    assert f"because the {end} end, {sha}, cannot be built: {why}" in done.out + done.err
    assert why in dry.err
