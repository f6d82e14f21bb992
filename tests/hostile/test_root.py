"""Folders that are named as a root, and what is removed below one."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from machine import Machine
from perfbisect.errors import EnvironmentFailure
from perfbisect.host import registry
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import Host
from perfbisect.host.registry import MARKER
from perfbisect.lab import upkeep
from perfbisect.lab.upkeep import KEPT, tidy
from perfbisect.recipes.inventory import HostEntry
from program import bisect, bisect_until
from repos import Repo

pytestmark = pytest.mark.tools


def connect(root: Path | str) -> Host:
    return registry.connect(HostEntry(name="here", root=str(root)))


def refused(root: Path | str, why: str, *, also_adopted: bool = True) -> EnvironmentFailure:
    """The refusal of a root; nothing is written there."""
    before = listing(root) if isinstance(root, Path) else []
    with pytest.raises(EnvironmentFailure, match=why) as caught:
        connect(root)
    assert "`root`" in caught.value.advice
    if also_adopted:
        with pytest.raises(EnvironmentFailure, match=why):
            registry.adopt(HostEntry(name="here", root=str(root)))
    assert not isinstance(root, Path) or listing(root) == before
    return caught.value


def listing(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def marker_of(root: Path) -> str:
    return (root / MARKER).read_text()


def make_old(root: Path) -> None:
    """A root as versions without markers left it."""
    for name in ("builds", "datasets", "git", "jobs", "logs", "work", "ccache", "recipes", "scripts"):
        (root / name).mkdir(parents=True)
    (root / "lock.guard").touch()


def open_to_others(path: Path, top: Path) -> bool:
    """Whether other users may read a file, as far as folders from ``top`` on decide."""
    above = [folder for folder in path.parents if folder.is_relative_to(top)]
    return bool(path.stat().st_mode & 0o044) and all(folder.stat().st_mode & 0o011 for folder in above)


def test_commands_are_for_the_user_alone(tmp_path: Path, git: Repo) -> None:
    """In a root that an earlier version has left open, too. Servers that run as nobody must get through it."""
    root, repo = tmp_path / "root", tmp_path / "repo"
    connect(root)
    for folder in (root, *(root / name for name in ("jobs", "logs", "scripts"))):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
    for left in (root / "jobs" / "left" / "command", root / "builds" / "left" / "log"):
        left.parent.mkdir(parents=True)
        left.write_text("earlier-secret")
    git.history({"number": f"{number}\n"} for number in range(3))
    (tmp_path / "hosts.toml").write_text(f'[hosts.here]\nroot = "{root}"\n')
    words = ["run", "HEAD~2", "HEAD", "--repo", str(repo), "--hosts", str(tmp_path / "hosts.toml"), "--host", "here"]
    for build, run in (("false password=a-secret", "true"), ("echo password=a-secret", "false password=a-secret")):
        failed = bisect(*words, "--build", build, "--run", run, "--rate", r"rate (\d+)")
        assert failed.returncode == 4, failed.stdout + failed.stderr
    holding = [path for path in root.rglob("*") if path.is_file() and b"-secret" in path.read_bytes()]
    assert {path.relative_to(root).parts[0] for path in holding} >= {"jobs", "builds"}
    assert [path for path in holding if open_to_others(path, root)] == []
    modes = {name: (root / name).stat().st_mode & 0o777 for name in (".", "jobs", "logs", "scripts")}
    assert modes == {".": 0o711, "jobs": 0o700, "logs": 0o700, "scripts": 0o700}
    assert {path.stat().st_mode & 0o777 for path in root.glob("jobs/2*/command")} == {0o600}


def test_the_modes_of_a_shared_root_stay(tmp_path: Path) -> None:
    for mode in (0o2775, 0o700):
        root = tmp_path / f"{mode:o}"
        connect(root)
        root.chmod(mode)
        (root / "jobs").mkdir(mode=mode)
        (root / "jobs").chmod(mode)
        connect(root)
        assert (root.stat().st_mode & 0o7777, (root / "jobs").stat().st_mode & 0o7777) == (mode, mode)


def test_no_mode_is_changed_through_a_link(tmp_path: Path) -> None:
    root = tmp_path / "root"
    connect(root)
    (tmp_path / "mine").mkdir(mode=0o755)
    (root / "logs").symlink_to(tmp_path / "mine")
    connect(root)
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o755


# --- Which folder may be a root -----------------------------------------------------------------------------------


def test_a_new_and_an_empty_folder_get_a_marker(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "mounted" / "lost+found").mkdir(parents=True)
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / f"{MARKER}.aB3xYz").touch()  # another process was killed while it wrote the marker
    for name in ("new/below", "empty", "mounted", "killed"):
        assert connect(tmp_path / name).root == PurePosixPath(tmp_path, name)
        assert marker_of(tmp_path / name).startswith("perfbisect ")
        assert marker_of(tmp_path / name).count("\n") == 1
        (tmp_path / name / "anything").touch()
        connect(tmp_path / name)


@pytest.mark.parametrize(
    "name", ["photo.jpg", "tmp", "work", ".hidden", "-rf", "a\nb", "demo", "builds", "lock.guardian"]
)
def test_a_folder_with_anything_in_it_is_refused_until_it_is_adopted(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    (root / name).mkdir(parents=True)
    shown = name.replace("\n", "?")
    failure = refused(root, "contains files that are not perfbisect's: ", also_adopted=False)
    assert f": {shown};" in str(failure)
    assert "bisect doctor here --adopt" in failure.advice
    host, contents = registry.adopt(HostEntry(name="here", root=str(root)))
    assert (host.root, contents) == (PurePosixPath(root), (shown,))
    connect(root)
    assert registry.adopt(HostEntry(name="here", root=str(root)))[1] == ()


def test_of_many_files_some_are_named(tmp_path: Path) -> None:
    for number in range(5000):
        (tmp_path / f"file{number:04}").touch()
    refused(tmp_path, "s: file0000, file0001, file0002, file0003 and 4,996 more;", also_adopted=False)


def test_the_root_of_an_earlier_version_is_recognised(tmp_path: Path) -> None:
    make_old(tmp_path / "old")
    (tmp_path / "old" / "reflink.aB3xYz").mkdir()
    (tmp_path / "perfbisect" / "demo").mkdir(parents=True)  # as in ~/.cache, where `bisect demo` was
    (tmp_path / "perfbisect" / "repositories").mkdir()
    for name in ("old", "perfbisect"):
        connect(tmp_path / name)
        assert marker_of(tmp_path / name).startswith("perfbisect ")


@pytest.mark.parametrize("spoil", ["stranger", "no guard", "guard with text", "guard is a link", "guard is a folder"])
def test_what_is_merely_like_the_root_of_an_earlier_version_is_refused(tmp_path: Path, spoil: str) -> None:
    root = tmp_path / "old"
    make_old(root)
    guard = root / "lock.guard"
    if spoil == "stranger":
        (root / "thesis").mkdir()
    else:
        guard.unlink()
    if spoil == "guard with text":
        guard.write_text("mine")
    if spoil == "guard is a link":
        guard.symlink_to("/dev/null")
    if spoil == "guard is a folder":
        guard.mkdir()
    refused(root, "contains files that are not perfbisect's", also_adopted=False)


@pytest.mark.parametrize("root", ["/", "//", "/.", "/usr/..", "/proc/self/root"])
def test_the_top_is_refused_always(root: str) -> None:
    refused(root, "is the top of the file system")


def test_the_home_folder_is_refused_always(seal: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(seal)
    for root in ("~", "~/", "~/.", "~/x/..", seal, f"{seal}//", tmp_path / "link"):
        (seal / "x").mkdir(exist_ok=True)
        refused(root, "is your home folder")
    refused(seal.parent, "contains your home folder")
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    refused(f"~{user}", "is your home folder|is the top|contains your home")


@pytest.mark.parametrize("root", ["~no-such-user/x", "~$(id)", "~no-such-user"])
def test_a_user_that_does_not_exist_is_no_folder_of_that_name(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(root, "a user that does not exist there")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["clone", "bare", "worktree", "inside .git", "link", "broken link"])
def test_a_repository_is_refused_always(git: Repo, tmp_path: Path, kind: str) -> None:
    git("commit", "-q", "--allow-empty", "-m", "one")
    root = tmp_path / "repo"
    if kind == "bare":
        git("clone", "-q", "--bare", ".", str(tmp_path / "bare.git"))
        root = tmp_path / "bare.git"
    elif kind == "worktree":
        git("worktree", "add", "-q", str(tmp_path / "tree"))
        root = tmp_path / "tree"
    elif kind == "inside .git":
        root = root / ".git"
    elif kind == "link":
        root = tmp_path / "link"
        root.symlink_to(tmp_path / "repo")
    elif kind == "broken link":
        root = tmp_path / "odd"
        root.mkdir()
        (root / ".git").symlink_to("nowhere")
    refused(root, "is a git repository")


@pytest.mark.parametrize("kind", ["file", "broken link", "link to itself"])
def test_what_is_no_folder_is_refused(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "root"
    if kind == "file":
        root.write_text("kept")
    else:
        root.symlink_to("root" if kind == "link to itself" else "nowhere")
    refused(root, "cannot be created")
    assert os.path.lexists(root)


@pytest.mark.parametrize("kind", ["folder", "link", "empty", "another's"])
def test_a_marker_that_is_none_does_not_count(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "thesis").mkdir()
    marker = root / MARKER
    if kind == "folder":
        marker.mkdir()
    elif kind == "link":
        (tmp_path / "real").write_text("perfbisect 1 uses this folder\n")
        marker.symlink_to(tmp_path / "real")
    else:
        marker.write_text("" if kind == "empty" else "settings of mine\n")
    refused(root, "contains files that are not perfbisect's", also_adopted=False)
    with pytest.raises(EnvironmentFailure, match=r"has a \.perfbisect that perfbisect has not written"):
        registry.adopt(HostEntry(name="here", root=str(root)))


def test_a_root_is_not_made_where_another_root_removes_things(tmp_path: Path) -> None:
    connect(tmp_path / "one")
    (tmp_path / "one" / "tmp").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "one" / "tmp")
    for inner in ("one/tmp/two", "one/builds/a/b", "one/work", "link/two"):
        refused(tmp_path / inner, f"is inside of another root, {tmp_path}/one,")
    connect(tmp_path / "one" / "apart")  # nothing is removed there
    make_old(tmp_path / "git")
    connect(tmp_path / "git" / "two")  # not a root by its name alone
    assert sorted(path.name for path in (tmp_path / "one").iterdir() if path.name != MARKER)


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give a folder to another user")
@pytest.mark.parametrize("marker", ["", "perfbisect 1.0 uses this folder\n"])
@pytest.mark.parametrize("link", [False, True])
def test_a_folder_that_another_user_prepared_is_refused(tmp_path: Path, marker: str, link: bool) -> None:
    """A link in the place of a file of perfbisect would lead to one of this user's."""
    precious = tmp_path / "precious"
    precious.write_text("mine\n")
    prepared = tmp_path / "root"
    prepared.mkdir()
    (prepared / "lock.beat").symlink_to(precious)
    if marker:
        (prepared / MARKER).write_text(marker)
    for path in (prepared, *prepared.iterdir()):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    root = prepared
    if link:
        root = tmp_path / "link"
        root.symlink_to(prepared)
    for verb in (["gc", "h", "--keep", "0"], ["doctor", "h"]):
        (tmp_path / "hosts.toml").write_text(f'[hosts.h]\nroot = "{root}"\n')
        done = bisect(*verb, "--hosts", str(tmp_path / "hosts.toml"))
        assert "belongs to another user" in done.stdout + done.stderr
    assert precious.read_text() == "mine\n"
    refused(root, "belongs to another user", also_adopted=False)
    registry.adopt(HostEntry(name="here", root=str(root)))  # trusted from now on
    assert str(connect(root).root) == str(root)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
