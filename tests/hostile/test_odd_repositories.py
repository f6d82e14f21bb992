"""Invalid commits, SHA-256 repositories, file names that are not UTF-8, and unusual locales.

A commit that git cannot check out is skipped. No file is written outside of the checkout. The next checkout is exact.
"""

import os
import shutil
import signal
import subprocess
from contextlib import nullcontext
from pathlib import Path, PurePosixPath
from unittest import mock

import pytest

from fake_host import FakeHost
from perfbisect.errors import BuildFailed, CommandFailed, EnvironmentFailure
from perfbisect.host.local import LocalHost
from perfbisect.lab.building import checkout
from perfbisect.repository.commits import resolve_commit
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.range import read_range
from program import PROGRAM, bisect_until, rows, run
from repos import Repo
from traps import FILE, FOLDER, LINK, MODULE, Entry, OddTrees, forbidden
from waiting import finish

pytestmark = pytest.mark.tools

# Git checks out one of two conflicting entries, or reads an unknown mode as a known mode.
HARMLESS = {"file and folder of one name", "twice the same name", "link and folder of one name", "an unknown mode",
            "folder and link of one name", "a file of a submodule", "names in no order"}  # fmt: skip
UNREADABLE = {"no name", "a mode that is no number"}  # git walks no history that contains them


@pytest.fixture
def odd(git: Repo, tmp_path: Path) -> OddTrees:
    return OddTrees(tmp_path / "repo")


def commit(odd: OddTrees, entries: list[Entry], *parents: str) -> str:
    lines = [f"tree {odd.tree(*entries)}", *(f"parent {parent}" for parent in parents)]
    lines += [f"{who} T <t@example.org> 1600000000 +0000" for who in ("author", "committer")]
    return odd.write("commit", ("\n".join(lines) + "\n\nchange\n").encode())


def mirrored(host: LocalHost, odd: OddTrees) -> tuple[PurePosixPath, PurePosixPath]:
    """The host's mirror of the repository, and the folder of the checkout."""
    return finish(checkout.bring_mirror(host, open_repository(odd.repo), "n", []))[
        1
    ], host.root / "work" / "n" / "source"


def listing(folder: PurePosixPath) -> dict[str, str]:
    files = [path for path in Path(folder).rglob("*") if path.is_symlink() or not path.is_dir()]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def paths(host: LocalHost) -> set[Path]:
    """The paths below the root of a host, except for its work folders."""
    found = (path.relative_to(host.root) for path in Path(host.root).rglob("*"))
    return {path for path in found if "work" not in path.parts}


