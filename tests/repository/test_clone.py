from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.recipes.builder import Build, Builder
from perfbisect.repository.commits import resolve
from perfbisect.repository.discovery import cached_clone, open_repository
from traps import Trap

pytestmark = pytest.mark.tools

Git = Callable[..., str]


@pytest.fixture
def origin(git: Git, tmp_path: Path) -> Path:
    git("commit", "-q", "--allow-empty", "-m", "0")
    git("tag", "v1.0")
    return tmp_path / "repo"


@pytest.fixture
def builder(origin: Path) -> Builder:
    return recipe(f"file://{origin}")


def recipe(url: str) -> Builder:
    build = Build(compile=[["make"]], install=[["make"]], artifacts=["x"])
    return Builder(name="small", summary="s", driver="d", repository=url, release_tags=["v{version}"], build=build)


def test_a_clone_is_made_once_and_kept_in_the_cache(builder: Builder, seal: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = cached_clone(builder, progress=lambda *step: seen.append(step))
    assert path == seal / ".cache/perfbisect/repositories/small.git"
    assert ("Receiving objects", 2, 2) in seen
    seen.clear()
    assert cached_clone(builder, ["1.0"], lambda *step: seen.append(step)) == path
    assert seen == []
    assert [each.name for each in path.parent.iterdir() if each.suffix == ".partial"] == []


def test_the_cache_is_where_the_user_wants_it(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cached_clone(builder) == tmp_path / "cache/perfbisect/repositories/small.git"


def test_a_missing_release_is_fetched(git: Git, builder: Builder) -> None:
    repo = open_repository(cached_clone(builder))
    git("commit", "-q", "--allow-empty", "-m", "1")
    git("tag", "v1.1")
    cached_clone(builder, ["1.0", "1.1"])
    assert resolve(repo, "1.1", builder.release_tags) == git("rev-parse", "HEAD")


def test_a_branch_that_moved_is_fetched_even_backwards(git: Git, builder: Builder) -> None:
    repo = open_repository(cached_clone(builder))
    git("commit", "-q", "--allow-empty", "--amend", "-m", "another")
    cached_clone(builder, ["v1.0", "main"])
    assert resolve(repo, "main", []) == git("rev-parse", "HEAD") != resolve(repo, "1.0", builder.release_tags)


def test_what_is_there_needs_no_network(git: Git, builder: Builder, origin: Path) -> None:
    cached_clone(builder)
    commit = git("rev-parse", "HEAD")
    origin.rename(origin.with_name("gone"))
    cached_clone(builder, ["1.0", "v1.0", commit, commit[:8]])
    with pytest.raises(EnvironmentFailure, match=r"file:.*/repo cannot be fetched: fatal: "):
        cached_clone(builder, ["1.1"])


def test_a_recipe_with_another_url_is_fetched_from_there(git: Git, builder: Builder, tmp_path: Path) -> None:
    repo = open_repository(cached_clone(builder))
    git("clone", "-q", str(tmp_path / "repo"), str(tmp_path / "fork"))
    git("commit", "-q", "--allow-empty", "-m", "forked", cwd=tmp_path / "fork")
    git("tag", "-f", "v1.0", cwd=tmp_path / "fork")
    cached_clone(recipe(f"file://{tmp_path}/fork"), ["1.0"])
    assert resolve(repo, "1.0", builder.release_tags) == git("rev-parse", "HEAD", cwd=tmp_path / "fork")


def test_a_url_that_does_not_answer_leaves_nothing_behind(tmp_path: Path, seal: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"file:///.*/nowhere cannot be cloned: fatal: .*nowhere"):
        cached_clone(recipe(f"file://{tmp_path}/nowhere"))
    assert [each.suffix for each in (seal / ".cache/perfbisect/repositories").iterdir()] == [".lock"]


def test_an_interrupted_clone_leaves_nothing_behind(builder: Builder, seal: Path) -> None:
    def interrupt(_stage: str, _done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_clone(builder, progress=interrupt)
    assert [each.suffix for each in (seal / ".cache/perfbisect/repositories").iterdir()] == [".lock"]


def test_a_recipe_without_repository_needs_a_local_clone() -> None:
    with pytest.raises(UsageError, match="Builder small names no repository") as caught:
        cached_clone(recipe(""))
    assert "--repo" in caught.value.advice


def test_a_url_is_never_an_option(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="cannot be cloned"):
        cached_clone(recipe(f"--upload-pack=touch {tmp_path}/pwned"))
    assert not (tmp_path / "pwned").exists()


def test_a_url_runs_no_command(tmp_path: Path, seal: Path, monkeypatch: pytest.MonkeyPatch, origin: Path) -> None:
    """Not even where the user's configuration allows it for other repositories; what the environment allows does run."""
    trace = tmp_path / "trace"
    command = f"ext::touch {trace}"
    (seal / ".gitconfig").write_text(
        f'[protocol "ext"]\n\tallow = always\n[url "{command}"]\n\tinsteadOf = short:\n\tinsteadOf = https://example.invalid/\n'
    )
    for url in (command, "short:", "https://example.invalid/", "EXT::touch x", f"fd::7,8/{trace}", "nowhere::x"):
        with pytest.raises(EnvironmentFailure, match="cannot be cloned"):
            cached_clone(recipe(url))
        assert not trace.exists()
    cached_clone(recipe(f"file://{origin}"))
    with pytest.raises(EnvironmentFailure, match="cannot be fetched"):
        cached_clone(recipe(command))
    assert not trace.exists()
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "ext")
    with pytest.raises(EnvironmentFailure, match="cannot be fetched"):
        cached_clone(recipe(command))
    assert trace.exists()


def test_hooks_of_the_user_do_not_run(builder: Builder, git: Git, tmp_path: Path, seal: Path) -> None:
    trap = Trap(tmp_path / "sprung")
    template = tmp_path / "template"
    trap.hooks(template / "hooks")
    (seal / ".gitconfig").write_text(
        f"[core]\n\thooksPath = {trap.hooks(tmp_path / 'hooks')}\n[init]\n\ttemplateDir = {template}\n"
    )
    repo = open_repository(cached_clone(builder))
    git("-c", "core.hooksPath=/dev/null", "commit", "-q", "--allow-empty", "-m", "1")
    git("-c", "core.hooksPath=/dev/null", "tag", "v1.1")
    cached_clone(builder, ["1.1"])
    assert resolve(repo, "1.1", builder.release_tags)
    assert trap.sprung == []