@pytest.mark.parametrize("made", ["empty", "old", "marked"])
def test_a_folder_that_anyone_may_write_to_is_refused(tmp_path: Path, mode: int, made: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    if made == "old":
        make_old(root)
    root.chmod(mode)
    if made == "marked":  # by this user, who trusts those who can write to it
        registry.adopt(HostEntry(name="here", root=str(root)))
        assert str(connect(root).root) == str(root)
    else:
        refused(root, "anyone may write to it", also_adopted=False)


def test_a_new_root_is_writable_for_its_user_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        host = connect(tmp_path / "deep" / "er")
    finally:
        os.umask(before)
    assert str(connect(tmp_path / "deep" / "er").root) == str(host.root)
    assert not Path(host.root).stat().st_mode & 0o002


def test_a_folder_that_a_group_may_write_to_is_accepted(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o2770)
    assert str(connect(root).root) == str(root)


@pytest.mark.parametrize("below", ["new", "refs/heads/new", "branches/deep/er", "hooks"])
def test_a_folder_inside_a_git_directory_is_refused_always(git: Repo, tmp_path: Path, below: str) -> None:
    for folder in (tmp_path / "repo/.git/hooks", tmp_path / "repo/.git" / below):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    refused(tmp_path / "repo/.git" / below, "is a git repository, or inside of one's own folder")


def test_a_link_is_judged_by_its_target_and_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    assert connect(tmp_path / "link").root == PurePosixPath(tmp_path, "link")
    assert marker_of(tmp_path / "disk")


def test_a_relative_root_begins_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CDPATH", "/")
    assert connect("usr/root").root == PurePosixPath(tmp_path, "usr/root")


def test_many_that_create_one_root_at_the_same_time(tmp_path: Path) -> None:
    """Each begins to work as soon as it has its root; none takes that for a stranger's."""
    script = (
        "import sys; from pathlib import Path; from perfbisect.host.registry import connect\n"
        "from perfbisect.recipes.inventory import HostEntry\n"
        "sys.stdin.read()\n"
        "for n in range(40):\n"
        "    root = connect(HostEntry(name='here', root=f'{sys.argv[1]}/{n}')).root\n"
        "    Path(root, f'mine-{sys.argv[2]}').touch()"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), str(n)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for n in range(4)
    ]
    for process in running:
        assert process.stdin
        process.stdin.close()
    for process in running:
        assert process.stderr
        errors = process.stderr.read().decode()
        process.stderr.close()
        assert process.wait() == 0, errors
    for number in range(40):
        assert len(list((tmp_path / str(number)).iterdir())) == 5


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root, to mount a small file system")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_on_a_full_disk_an_old_root_can_be_freed(disk: Path) -> None:
    make_old(disk / "root")
    (disk / "new").mkdir()
    build = disk / "root" / "builds" / ("a" * 32)
    build.mkdir()
    with (build / "file").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    with pytest.raises(EnvironmentFailure, match="no space left on host here"):
        connect(disk / "new")
    assert listing(disk / "new") == [], "nothing half-written is left, which would be refused later"
    host = connect(disk / "root")
    assert not (disk / "root" / MARKER).exists()
    upkeep.remove(host, list(upkeep.items(host)))
    for name in ("root", "new"):
        connect(disk / name)
        assert marker_of(disk / name)


