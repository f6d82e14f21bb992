"""Root folders: which folders are accepted, their permissions, and what is removed inside them."""

import json
import os
import pwd
import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import pytest

from machine import Machine
from perfbisect.errors import EnvironmentFailure
from perfbisect.host import registry
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import Host
from perfbisect.host.registry import MARKER
from perfbisect.lab import upkeep
from perfbisect.lab.upkeep import KEPT, tidy_after_killed_sessions
from perfbisect.recipes.inventory import HostEntry
from program import run
from repos import Repo

pytestmark = pytest.mark.tools


def entry(root: Path | str) -> HostEntry:
    return HostEntry(name="here", root=str(root))


def connect(root: Path | str) -> Host:
    return registry.connect(entry(root))


def sh(script: str, cwd: Path) -> None:
    """Run a script that prepares a folder."""
    subprocess.run(["sh", "-ec", script], cwd=cwd, check=True)


def listing(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def refused(root: Path | str, why: str, *, adoptable: bool = False) -> EnvironmentFailure:
    """The error by which ``root`` is refused. Nothing is written into the folder."""
    before = listing(root) if isinstance(root, Path) else []
    with pytest.raises(EnvironmentFailure, match=why) as caught:
        connect(root)
    assert "`root`" in caught.value.advice
    if not adoptable:
        with pytest.raises(EnvironmentFailure, match=why):
            registry.connect_and_adopt_root(entry(root))
    assert not isinstance(root, Path) or listing(root) == before
    return caught.value


def refused_until_adopted(root: Path, why: str) -> None:
    """Check that a root is refused, and is accepted after the user has adopted it."""
    refused(root, why, adoptable=True)
    registry.connect_and_adopt_root(entry(root))
    assert str(connect(root).root) == str(root)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def marker_of(root: Path) -> str:
    return (root / MARKER).read_text()


def inventory(tmp_path: Path, root: Path) -> str:
    """Write hosts.toml with this root folder. Return the option that names the file."""
    (tmp_path / "hosts.toml").write_text(f'[hosts.local]\nroot = "{root}"\n')
    return f"--hosts={tmp_path / 'hosts.toml'}"


def open_to_others(path: Path, top: Path) -> bool:
    """Whether other users may read a file, by the modes of the file and of its folders from ``top`` on."""
    above = [folder for folder in path.parents if folder.is_relative_to(top)]
    return bool(mode(path) & 0o044) and all(mode(folder) & 0o011 for folder in above)


def test_other_users_cannot_read_commands_or_change_files_of_a_root(tmp_path: Path, git: Repo) -> None:
    """Also in a root with open permissions, and with umask 0. Servers that run as nobody can enter the root."""
    root = tmp_path / "root"
    connect(root)
    sh("chmod 755 .; mkdir jobs logs scripts; mkdir -p jobs/left builds/left; chmod 755 *", root)
    sh("echo earlier-secret | tee jobs/left/command >builds/left/log", root)
    git.history({"number": f"{number}\n"} for number in range(2))
    words = ["compare", "HEAD~1", "HEAD", "--repo", str(git.path), inventory(tmp_path, root), "--visits=1", "--runs=1"]
    before = os.umask(0)
    try:
        failed = run(*words, "--build", "echo password=a-secret", "--run", "false password=a-secret")
    finally:
        os.umask(before)
    assert failed.status == 4, failed.err
    holding = [path for path in root.rglob("*") if path.is_file() and b"-secret" in path.read_bytes()]
    assert {path.relative_to(root).parts[0] for path in holding} >= {"jobs", "builds"}
    assert [path for path in holding if open_to_others(path, root)] == []
    assert [mode(root / name) for name in (".", "jobs", "logs", "scripts")] == [0o711, 0o700, 0o700, 0o700]
    assert {mode(path) for path in root.glob("jobs/2*/command")} == {0o600}
    assert len(list((root / "builds").iterdir())) > 1
    assert [path for path in root.rglob("*") if not path.is_symlink() and mode(path) & 0o002] == []


def test_files_made_through_a_connecting_command_are_not_world_writable(tmp_path: Path) -> None:
    """The shell that the command starts has umask 0."""
    led = ["sh", "-c", 'umask 0; exec "$@"', "led"]
    with registry.connect(HostEntry(name="box", through=led, root=str(tmp_path / "root"))) as box:
        box.run(["mkdir", str(box.root / "new")])
    assert not mode(tmp_path / "root" / "new") & 0o002


@pytest.mark.parametrize("kept", [0o2775, 0o700])
def test_modes_of_a_shared_root_and_of_link_targets_stay(tmp_path: Path, kept: int) -> None:
    root = tmp_path / "root"
    connect(root)
    sh(f"mkdir -m 755 mine; mkdir root/jobs; ln -s ../mine root/logs; chmod {kept:o} root root/jobs", tmp_path)
    connect(root)
    assert [mode(folder) for folder in (root, root / "jobs", tmp_path / "mine")] == [kept, kept, 0o755]


STRANGERS_FILES = "contains files that perfbisect did not write"
REPOSITORY = "is a git repository, or inside a .git folder"
NO_FOLDER = "cannot be created"
INSIDE = "is inside another root folder, .*/one,"
OF_GIT = "git init -q repo && git -C repo commit -q --allow-empty -m one"
ANOTHER = f"mkdir -p one/tmp; echo 'perfbisect 1' >one/{MARKER}; ln -s one/tmp link"


# --- Which folder may be a root -----------------------------------------------------------------------------------


MAY_BE = f"""\
one/apart: {ANOTHER} # where nothing is removed
git/two: mkdir git # not a root by its name alone
new/below: true
empty: mkdir empty
mounted: mkdir -p mounted/lost+found
killed: mkdir killed; touch killed/{MARKER}.aB3xYz # while it wrote the marker
perfbisect: mkdir -p perfbisect/demo perfbisect/repositories # as in ~/.cache
group: mkdir group; chmod 2770 group
link: mkdir disk; ln -s disk link # keeps its name
"""


@pytest.mark.parametrize("folder", MAY_BE.splitlines())
def test_folder_that_becomes_a_root_gets_a_marker(tmp_path: Path, folder: str) -> None:
    """With umask 0."""
    name, _, prepare = folder.partition(": ")
    sh(prepare, tmp_path)
    before = os.umask(0)
    try:
        assert connect(tmp_path / name).root == PurePosixPath(tmp_path, name)
    finally:
        os.umask(before)
    assert not mode(tmp_path / name) & 0o002
    assert re.fullmatch("perfbisect .*\n", marker_of(tmp_path / name))
    (tmp_path / name / "anything").touch()
    connect(tmp_path / name)


@pytest.mark.parametrize("name", ["photo.jpg", "tmp", "work", ".hidden", "-rf", "a\nb", "demo", "builds", "lock"])
def test_nonempty_folder_is_refused_as_a_root_until_it_is_adopted(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    (root / name).mkdir(parents=True)
    shown = name.replace("\n", "?")
    failure = refused(root, STRANGERS_FILES, adoptable=True)
    assert f" ({shown}), and" in str(failure)
    assert "bisect doctor here --adopt" in failure.advice
    host, contents = registry.connect_and_adopt_root(entry(root))
    assert (host.root, contents) == (PurePosixPath(root), (shown,))
    connect(root)
    assert registry.connect_and_adopt_root(entry(root))[1] == ()


def test_refusal_of_a_root_names_four_of_many_files(tmp_path: Path) -> None:
    for number in range(5000):
        (tmp_path / f"file{number:04}").touch()
    refused(tmp_path, r" \(file0000, file0001, file0002, file0003 and 4,996 more\), and", adoptable=True)


@pytest.mark.parametrize(
    ("prepare", "root", "why"),
    [
        *((":", root, "is the top of the file system") for root in ("/", "//", "/.", "/usr/..", "/proc/self/root")),
        *(("mkdir -p ~/x; ln -s ~ link", root, "is your home folder") for root in ("~", "~/", "~/.", "~/x/..", "{home}", "{home}//", "link")),
        (":", "{home}/..", "contains your home folder"),
        (":", "~{user}", "is your home folder|is the top|contains your home"),
        *((":", root, "a user that does not exist on the host") for root in ("~no-such-user/x", "~$(id)", "~no-such-user")),
        (OF_GIT, "repo", REPOSITORY),
        (f"{OF_GIT}; git clone -q --bare repo bare.git", "bare.git", REPOSITORY),
        (f"{OF_GIT}; git -C repo worktree add -q ../tree", "tree", REPOSITORY),
        (f"{OF_GIT}; ln -s repo link", "link", REPOSITORY),
        ("mkdir odd; ln -s nowhere odd/.git", "odd", REPOSITORY),
        *((f"{OF_GIT}; rm -rf repo/.git/hooks; mkdir -p repo/.git/{below}", f"repo/.git/{below}", REPOSITORY)
          for below in (".", "new", "refs/heads/new", "branches/deep/er", "hooks")),
        *(("echo kept >root", root, NO_FOLDER) for root in ("root", "root/below")),
        ("ln -s nowhere root", "root", NO_FOLDER),
        ("ln -s root root", "root", NO_FOLDER),
        *((ANOTHER, inner, INSIDE) for inner in ("one/tmp/two", "one/builds/a/b", "one/work", "link/two")),
    ],
)  # fmt: skip
def test_unsuitable_root_is_refused_even_if_adopted(
    prepare: str, root: str, why: str, tmp_path: Path, seal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sh(prepare, tmp_path)
    made = sorted(path.name for path in tmp_path.iterdir())
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    asked = root.format(home=seal, user=user)
    refused(tmp_path / asked if asked[0] not in "/~" and "one" not in asked else asked, why)
    assert sorted(path.name for path in tmp_path.iterdir()) == made


@pytest.mark.parametrize(
    "marker", ["mkdir {}", "echo perfbisect 1 >real; ln -s ../real {}", "touch {}", "echo settings of mine >{}"]
)
def test_invalid_marker_does_not_make_a_folder_a_root(tmp_path: Path, marker: str) -> None:
    root = tmp_path / "root"
    sh(f"mkdir -p root/thesis; {marker.format(f'root/{MARKER}')}", tmp_path)
    refused(root, STRANGERS_FILES, adoptable=True)
    with pytest.raises(EnvironmentFailure, match=r"has a file \.perfbisect that perfbisect did not write"):
        registry.connect_and_adopt_root(entry(root))


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give a folder to another user")
@pytest.mark.parametrize("marker", [":", f"echo perfbisect 1.0 uses this folder >{MARKER}"])
@pytest.mark.parametrize("name", ["prepared", "link"])
def test_root_of_another_user_is_refused_until_it_is_adopted(tmp_path: Path, marker: str, name: str) -> None:
    """The other user could replace a file of perfbisect by a link to a file of this user."""
    sh("echo mine >precious; mkdir prepared; ln -s prepared link", tmp_path)
    sh(f"ln -s ../precious lock; {marker}; chown -h 65534:65534 . .[!.]* lock || :", tmp_path / "prepared")
    for verb in ("gc --keep 0", "doctor"):
        done = run(*verb.split(), inventory(tmp_path, tmp_path / name))
        assert "belongs to another user" in done.out + done.err
    assert (tmp_path / "precious").read_text() == "mine\n"
    refused_until_adopted(tmp_path / name, "belongs to another user")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_world_writable_root_is_refused_until_it_is_adopted(tmp_path: Path, mode: int) -> None:
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(mode)
    refused_until_adopted(root, "every user may write to it")


def test_relative_root_is_relative_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CDPATH", "/")
    assert connect("usr/root").root == PurePosixPath(tmp_path, "usr/root")


def test_parallel_sessions_can_create_the_same_root(tmp_path: Path) -> None:
    """Each session writes a file at once. No other session may refuse the root because of this file."""
    gate = threading.Barrier(4, timeout=60)

    def begin(mine: int) -> None:
        for number in range(10):
            gate.wait()
            Path(connect(tmp_path / str(number)).root, f"mine-{mine}").touch()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(begin, range(4)))
    assert [len(list((tmp_path / str(number)).iterdir())) for number in range(10)] == [5] * 10


def test_gc_frees_a_full_disk_and_no_root_is_half_made(disk: Path) -> None:
    """gc first takes the lock, which needs space, too."""
    (disk / "new").mkdir()
    words = ["gc", "--keep", "0", inventory(disk.parent, disk / "root")]
    assert run(*words).status == 0
    for _ in range(2):
        build = disk / "root" / "builds" / ("a" * 32)
        build.mkdir(parents=True)
        with (build / "file").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(bytes(4096))
        with pytest.raises(EnvironmentFailure, match="the disk of host here is full"):
            connect(disk / "new")
        assert listing(disk / "new") == [], "a folder with files would be refused later"
        ended = run(*words)
        assert ended.status == 0, ended.err
        assert not build.exists()
    connect(disk / "new")
    assert marker_of(disk / "new")


def test_read_only_disk_keeps_an_existing_root_and_gets_no_new_root(disk: Path) -> None:
    connect(disk / "marked")
    (disk / "empty").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    connect(disk / "marked")
    for name in ("empty", "new"):
        with pytest.raises(EnvironmentFailure, match=r"cannot be created: .*Read-only file system"):
            connect(disk / name)


@pytest.mark.slow
def test_root_over_ssh_is_refused_and_adopted_in_the_same_way(machine: Machine) -> None:
    sh("mkdir mine; touch mine/thesis", machine.folder / "home")
    home = PurePosixPath(pwd.getpwuid(0).pw_dir)
    far = {root: HostEntry(name="far", address=machine.address, root=root) for root in ("~", "mine", "new/root")}
    for root, why in (("~", "is your home folder"), ("mine", rf"{STRANGERS_FILES} \(thesis\), and")):
        with pytest.raises(EnvironmentFailure, match=why):
            registry.connect(far[root])
    host, contents = registry.connect_and_adopt_root(far["mine"])
    host.close_connection()
    assert (host.root, contents) == (home / "mine", ("thesis",))
    with registry.connect(far["new/root"]) as new:
        assert new.root == home / "new/root"
    assert marker_of(machine.folder / "home" / "new" / "root")


# --- Every verb ---------------------------------------------------------------------------------------------------


def hunt(git: Repo, hosts: str) -> str:
    """The arguments of a hunt."""
    git.history({"number": f"{number}\n"} for number in range(2))
    return f"HEAD~1 HEAD --repo {git.path} --build false --run true {hosts}"


HUNTS = ("run", "run --wait", "run --dry-run", "compare")
OTHERS = ("demo", "gc --keep 0", "gc --dry-run", "doctor")


def test_every_verb_refuses_a_root_with_files_of_others(tmp_path: Path, git: Repo) -> None:
    root = tmp_path / "theirs"
    for name in ("tmp/a", "jobs/20200101-000000-run-abcdef", "logs/x", f"builds/{'a' * 32}", "work/thesis/source"):
        (root / name).mkdir(parents=True)
    before, hosts = listing(root), inventory(tmp_path, root)
    range_ = hunt(git, hosts)
    noise = range_.replace("HEAD~1", "noise --rev", 1)
    for words in (noise, *(f"{verb} {range_}" for verb in HUNTS), *(f"{verb} {hosts}" for verb in OTHERS)):
        ended = run(*words.split())
        assert ended.status == 4, words
        assert STRANGERS_FILES in ended.out + ended.err, words
        assert listing(root) == before


def test_resume_refuses_a_root_that_was_replaced(tmp_path: Path, git: Repo) -> None:
    root = tmp_path / "root"
    assert run("run", *hunt(git, inventory(tmp_path, root)).split()).status == 4
    sh("rm -rf root; mkdir -p root/tmp; touch root/tmp/thesis", tmp_path)
    ended = run("resume")
    assert ended.status == 4
    assert f"{STRANGERS_FILES} (tmp), and" in ended.err
    assert listing(root) == [str(root / "tmp"), str(root / "tmp" / "thesis")]


@pytest.mark.slow
def test_doctor_adopts_a_root_and_lists_what_may_be_removed(tmp_path: Path) -> None:
    root = tmp_path / "theirs"
    sh("mkdir -p theirs/tmp theirs/photos theirs/work", tmp_path)
    hosts = inventory(tmp_path, root)
    removed = "may remove the contents of tmp and work. It contains photos, tmp and work"
    for text in (removed, "already belongs to perfbisect"):
        findings = json.loads(run("doctor", "--adopt", "--json", hosts).out)["findings"]
        assert next(finding["text"] for finding in findings if finding["topic"] == "root").endswith(text)
    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == ["photos", "tmp", "work"]
    assert run("gc", "--keep", "0", hosts).status == 0


# --- What is removed below a root ---------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(connect(tmp_path / "root").root)


def clean(root: Path) -> None:
    """Remove what a new hunt removes, and what `bisect gc --keep 0` removes."""
    host = LocalHost("here", PurePosixPath(root))
    assert list(tidy_after_killed_sessions(host)) == []
    upkeep.remove_items(host, upkeep.items_to_remove(upkeep.removable_items(host), 0, ()))


STRANGERS = (
    "builds/photos", f"builds/{'A' * 32}", f"builds/{'a' * 31}", f"builds/{'a' * 32}.old", "builds/a\nb\tc", "datasets/census",
    "datasets/" + "a" * 16 + "-1", "jobs/2019 taxes", "jobs/20200101-000000-run-abcde", "jobs/x20200101-000000-run-abcdef",
    "jobs/x\n20200101-000000-run-abcdef", "logs/app.log", "logs/a\n0123456789-0123456789.log", "work/thesis", "photos", ".hidden",
)  # fmt: skip


def test_files_without_a_name_of_perfbisect_are_kept(root: Path) -> None:
    for name in STRANGERS:
        (root / name).mkdir(parents=True)
        (root / name / "file").write_text("kept")
    for number in range(KEPT + 20):
        (root / "jobs" / f"20200101-{number:06}-run-abcdef").mkdir(parents=True)
    clean(root)
    assert [name for name in STRANGERS if not (root / name / "file").exists()] == []
    assert not list((root / "jobs").glob("20200101-00000?-run-abcdef"))


def test_old_logs_are_removed_except_logs_of_other_programs(root: Path) -> None:
    (root / "logs").mkdir()
    ours = [root / "logs" / f"demo-{n:010x}-0123456789.log" for n in range(KEPT + 20)]
    theirs = [root / "logs" / f"app.{n}.log" for n in range(KEPT + 20)]
    for age, path in enumerate((*ours, *theirs)):
        path.touch()
        os.utime(path, (1e9 - age, 1e9 - age))
    assert list(tidy_after_killed_sessions(LocalHost("here", PurePosixPath(root)))) == []
    assert [path for path in ours if path.exists()] == ours[:KEPT]
    assert all(path.exists() for path in theirs)


@pytest.mark.parametrize(
    "name",
    ["tmp", "jobs", "logs", "builds", "datasets", "work", "visit", f"builds/{'a' * 32}", "jobs/20200101-000000-run-abcdef",
     "logs/demo-0123456789-0123456789.log", "work/demo", "work/demo/build", "tmp/inner", "visit/data"],
)  # fmt: skip
def test_removing_follows_no_link(root: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    of_ours = ["demo/source", "20200101-000000-run-abcdef", "build", "a" * 32, "a" * 16]
    of_ours += [f"20200102-{number:06}-run-abcdef" for number in range(KEPT + 20)]
    for inner in ("file", "demo-0123456789-0123456789.log", *(f"{name}/file" for name in of_ours)):
        (outside / inner).parent.mkdir(parents=True, exist_ok=True)
        (outside / inner).write_text("kept")
    before = listing(outside)
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).symlink_to(outside)
    clean(root)
    assert listing(outside) == before


def test_file_system_mounted_inside_a_root_is_not_emptied(root: Path, disk: Path) -> None:
    """A build or a user may mount a folder there. rm would delete its contents."""
    (disk / "file").write_text("kept")
    inner = root / "tmp" / "mounted"
    inner.mkdir(parents=True)
    subprocess.run(["mount", "--bind", str(disk), str(inner)], check=True)
    try:
        with pytest.raises(EnvironmentFailure, match="tmp/mounted"):
            list(tidy_after_killed_sessions(LocalHost("here", PurePosixPath(root))))
        assert (disk / "file").read_text() == "kept"
    finally:
        subprocess.run(["umount", str(inner)], check=True)
    assert list(tidy_after_killed_sessions(LocalHost("here", PurePosixPath(root)))) == []
    assert not (root / "tmp").exists()
