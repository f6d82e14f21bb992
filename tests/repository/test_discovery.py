"""The repository at a path, uncommitted changes, the clone of a recipe's repository, and downloads."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.recipes.builder import Build, Builder
from perfbisect.repository.commits import resolve_commit
from perfbisect.repository.discovery import cached_clone, download, has_uncommitted_changes, open_repository
from repos import Repo
from shelf import Shelf, shelf, sum_of
from traps import Trap
from waiting import finish

pytestmark = pytest.mark.tools


@pytest.fixture
def repo(git: Repo) -> Path:
    git.history([{}, {}], "v{}")
    git("tag", "v1.0", "v0")
    return git.path


@pytest.fixture
def bare(git: Repo, repo: Path, tmp_path: Path) -> Path:
    git("clone", "-q", "--bare", str(repo), str(tmp_path / "bare"))
    return tmp_path / "bare"


def test_path_without_full_repository_is_refused(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIT_CEILING_DIRECTORIES limits the search in parent folders. A shallow clone lacks commits."""
    inner, shallow = repo / "a" / "b", tmp_path / "shallow"
    inner.mkdir(parents=True)
    assert open_repository(inner).folder == repo
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(repo / "a"))
    assert open_repository(repo).folder == repo
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{repo}", shallow], check=True)
    nowhere, none = tmp_path / "nowhere", "is not a git repository"
    sentences = {
        tmp_path: none,
        inner: none,
        nowhere: "The folder .*nowhere does not exist",
        shallow: "is a shallow clone",
    }
    for folder, sentence in sentences.items():
        with pytest.raises(UsageError, match=sentence) as caught:
            open_repository(folder)
    assert caught.value.advice.endswith(f"git -C {shallow} fetch --unshallow")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFailure, match="git is not installed"):
        open_repository(repo)