def test_on_a_full_disk_gc_frees_some(disk: Path) -> None:
    """It takes the lock first, which needs space, too."""
    inventory = disk.parent / "hosts.toml"
    inventory.write_text(f'[hosts.local]\nroot = "{disk}/root"\n')
    words = ["gc", "--keep", "0", "--hosts", str(inventory)]
    assert bisect(*words).returncode == 0
    for _ in range(2):
        build = disk / "root" / "builds" / ("a" * 32)
        build.mkdir(parents=True)
        with (build / "file").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(bytes(4096))
        ended = bisect(*words)
        assert ended.returncode == 0, ended.stderr
        assert not build.exists()


def test_on_a_disk_that_cannot_be_written(disk: Path) -> None:
    connect(disk / "marked")
    make_old(disk / "old")
    (disk / "empty").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    connect(disk / "marked")
    connect(disk / "old")
    for name in ("empty", "new"):
        with pytest.raises(EnvironmentFailure, match=r"cannot be created: .*Read-only file system"):
            connect(disk / name)


@pytest.mark.slow
def test_over_ssh_it_is_the_same(machine: Machine) -> None:
    (machine.folder / "home" / "photos").mkdir()
    (machine.folder / "home" / "repo" / ".git").mkdir(parents=True)
    (machine.folder / "home" / "mine").mkdir()
    (machine.folder / "home" / "mine" / "thesis").touch()

    def entry(root: str) -> HostEntry:
        return HostEntry(name="far", address=machine.address, root=root)

    for root, why in (
        ("~", "is your home folder"),
        ("/", "is the top"),
        ("~/repo", "is a git repository"),
        ("mine", "contains files that are not perfbisect's: thesis;"),
        ("~nobody-at-all/x", "a user that does not exist there"),
    ):
        with pytest.raises(EnvironmentFailure, match=why):
            registry.connect(entry(root))
    host, contents = registry.adopt(entry("mine"))
    host.release()
    assert (host.root, contents) == (PurePosixPath("/root/mine"), ("thesis",))
    host = registry.connect(entry("new/root"))
    host.release()
    assert host.root == PurePosixPath("/root/new/root")
    assert marker_of(machine.folder / "home" / "new" / "root")