def test_invalid_tree_skips_its_commit_and_writes_no_file(odd: OddTrees, host: LocalHost, tmp_path: Path) -> None:
    repo = open_repository(odd.repo)
    fine = commit(odd, [(FILE, b"a", odd.blob(b"fine\n"))])
    bare, source = mirrored(host, odd)
    before = paths(host)
    for name, entries in forbidden(odd).items():
        sha = commit(odd, [(FILE, b"a", odd.blob(b"odd\n")), *entries()], fine)
        last = commit(odd, [(FILE, b"a", odd.blob(b"last\n"))], sha)
        with pytest.raises(EnvironmentFailure) if name in UNREADABLE else nullcontext():
            assert read_range(repo, fine, last, ["doc/**"]).candidates == (fine, sha, last), name
        skipped = []
        for step in (
            lambda sha=sha: checkout.filtered_tree(host, bare, sha, ["doc/**"]),
            lambda sha=sha: checkout.present_paths(host, bare, sha, ["z", "y/x"]),
            lambda sha=sha: checkout.checkout(host, bare, sha, source, ["doc/**"]),
        ):
            try:
                step()
            except BuildFailed as failed:
                skipped.append(failed)
        assert bool(skipped) == (name not in HARMLESS), name
        for failed in skipped:
            assert failed.stage == "checkout"
            assert str(failed).startswith(f"commit {sha[:10]} cannot be checked out: ")
            assert len(str(failed)) < 400 and Path(failed.log).read_text()
        checkout.checkout(host, bare, fine, source, [])
        assert listing(source) == {"a": "fine\n"}, name
    assert {path.parts[0] for path in paths(host) - before} <= {"logs", "git"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["repo", "root"]
    assert not Path("/tmp/outside").exists()


REPLACEMENTS = (
    'rm -rf "$1/z" && ln -s "$2" "$1/z"',
    'rm -rf "$1" && ln -s "$2" "$1"',
    'rm -rf "$1/z" "$1/a"; ln -s "$2" "$1/a"; ln -s "$2" "$1/new"; mkdir -p "$1/z" && ln -s "$2" "$1/z/y"',
    'ln -s "$2" "$1/z.tmp"; ln -sfn / "$1/root"',
)


def test_checkout_writes_through_no_link(odd: OddTrees, host: LocalHost, tmp_path: Path) -> None:
    """The link is in a commit, or a build has put the link in the place of a folder or of the checkout."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("not ours\n")
    link, folder = odd.blob(str(outside).encode()), odd.tree((FILE, b"x", odd.blob(b"x\n")), (FILE, b"y", odd.blob()))
    shas = [
        commit(odd, [(FILE, b"a", odd.blob()), (LINK, b"z", link)]),
        commit(odd, [(FILE, b"a", odd.blob()), (FOLDER, b"z", folder)]),
        commit(odd, [(LINK, b"a", link), (FOLDER, b"z", odd.tree((LINK, b"x", link), (FOLDER, b"y", folder)))]),
        commit(odd, [(LINK, b"z", link), (FOLDER, b"z", folder)]),
        commit(odd, [(FOLDER, b"Z", folder), (LINK, b"z", odd.blob(b"Z"))]),
    ]
    bare, source = mirrored(host, odd)
    for number, replacement in enumerate(REPLACEMENTS):
        for place, first in enumerate(shas):
            checkout.checkout(host, bare, first, source, [])
            host.run(["sh", "-c", replacement, "build", str(source), str(outside)])
            checkout.checkout(host, bare, shas[place + number - 3], source, ["doc/**"])
            assert not Path(source).is_symlink()
            assert listing(PurePosixPath(outside)) == {"x": "not ours\n"}
    checkout.checkout(host, bare, shas[1], source, [])
    assert listing(source) == {"a": "content\n", "z/x": "x\n", "z/y": "content\n"}


def test_submodules_are_empty_folders(odd: OddTrees, host: LocalHost, tmp_path: Path) -> None:
    """The contents of .gitmodules and .gitattributes have no effect."""
    trace = tmp_path / "trace"
    modules = (
        f'[submodule "m"]\n\tpath = m\n\turl = ext::touch {trace}\n\tupdate = !touch {trace}\n'
        f"[core]\n\tfsmonitor = touch {trace}\n\tworktree = {tmp_path}\n[include]\n\tpath = {trace}\n"
    )
    attributes = "* filter=evil diff=evil working-tree-encoding=UTF-16 ident export-subst\n"
    files = {".gitattributes": attributes, ".gitconfig": modules, ".gitmodules": modules, "a": "$Id$\n"}
    entries: list[Entry] = [(FILE, name.encode(), odd.blob(text.encode())) for name, text in files.items()]
    sha = commit(odd, [*entries, (MODULE, b"m", "1234512345" * 4)])
    bare, source = mirrored(host, odd)
    checkout.checkout(host, bare, sha, source, [])
    assert sorted(path.relative_to(source).as_posix() for path in Path(source).rglob("*")) == [*files, "m"]
    assert not trace.exists()


def test_checkout_error_of_the_host_does_not_skip_the_commit() -> None:
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
            told = f"commit 1234512345 cannot be checked out on host h: {reason}"
            assert status != 128 or str(caught.value).endswith(told)


SPEEDS, CULPRIT = 12, 9
ODD = {5: "a folder .git", 6: "a missing file", 3: "a missing folder", 2: "a name too long"}


def script_of(number: int, slow: int) -> str:
    """The benchmark script of a commit, which is slower from commit ``slow`` on."""
    return f"echo rate $(({1000 if number < slow else 700} + $(od -An -N1 -tu1 /dev/urandom) % 9)) # {number}\n"


@pytest.fixture
def history(odd: OddTrees, git: Repo) -> list[str]:
    """Twelve commits: four cannot be checked out, and from commit 9 on the benchmark script is slower."""
    entries = forbidden(odd)
    hashes: list[str] = []
    for number in range(SPEEDS):
        extra = entries[ODD[number]]() if number in ODD else []
        script = odd.blob(script_of(number, CULPRIT).encode())
        hashes.append(commit(odd, [*extra, (FILE, b"run.sh", script)], *hashes[-1:]))
        git("tag", f"v{number}", hashes[-1])
    return hashes


def hunt(tmp_path: Path, good: int, bad: int) -> list[str]:
    commands = ["--build", "true", "--run", "sh run.sh", "--rate", r"rate (\d+)", "--repo", str(tmp_path / "repo")]
    commands.append("--no-explain")
    return ["run", f"v{good}", f"v{bad}", *commands, "--history", str(tmp_path / "h.db")]


@pytest.mark.e2e
@pytest.mark.slow
def test_hunt_and_its_continuation_skip_invalid_commits(tmp_path: Path, history: list[str]) -> None:
    killed = bisect_until([*hunt(tmp_path, 0, SPEEDS - 1), "--json"], '"CandidateSkipped"', signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    assert "cannot be checked out: " in killed.stdout
    resumed = run("resume", "--plain", "--history", str(tmp_path / "h.db"))
    assert resumed.status == 0, resumed.out + resumed.err
    assert rows(tmp_path / "h.db", "select culprit from culprits") == [(history[CULPRIT],)]
    found = set(rows(tmp_path / "h.db", "select distinct commit_hash, stage from skips"))
    assert found
    assert found <= {(history[number], "checkout") for number in ODD}
    assert "(stage checkout)" in run("show", "--history", str(tmp_path / "h.db")).out


def test_hunt_fails_if_an_end_cannot_be_checked_out(tmp_path: Path, history: list[str]) -> None:
    sha = history[5][:10]
    why = f"commit {sha} cannot be checked out: error: invalid path '.git/config'"
    done, dry = (run(*hunt(tmp_path, 5, 8), form) for form in ("--plain", "--dry-run"))
    assert (done.status, dry.status) == (4, 4)
    assert f"because the good revision, {sha}, cannot be built: {why}" in done.out + done.err
    assert why in dry.err


# Other formats, locales, and names that are not UTF-8


@pytest.fixture(scope="module")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with locales that have a decimal comma, Turkish letters, and an encoding that lacks most characters."""
    folder = tmp_path_factory.mktemp("locales")
    for name in ("C.UTF-8", "fr_FR.UTF-8", "tr_TR.UTF-8", "en_US.ISO-8859-1"):
        language, _, encoding = name.partition(".")
        if not shutil.which("localedef") or not Path("/usr/share/i18n/locales", language).exists():
            pytest.skip("no sources of locales")
        subprocess.run(["localedef", "-c", "-i", language, "-f", encoding, str(folder / name)], check=False)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("locale", ["LC_NUMERIC=fr_FR.UTF-8", "LC_ALL=tr_TR.UTF-8", "LC_ALL=en_US.ISO-8859-1"])
def test_locale_changes_neither_builds_nor_locks_nor_histories(
    locales: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locale: str
) -> None:
    """The second session finds its host and its builds in the history."""
    git = Repo(tmp_path / "dépôt …")
    for text in ("1", "2"):
        git.commit({"télé": text}, f"été … {text}")
    monkeypatch.delenv("LC_ALL")
    variable, _, name = locale.partition("=")
    for key, value in {"LOCPATH": str(locales), variable: name, "LANGUAGE": name}.items():
        monkeypatch.setenv(key, value)
    command = ["--repo", str(git.path), "--build", "sh -c 'echo $LC_ALL >seen'", "--run", "grep -qx C seen"]
    argv = [*PROGRAM, "compare", "HEAD~1", "HEAD", *command, "--visits", "1", "--runs", "1", "--history", "h.db"]
    for said in ("building", "round"):
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert said.encode() in done.stderr
    assert "été".encode(name.partition(".")[2]) in done.stderr
    assert rows(tmp_path / "h.db", "select subject from commits order by 1") == [("été … 1",), ("été … 2",)]


COMMITS, SLOW = 5, 3


def speeds(repo: Path, object_format: str = "sha1", extra: bytes = b"") -> list[str]:
    """Make a repository whose script is slower from commit 3 on; each commit also changes a file named ``extra``."""
    with mock.patch.dict(os.environ, GIT_DEFAULT_HASH=object_format):
        git = Repo(repo)
    changes = [{os.fsdecode(extra): f"{number}\n"} if extra else {} for number in range(COMMITS)]
    return git.history(change | {"run.sh": script_of(number, SLOW)} for number, change in enumerate(changes))


HUNT = ["run", "v0", f"v{COMMITS - 1}", "--build", "true", "--run", "sh run.sh", "--rate", r"rate (\d+)"]
HUNT += ["--no-explain", "--plain"]


@pytest.mark.e2e
def test_hunt_works_with_sha256_and_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    hashes = speeds(tmp_path / "repo", "sha256", extra=b"caf\xe9\n\xff.c")
    done = run(*HUNT, "--repo", str(tmp_path / "repo"), "--history", str(tmp_path / "h.db"))
    assert done.status == 0, done.out + done.err
    assert rows(tmp_path / "h.db", "select culprit from culprits") == [(hashes[SLOW],)]
    for words in (["show"], ["show", "--markdown"], ["show", "--json"], ["replay"]):
        assert hashes[SLOW][:10] in run(*words, "--history", str(tmp_path / "h.db")).out


def test_mirror_is_made_anew_when_the_object_format_changes(tmp_path: Path, host: LocalHost) -> None:
    """If the format stays the same, the mirror is kept."""
    made = {name: speeds(tmp_path / name, name, b"caf\xe9") for name in ("sha1", "sha256")}
    mark = Path(host.root, "git", "n.git", "mark")
    for name, kept in (("sha256", False), ("sha1", False), ("sha1", True), ("sha256", False)):
        repo, commits = open_repository(tmp_path / name), made[name]
        assert resolve_commit(repo, commits[2][:8], []) == resolve_commit(repo, "v2", []) == commits[2]
        bare = finish(checkout.bring_mirror(host, repo, "n", [commits[-1]]))[1]
        source = host.root / "work" / "n" / "source"
        checkout.checkout(host, bare, commits[2], source, [])
        assert "# 2" in Path(source, "run.sh").read_text()
        assert host.run(["sh", "-c", 'cat "$1"/caf*', "cat", str(source)]).stdout == "2\n"
        assert checkout.present_paths(host, bare, commits[2], ["run.sh", "caf\N{REPLACEMENT CHARACTER}"]) == {"run.sh"}
        assert mark.exists() == kept
        mark.touch()