@pytest.mark.parametrize(
    "what", ["core.excludesFile", "core.attributesFile", "packed-refs", "objects/info/alternates", "include.path"]
)
def test_error_names_the_file_that_git_waits_for(
    git: Repo, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr("perfbisect.repository.git.LIMITED", 1.0)
    fifo = tmp_path / "fifo" if "." in what else repo / ".git" / what
    if "." in what:
        git("config", what, str(fifo))
    fifo.unlink(missing_ok=True)
    os.mkfifo(fifo)
    named = "its configuration, or a file that the configuration includes" if what == "include.path" else what
    with pytest.raises(
        EnvironmentFailure, match=f"git did not end within 1 s .*; it may wait to read {named}"
    ) as caught:
        open_repository(repo)
    assert "FIFO" in caught.value.advice


def test_any_path_inside_a_repository_opens_the_repository(git: Repo, repo: Path, bare: Path, tmp_path: Path) -> None:
    git("worktree", "add", "-q", str(tmp_path / "linked"), "HEAD~1")
    (repo / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(repo)
    places = {"bare": None, "repo/.git": None, "linked": "linked", "repo": "repo", "repo/a/b": "repo", "link": "repo"}
    for place, work_tree in places.items():
        opened = open_repository(tmp_path / place)
        assert opened.work_tree == (tmp_path / work_tree if work_tree else None)
        assert opened.objects == (bare if place == "bare" else repo / ".git") / "objects"
        for name in ("v0", "HEAD")[: 1 + (place == "linked")]:
            assert resolve_commit(opened, name, []) == git("rev-parse", "HEAD~1"), place


def test_repository_path_with_odd_characters_is_opened(repo: Path, tmp_path: Path) -> None:
    for name in ("a\nb", " -c x=y", "é\\'\"$(touch hit)\n", "--bare"):
        place = tmp_path / name
        repo.rename(place)
        assert open_repository(place).folder == place
        assert resolve_commit(open_repository(place), "v0", [])
        place.rename(repo)


def test_repository_path_that_is_not_utf8_is_refused(repo: Path, tmp_path: Path) -> None:
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    repo.rename(place)
    link = Path(f"{place}.link")
    link.symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(place)
    for path in (place, place / ".git", tmp_path / "link", link / "other"):
        with pytest.raises(UsageError, match=r"The path of the repository .*/caf\\xe9\S* is not UTF-8"):
            open_repository(path)


def test_safe_bare_repository_setting_applies_to_a_found_repository(bare: Path, seal: Path) -> None:
    (seal / ".gitconfig").write_text("[safe]\nbareRepository = explicit\n")
    assert open_repository(bare).git_dir == bare
    for path, named in ((bare, False), (bare / "refs", True)):
        with pytest.raises(EnvironmentFailure, match="cannot use bare repository") as caught:
            open_repository(path, is_named_by_user=named)
        assert "--repo" in caught.value.advice


def test_changed_files_make_a_checkout_dirty_and_new_files_do_not(git: Repo, bare: Path) -> None:
    git.commit({"file": "1"})
    for text, dirty in (({"new": "1"}, False), ({"file": "2"}, True)):
        git.write(text)
        assert has_uncommitted_changes(open_repository(git.path)) is dirty
    assert not has_uncommitted_changes(open_repository(bare))
    (bare / "config").unlink()
    assert not has_uncommitted_changes(open_repository(bare)), "a mirror without a configuration has no checkout"


@pytest.fixture
def builder(repo: Path) -> Builder:
    return recipe(f"file://{repo}")


def recipe(url: str) -> Builder:
    build = Build(compile=[["make"]], install=[["make"]], artifacts=["x"])
    return Builder(name="small", summary="s", driver="d", repository=url, release_tags=["v{version}"], build=build)


def test_repository_of_a_recipe_is_cloned_once(
    builder: Builder, seal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, int]] = []
    path = cached_clone(builder, progress=lambda *step: seen.append(step))
    assert path == seal / ".cache/perfbisect/repositories/small.git"
    assert ("Receiving objects", 3, 3) in seen
    assert cached_clone(builder, ["1.0"], pytest.fail) == path
    assert [each.name for each in path.parent.iterdir() if each.suffix == ".partial"] == []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cached_clone(builder) == tmp_path / "cache/perfbisect/repositories/small.git"
    with pytest.raises(UsageError, match="Builder small has no URL of a repository") as caught:
        cached_clone(recipe(""))
    assert "--repo" in caught.value.advice


def test_cached_clone_fetches_only_missing_revisions(git: Repo, builder: Builder, repo: Path) -> None:
    """A new release, and a branch that moved, even backwards. The URL of the recipe may change."""
    opened = open_repository(cached_clone(builder))
    git("commit", "-q", "--allow-empty", "--amend", "-m", "another", "--date=2020-02-02T00:00:00Z")
    commit = git.head
    for name in ("main", "1.1"):
        cached_clone(builder, ["v1.0", name])
        git("tag", "-f", "v1.1")
        assert (
            resolve_commit(opened, name, builder.release_tags)
            == commit
            != resolve_commit(opened, "1.0", builder.release_tags)
        )
    repo.rename(repo.with_name("gone"))
    cached_clone(builder, ["1.0", "v1.0", commit, commit[:8]])
    with pytest.raises(EnvironmentFailure, match=r"file:.*/repo cannot be fetched: fatal: "):
        cached_clone(builder, ["1.2"])
    forked = Repo(repo.with_name("fork")).commit(title="forked", tag="v1.0")
    cached_clone(recipe(f"file://{repo.with_name('fork')}"), ["1.0"])
    assert resolve_commit(opened, "1.0", builder.release_tags) == forked


def test_failed_or_interrupted_clone_leaves_no_files(builder: Builder, tmp_path: Path, seal: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"file:///.*/nowhere cannot be cloned: fatal: .*nowhere"):
        cached_clone(recipe(f"file://{tmp_path}/nowhere"))

    def interrupt(_stage: str, _done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_clone(builder, progress=interrupt)
    assert [each.suffix for each in (seal / ".cache/perfbisect/repositories").iterdir()] == [".lock"]


def test_repository_url_starts_nothing(tmp_path: Path, seal: Path, monkeypatch: pytest.MonkeyPatch, repo: Path) -> None:
    """The user's git configuration cannot allow such a URL, but GIT_ALLOW_PROTOCOL can."""
    trace = tmp_path / "trace"
    command = f"ext::touch {trace}"

    def refused(url: str, sentence: str) -> bool:
        with pytest.raises(EnvironmentFailure, match=sentence):
            cached_clone(recipe(url))
        return not trace.exists()

    (seal / ".gitconfig").write_text(
        f'[protocol "ext"]\n\tallow = always\n[url "{command}"]\n\tinsteadOf = short:\n\tinsteadOf = https://example.invalid/\n'
    )
    others = ("short:", "https://example.invalid/", "EXT::touch x", "nowhere::x", "fd::7,8/x")
    for url in (command, *others, f"--upload-pack=touch {trace}"):
        assert refused(url, "cannot be cloned")
    cached_clone(recipe(f"file://{repo}"))
    assert refused(command, "cannot be fetched")
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "ext")
    assert not refused(command, "cannot be fetched")


def test_hooks_of_the_user_do_not_run_in_the_clone(builder: Builder, git: Repo, tmp_path: Path, seal: Path) -> None:
    trap = Trap(tmp_path / "sprung")
    trap.hooks(tmp_path / "template" / "hooks")
    hooks = trap.hooks(tmp_path / "hooks")
    (seal / ".gitconfig").write_text(f"[core]\n\thooksPath = {hooks}\n[init]\n\ttemplateDir = {tmp_path}/template\n")
    repo = open_repository(cached_clone(builder))
    git("-c", "core.hooksPath=/dev/null", "commit", "-q", "--allow-empty", "-m", "1")
    git("-c", "core.hooksPath=/dev/null", "tag", "v1.1")
    cached_clone(builder, ["1.1"])
    assert resolve_commit(repo, "1.1", builder.release_tags)
    assert trap.sprung == []


CONTENT = bytes(range(256)) * 20_000  # 5 MB
SUM = sum_of(CONTENT)
PATH = "/1.2/lib_1_2.tar.gz"


@pytest.fixture
def server() -> Iterator[Shelf]:
    with shelf({PATH: CONTENT}) as state:
        yield state


@pytest.fixture
def cache(seal: Path) -> Path:
    return seal / ".cache/perfbisect/archives"


def fetch(server: Shelf, path: str = PATH, sha256: str = SUM) -> list[tuple[int, int]]:
    steps, file = finish(download("lib 1.2", server.address + path, sha256))
    assert sum_of(file.read_bytes()) == sha256
    return steps


def test_download_fetches_a_file_once_with_progress(server: Shelf, cache: Path) -> None:
    steps = fetch(server)
    assert (steps[0], steps[-1]) == ((0, 0), (5, 5))
    assert steps == sorted(steps)
    assert fetch(server) == []
    assert server.asked == [(PATH, "")]
    assert {file.name for file in cache.iterdir()} == {"lib_1_2.tar.gz", "lock"}


def test_download_continues_after_lost_connections(server: Shelf) -> None:
    server.cuts = [1_000_000, 2_000_000]
    fetch(server)
    assert server.asked == [(PATH, ""), (PATH, "bytes=1000000-"), (PATH, "bytes=3000000-")]


LEFT = {"a part": CONTENT[:1_000_000], "all of it": CONTENT, "another file": b"?" * 1000, "a longer file": b"?" * 10**7}


@pytest.mark.parametrize("parts", [True, False])
@pytest.mark.parametrize("left", LEFT)
def test_download_continues_the_part_of_an_ended_process(server: Shelf, cache: Path, left: str, parts: bool) -> None:
    """If the part is of another file, or if the server sends no parts, the whole file is fetched."""
    server.parts = parts
    cache.mkdir(parents=True)
    (cache / f"lib_1_2.tar.gz.{SUM[:8]}.part").write_bytes(LEFT[left])
    (cache / "lib_1_2.tar.gz").write_bytes(b"of another project")
    fetch(server)
    assert "file" in left or server.asked[0] == (PATH, f"bytes={len(LEFT[left])}-")


def test_download_with_a_wrong_checksum_is_an_error(server: Shelf, cache: Path) -> None:
    sentence = rf"^lib 1.2 is not used: the file at {server.address}{PATH} has the SHA-256 sum {SUM}, but the recipe has {'0' * 64}$"
    with pytest.raises(EnvironmentFailure, match=sentence):
        fetch(server, sha256="0" * 64)
    assert [file.name for file in cache.iterdir()] == ["lock"]


def test_download_error_says_how_to_copy_the_file_by_hand(server: Shelf, cache: Path) -> None:
    gone, by_hand = Shelf("http://127.0.0.1:9"), f"To copy the file there yourself: `cp lib_1_2.tar.gz {cache}/`."
    with pytest.raises(EnvironmentFailure, match=r"^lib 1.2 cannot be fetched from .*: Connection refused$") as failed:
        fetch(gone)
    assert failed.value.advice == by_hand
    (cache / "lib_1_2.tar.gz").write_bytes(b"wrong")
    with pytest.raises(EnvironmentFailure, match="Not Found") as failed:
        fetch(server, "/elsewhere/lib_1_2.tar.gz")
    assert failed.value.advice == f"The file in {cache} has the checksum {sum_of(b'wrong')}. {by_hand}"
    (cache / "lib_1_2.tar.gz").write_bytes(CONTENT)
    assert fetch(gone) == []