# --- Every verb ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["run", "v1.0", "v1.1", "--builder", "demo", "--workload", "update-index"],
        ["run", "v1.0", "v1.1", "--builder", "demo", "--workload", "update-index", "--wait"],
        ["run", "v1.0", "v1.1", "--builder", "demo", "--workload", "update-index", "--dry-run"],
        ["compare", "v1.0", "v1.1", "--builder", "demo", "--workload", "update-index"],
        ["noise", "--rev", "v1.0", "--builder", "demo", "--workload", "update-index"],
        ["demo"],
        ["gc", "--keep", "0"],
        ["gc", "--dry-run"],
        ["doctor"],
    ],
    ids=lambda words: " ".join(word for word in words if word in ("--wait", "--dry-run") or word == words[0]),
)
def test_every_verb_refuses_a_strangers_folder(words: list[str], tmp_path: Path) -> None:
    from perfbisect.demo.history import write_history

    root = tmp_path / "theirs"
    for name in ("tmp/a", "jobs/20200101-000000-run-abcdef", "logs/x", f"builds/{'a' * 32}", "work/thesis/source"):
        (root / name).mkdir(parents=True)
    before = listing(root)
    inventory = tmp_path / "hosts.toml"
    inventory.write_text(f'[hosts.local]\nroot = "{root}"\n')
    write_history(tmp_path / "repo", 1)
    where = ["--history", str(tmp_path / "h.db")] if words[0] != "doctor" and "--dry-run" not in words[1:2] else []
    clone = ["--repo", "."] if words[0] in ("run", "compare", "noise") else []
    ended = bisect(*words, *clone, "--hosts", str(inventory), *where, cwd=tmp_path / "repo")
    said = ended.stdout + ended.stderr
    assert ended.returncode == 4, said
    assert "contains files that are not perfbisect's" in said
    assert "Traceback" not in said
    assert listing(root) == before


