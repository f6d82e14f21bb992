"""Recipes and hosts.toml in the hunted repository are ignored: its authors must not configure perfbisect."""

import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from program import Ended, run
from repos import Repo, files_of

pytestmark = pytest.mark.tools

OWN, THEIRS = "mine", "theirs"

Give = Callable[[Path, str, Path], None]

FROM = {
    "Builder 'script'": "builders/script/builder.toml",
    "Suite 'script'": "workloads/script/suite.toml",
    "Host 'local'": "hosts.toml",
}


@pytest.fixture
def give() -> Give:
    """``give(folder, whose, root)`` writes builders, workloads and hosts.toml with the mark ``whose`` into a folder."""
    given = files_of(Path(__file__).parent / "given").items()

    def give(folder: Path, whose: str, root: Path) -> None:
        for name, text in given:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text.replace("WHOSE", whose).replace("ROOT", str(root)))

    return give


@pytest.fixture
def clone(tmp_path: Path, git: Repo, seal: Path, give: Give, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a repository with two commits, and with recipes named like the user's recipes."""
    give(seal / ".config/perfbisect", OWN, tmp_path / OWN)
    clone = tmp_path / "repo"
    give(clone, THEIRS, tmp_path / THEIRS)
    git.history({"run.sh": f"echo rate {rate}\n"} for rate in (10, 20))
    monkeypatch.chdir(clone)
    return clone


def dry_run(*options: str) -> Ended:
    """The dry run of a hunt in the repository."""
    return run("run", "HEAD~1", "HEAD", "-b", "script", "-w", "one", "--dry-run", *options)


def ignored(ended: Ended) -> list[str]:
    """The files that the program reports as ignored."""
    return [Path(line.split(" ")[0]).name for line in ended.err.splitlines() if " is ignored: " in line]


def test_hunt_uses_recipes_of_the_repository_only_by_option(clone: Path, tmp_path: Path) -> None:
    ended = dry_run("--repo", ".")
    assert (ended.status, OWN in ended.out, THEIRS in ended.out) == (0, True, False), ended.err
    assert not (tmp_path / THEIRS).exists(), "the root folder is not from the repository"
    assert ignored(ended) == ["builders", "workloads", "hosts.toml"]
    assert "If you trust its author, add: --hosts hosts.toml\n" in ended.err
    assert " is read from " not in ended.err
    ended = dry_run("--repo", ".", "--builders", "builders", "--workloads", "workloads", "--hosts", "hosts.toml")
    assert (ended.status, OWN in ended.out, THEIRS in ended.out) == (0, False, True), ended.err
    assert ended.err.splitlines() == [f"{what} is read from {clone}/{path}" for what, path in FROM.items()]


@pytest.mark.parametrize(
    ("words", "ignores"),
    [
        ("builders", "builders"),
        ("workloads --show one", "builders workloads"),
        ("hosts --show local", "hosts.toml"),
        pytest.param("doctor -b script -w one --json", "builders workloads hosts.toml", marks=pytest.mark.slow),
        ("gc --dry-run", "hosts.toml"),
        ("simulate HEAD~1 HEAD -b script --repo . --hunts 1", "builders"),
    ],
)
def test_every_verb_ignores_recipes_of_the_repository(clone: Path, words: str, ignores: str) -> None:
    ended = run(*words.split())
    assert ended.status in (0, 4), ended.err
    assert THEIRS not in ended.out
    assert ignored(ended) == ignores.split()


def test_shell_completion_ignores_recipes_of_the_repository(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clone / "builders/planted").mkdir()
    (clone / "builders/planted/builder.toml").write_text((clone / "builders/script/builder.toml").read_text())
    monkeypatch.setenv("_BISECT_COMPLETE", "bash_complete")
    for words, found in (("run -b ", False), ("run --builders builders -b ", True)):
        monkeypatch.setenv("COMP_WORDS", f"bisect {words}")
        monkeypatch.setenv("COMP_CWORD", str(len(words.split(" "))))
        ended = run()
        assert ("planted" in ended.out, "script" in ended.out, ended.err) == (found, True, "")


PLACES = """\
repo/deep/er: true
link: ln -s repo link
tree: git -C repo worktree add -q ../tree
repo/sub: git -C repo -c protocol.file.allow=always submodule add -q $PWD/repo sub
bare.git: git clone -q --bare repo bare.git
repo/.git/hooks: true
work: git init -q --separate-git-dir apart work # cloned elsewhere
foreign: mkdir -p foreign; mkdir -m 0 foreign/.git # which git refuses to read
"""


@pytest.mark.parametrize("place", PLACES.splitlines())
def test_recipes_are_ignored_in_any_folder_of_a_repository(
    give: Give, place: str, clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, prepare = place.partition(": ")
    subprocess.run(["sh", "-ec", prepare], cwd=tmp_path, check=True)
    give(tmp_path / folder, THEIRS, tmp_path / THEIRS)
    monkeypatch.chdir(tmp_path / folder)
    for verb, ignores in (("workloads", ["builders", "workloads"]), ("hosts", ["hosts.toml"])):
        ended = run(verb)
        assert (ended.status, THEIRS in ended.out, ignored(ended)) == (0, False, ignores), ended.err


def test_recipes_of_a_working_directory_without_repository_are_used(
    give: Give, clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "work"
    give(here, "here", tmp_path / "root")
    monkeypatch.chdir(here)
    ended = dry_run("--repo", str(clone))
    assert ("here" in ended.out, OWN in ended.out) == (True, False)
    assert ended.err.splitlines() == [f"{what} is read from {here}/{path}" for what, path in FROM.items()]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_recipes_of_another_user_are_ignored(
    give: Give, clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    give(shared, THEIRS, tmp_path / THEIRS)
    for name in ("builders", "workloads"):
        os.chown(shared / name, 4242, 4242)
    (shared / "hosts.toml").rename(tmp_path / "planted.toml")
    (shared / "hosts.toml").symlink_to(tmp_path / "planted.toml")
    os.chown(shared / "hosts.toml", 4242, 4242, follow_symlinks=False)
    monkeypatch.chdir(shared)
    ended = dry_run("--repo", str(clone))
    assert THEIRS not in ended.out
    assert ignored(ended) == ["builders", "workloads", "hosts.toml"]
    assert ended.err.count("belongs to another user") == 3


def test_place_of_an_extended_recipe_is_printed(clone: Path, tmp_path: Path, seal: Path) -> None:
    (seal / ".config/perfbisect/builders/top").mkdir()
    (seal / ".config/perfbisect/builders/top/builder.toml").write_text('extends = "script"')
    ended = run("run", "HEAD~1", "HEAD", "-b", "top", "-w", "one", "--dry-run", "--repo", ".", "--builders", "builders")
    assert f"Builder 'script' is read from {clone}/builders/script/builder.toml" in ended.err
    assert "Builder top" not in ended.err


def test_removed_working_directory_is_an_error_and_no_bug(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    with contextlib.chdir(gone):
        gone.rmdir()
        assert run("builders").status == 0
        assert run("init").err.startswith("Error: The current folder does not exist any more.\n")


def test_resumed_hunt_uses_the_recipes_with_which_it_began(
    give: Give, clone: Path, tmp_path: Path, git: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, fixed = tmp_path / "work", tmp_path / "fixed"
    give(here, "here", tmp_path / "root")
    (clone / "run.sh").write_text(f"[ -e {fixed} ] || exit 7; echo $1 >>{fixed}; echo rate 5\n")
    git("commit", "-qam", "slow")
    monkeypatch.chdir(here)
    ends = git("rev-parse", "HEAD~1"), git("rev-parse", "HEAD")
    failed = run("run", *ends, "-b", "script", "-w", "one", "--repo", str(clone), "--plain", "--no-explain")
    assert failed.status == 4, failed.err

    fixed.touch()
    monkeypatch.chdir(clone)
    resumed = run("resume", "--plain")
    assert resumed.status == 0, resumed.err
    assert f"Builder 'script' is read from {here}/builders/script/builder.toml" in resumed.err
    assert set(fixed.read_text().split()) == {"here"}
    assert not (tmp_path / THEIRS).exists()
    assert run("replay").status == 0


def test_link_to_a_file_outside_of_the_recipes_is_refused(clone: Path, git: Repo, tmp_path: Path, seal: Path) -> None:
    """Files of a recipe are sent to the host: a link to ~/.ssh would send keys."""
    secret = tmp_path / "id_ed25519"
    secret.write_text("secret")
    git.write({"builders/other/key": "", "builders/script/deep/x": ""})
    given = ("--repo", ".", "--builders", "builders", "--workloads", "workloads")
    for link, target, status in (
        ("builders/script/deep/key", secret, 3),
        ("builders/script/key", "../../../id_ed25519", 3),
        ("builders/script/key", "../other/key", 0),  # in a recipe of the same author
        ("workloads/script/key", secret, 3),
        ("workloads/script/key", "nowhere", 0),
    ):
        (clone / link).symlink_to(target)
        ended = dry_run(*given)
        assert ended.status == status, link
        files = f"{link} is a link to {secret}, a file outside {clone / link.split('/')[0]}."
        assert (files in ended.err) == bool(status)
        (clone / link).unlink()
    (seal / ".config/perfbisect/builders/script/linked").symlink_to(secret)
    assert dry_run("--repo", ".").status == 0, "links in recipes of the user are allowed"


@pytest.mark.parametrize("script", ["../outside.lua", "/etc/passwd", "deep/../../outside.lua"])
def test_script_outside_of_the_folder_of_its_suite_is_refused(script: str, clone: Path, git: Repo) -> None:
    suite = f'summary = "s"\ndriver = "script"\n[workloads.x]\nsummary = "x"\ngroup = "x"\nscript = "{script}"\n'
    git.write({"given/lua/suite.toml": suite, "given/lua/deep/x": "", "given/outside.lua": ""})
    ended = run("workloads", "--workloads", "given")
    assert ended.status == 3
    assert f'`workloads.x.script` is "{script}", but must be a file of the suite\'s folder' in ended.err