def test_resume_refuses_a_folder_that_has_changed_hands(tmp_path: Path) -> None:
    root, inventory, history = tmp_path / "root", tmp_path / "hosts.toml", str(tmp_path / "h.db")
    inventory.write_text(f'[hosts.local]\nroot = "{root}"\n')
    words = ["demo", "--hosts", str(inventory), "--history", history, "--folder", str(tmp_path / "demo"), "--json"]
    assert bisect_until(words, '"BuildStarted"', signal.SIGINT).returncode == 130
    shutil.rmtree(root)
    (root / "tmp").mkdir(parents=True)
    (root / "tmp" / "thesis").touch()
    ended = bisect("resume", "--history", history)
    assert ended.returncode == 4
    assert "contains files that are not perfbisect's: tmp;" in ended.stderr
    assert listing(root) == [str(root / "tmp"), str(root / "tmp" / "thesis")]


def test_doctor_adopts_and_says_what_may_be_removed(tmp_path: Path) -> None:
    root = tmp_path / "theirs"
    for name in ("tmp", "photos", "work"):
        (root / name).mkdir(parents=True)
    inventory = tmp_path / "hosts.toml"
    inventory.write_text(f'[hosts.local]\nroot = "{root}"\n')
    words = ["doctor", "--adopt", "--json", "--hosts", str(inventory)]
    for text in (
        "it contains photos, tmp and work, of which what is in tmp and work may be removed",
        "is perfbisect's own",
    ):
        findings = json.loads(bisect(*words).stdout)["findings"]
        assert next(finding["text"] for finding in findings if finding["topic"] == "root").endswith(text)
    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == ["photos", "tmp", "work"]
    assert bisect("gc", "--keep", "0", "--hosts", str(inventory)).returncode == 0


# --- What is removed below a root ---------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(connect(tmp_path / "root").root)


def clean(root: Path) -> None:
    """All that removes: as before a hunt, and `bisect gc --keep 0`."""
    host = LocalHost("here", PurePosixPath(root))
    assert list(tidy(host)) == []
    upkeep.remove(host, upkeep.expendable(upkeep.items(host), 0, ()))


STRANGERS = [
    "builds/photos",
    f"builds/{'A' * 32}",
    f"builds/{'a' * 31}",
    f"builds/{'a' * 32}.old",
    "builds/a\nb\tc",
    "datasets/census",
    "datasets/" + "a" * 16 + "-1",
    "jobs/2019 taxes",
    "jobs/20200101-000000-run-abcde",
    "jobs/x20200101-000000-run-abcdef",
    "jobs/x\n20200101-000000-run-abcdef",
    "logs/app.log",
    "logs/a\n0123456789-0123456789.log",
    "work/thesis",
    "photos",
    ".hidden",
]


@pytest.mark.parametrize("name", STRANGERS)
def test_what_has_not_the_form_of_ours_stays(root: Path, name: str) -> None:
    (root / name).mkdir(parents=True)
    (root / name / "file").write_text("kept")
    for number in range(KEPT + 20):
        (root / "jobs" / f"20200101-{number:06}-run-abcdef").mkdir(parents=True)
    clean(root)
    assert (root / name / "file").read_text() == "kept"
    assert not list((root / "jobs").glob("20200101-00000?-run-abcdef"))


def test_logs_of_others_stay_and_ours_are_cut_to_the_youngest(root: Path) -> None:
    (root / "logs").mkdir()
    ours = [root / "logs" / f"demo-{n:010x}-0123456789.log" for n in range(KEPT + 20)]
    theirs = [root / "logs" / f"app.{n}.log" for n in range(KEPT + 20)]
    for age, path in enumerate((*ours, *theirs)):
        path.touch()
        os.utime(path, (1e9 - age, 1e9 - age))
    assert list(tidy(LocalHost("here", PurePosixPath(root)))) == []
    assert [path for path in ours if path.exists()] == ours[:KEPT]
    assert all(path.exists() for path in theirs)


@pytest.mark.parametrize(
    "name",
    ["tmp", "jobs", "logs", "builds", "datasets", "work", "visit", f"builds/{'a' * 32}", "jobs/20200101-000000-run-abcdef",
     "logs/demo-0123456789-0123456789.log", "work/demo", "work/demo/build", "tmp/inner", "visit/data"],
)  # fmt: skip
def test_no_link_is_followed_when_something_is_removed(root: Path, tmp_path: Path, name: str) -> None:
    """Whatever it leads to, and whatever that contains."""
    outside = tmp_path / "outside"
    for inner in (
        "file",
        f"{'a' * 32}/file",
        f"{'a' * 16}/file",
        "demo/source/file",
        "20200101-000000-run-abcdef/file",
        "build/file",
        "demo-0123456789-0123456789.log",
    ):
        (outside / inner).parent.mkdir(parents=True, exist_ok=True)
        (outside / inner).write_text("kept")
    before = listing(outside)
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).symlink_to(outside)
    for number in range(KEPT + 20):
        ended = outside / f"20200102-{number:06}-run-abcdef"
        if name == "jobs":
            ended.mkdir()
            before.append(str(ended))
    clean(root)
    assert listing(outside) == sorted(before)


def test_another_file_system_below_a_root_is_not_emptied(root: Path, disk: Path) -> None:
    """A folder that a build or a user has mounted there, which rm would walk into."""
    (disk / "file").write_text("kept")
    inner = root / "tmp" / "mounted"
    inner.mkdir(parents=True)
    subprocess.run(["mount", "--bind", str(disk), str(inner)], check=True)
    try:
        with pytest.raises(EnvironmentFailure, match="tmp/mounted"):
            list(tidy(LocalHost("here", PurePosixPath(root))))
        assert (disk / "file").read_text() == "kept"
    finally:
        subprocess.run(["umount", str(inner)], check=True)
    assert list(tidy(LocalHost("here", PurePosixPath(root)))) == []
    assert not (root / "tmp").exists()
