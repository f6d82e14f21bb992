"""Submodules in a checkout: from the user's clone or from their addresses; what cannot be had is a sentence."""

import os
import shutil
from pathlib import Path, PurePosixPath

import pytest

from perfbisect.errors import BuildFailed
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import Host
from perfbisect.lab.build import checkout
from perfbisect.repository.discovery import open_repository
from repos import Repo, git
from waiting import finish

pytestmark = pytest.mark.tools


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """Where the repositories come from: ``super`` with ``libs/lib`` (relative), which has ``deep``, and nothing else."""
    place = tmp_path / "origin"
    deep, lib, top = Repo(place / "deep").path, Repo(place / "lib").path, Repo(place / "super").path
    Repo(deep).commit({"d.c": "1", "doc/x": "1"})
    Repo(lib).add_module(str(deep), "deep")
    git(lib, "config", "--file", ".gitmodules", "submodule.deep.url", "../deep")
    Repo(lib).commit({"l.c": "1", "doc/x": "1"})
    Repo(top).add_module(str(lib), "libs/lib")
    git(top, "config", "--file", ".gitmodules", "submodule.libs/lib.url", "../lib")
    git(top, "config", "--file", ".gitmodules", "submodule.libs/lib.ignore", "all")
    git(top, "add", "-f", "libs/lib")
    Repo(top).commit({"a.c": "1"})
    return place


@pytest.fixture
def clone(origin: Path, tmp_path: Path) -> Path:
    git(tmp_path, "clone", "-q", str(origin / "super"), "clone")
    return tmp_path / "clone"


def head(repo: Path) -> str:
    return git(repo, "rev-parse", "HEAD")


def place(host: Host) -> PurePosixPath:
    return host.root / "work" / "n" / "source"


def check_out(host: Host, repo: Path, sha: str = "", ignore: tuple[str, ...] = ()) -> set[str]:
    """Stages of what was brought; the checkout is made."""
    opened, sha = open_repository(repo), sha or head(repo)
    _, bare = finish(checkout.mirror(host, opened, "n", [sha]))
    steps, parts = finish(checkout.bring_submodules(host, "n", opened, sha, ignore, ""))
    checkout.checkout(host, bare, sha, place(host), ignore, parts)
    return {step.stage for step in steps}


def listing(host: Host) -> set[str]:
    found = host.run(["find", str(place(host)), "!", "-type", "d", "-printf", "%P\\n"])
    return set(found.stdout.splitlines())


TOP = {".gitmodules", "a.c"}
LIB = {"libs/lib/.gitmodules", "libs/lib/l.c", "libs/lib/doc/x"}
DEEP = {"libs/lib/deep/d.c", "libs/lib/deep/doc/x"}


def test_they_are_fetched_once_with_those_inside_them(host: LocalHost, origin: Path, clone: Path) -> None:
    assert check_out(host, clone) == {"fetch"}
    assert listing(host) == TOP | LIB | DEEP
    shutil.rmtree(origin)
    assert check_out(host, clone) == set()
    assert not list((clone / ".git").glob("modules/*")), "the clone stays as it is"


def test_a_server_that_gives_only_branches(host: LocalHost, origin: Path, clone: Path, seal: Path) -> None:
    Repo(origin / "lib").commit({"newer": ""})
    (seal / ".gitconfig").write_text("[protocol]\n\tversion = 0\n")
    assert check_out(host, clone) == {"fetch"}
    assert listing(host) == TOP | LIB | DEEP


@pytest.mark.parametrize("kind", ["absorbed", "folder", "worktree", "without its folder"])
def test_they_are_taken_from_the_clone(host: LocalHost, origin: Path, clone: Path, tmp_path: Path, kind: str) -> None:
    git(clone, "submodule", "--quiet", "update", "--init", "--recursive")
    repo = clone
    if kind == "folder":
        for path in ("libs/lib/deep", "libs/lib"):
            module = clone / path
            git_dir = Path(git(module, "rev-parse", "--absolute-git-dir"))
            (module / ".git").unlink()
            shutil.copytree(git_dir, module / ".git", ignore=shutil.ignore_patterns("modules"))
            git(clone, "config", "--file", str(module / ".git/config"), "--unset", "core.worktree")
        shutil.rmtree(clone / ".git/modules")
    elif kind == "worktree":
        git(clone, "worktree", "add", "-q", str(tmp_path / "linked"))
        repo = tmp_path / "linked"
    elif kind == "without its folder":
        git(clone, "submodule", "--quiet", "deinit", "--all", "--force")
    shutil.rmtree(origin)
    assert check_out(host, repo) == set()
    assert listing(host) == TOP | LIB | DEEP


def test_a_checkout_is_exact(host: LocalHost, origin: Path, clone: Path) -> None:
    """Also when a submodule moves, is replaced by a folder or a file, goes away, returns, and after builds."""
    git(clone, "submodule", "--quiet", "update", "--init", "--recursive")
    first = head(clone)
    lib = Repo(clone / "libs/lib").commit({"l.c": "2", "new.c": ""})
    moved = Repo(clone).move_module("libs/lib", lib)
    git(clone, "rm", "-q", "--cached", "libs/lib")
    git(clone, "commit", "-q", "-m", "gone")
    gone = head(clone)
    (clone / "libs/lib").rename(clone.parent / "aside")
    folder = Repo(clone).commit({"libs/lib/l.c": "folder", "libs/lib/other": ""})
    shutil.rmtree(clone / "libs/lib")
    file = Repo(clone).commit({"libs/lib": "file"})
    expected = {
        first: TOP | LIB | DEEP,
        moved: TOP | LIB | DEEP | {"libs/lib/new.c"},
        gone: TOP,
        folder: TOP | {"libs/lib/l.c", "libs/lib/other"},
        file: TOP | {"libs/lib"},
    }
    for sha in (first, moved, first, gone, moved, folder, first, file, moved, first):
        check_out(host, clone, sha)
        assert listing(host) == expected[sha]
        here = Path(place(host))
        if sha in (first, moved):
            assert (here / "libs/lib/l.c").read_text() == ("1" if sha == first else "2")
            (here / "libs/lib/l.c").write_text("changed")
            (here / "libs/lib/deep/made.o").write_text("")
    check_out(host, clone, first, ("libs/lib/deep", "**/doc/**"))
    assert listing(host) == (TOP | LIB) - {"libs/lib/doc/x"}
    check_out(host, clone, first, ("libs/**",))
    assert listing(host) == TOP
    check_out(host, clone, first)
    assert listing(host) == TOP | LIB | DEEP


def test_what_a_link_leads_to_is_left_alone(host: LocalHost, clone: Path, tmp_path: Path) -> None:
    check_out(host, clone)
    outside = tmp_path / "outside"
    (outside / "lib").mkdir(parents=True)
    (outside / "lib/x").write_text("")
    for link in ("libs/lib/deep", "libs/lib", "libs"):
        shutil.rmtree(Path(place(host), link))
        Path(place(host), link).symlink_to(outside)
        check_out(host, clone)
        assert listing(host) == TOP | LIB | DEEP
        assert [path.name for path in outside.rglob("*")] == ["lib", "x"]


def test_the_identity_of_a_tree(host: LocalHost, clone: Path) -> None:
    opened, first = open_repository(clone), head(clone)
    plain = Repo(clone).commit({"libs/other": ""})
    bare = finish(checkout.mirror(host, opened, "n", []))[1]
    git(Path(bare), "update-ref", "--no-deref", "HEAD", first)  # whose .gitmodules says "ignore = all"
    moved = Repo(clone).move_module("libs/lib", plain)

    def identity(sha: str, *ignore: str) -> str:
        return checkout.with_submodules(checkout.filtered_tree(host, bare, sha, ignore), opened, sha, ignore)

    assert identity(plain) != identity(moved)
    assert (
        identity(plain, "libs/lib")
        == identity(moved, "libs/lib")
        == checkout.filtered_tree(host, bare, moved, ["libs/lib"])
    )
    assert identity(plain) != identity(plain, "libs/lib/doc/**") == identity(plain, "libs/lib/doc/**")


def refused(host: Host, repo: Path) -> BuildFailed:
    with pytest.raises(BuildFailed) as caught:
        check_out(host, repo)
    assert caught.value.stage == "checkout"
    assert str(caught.value).startswith(f"{head(repo)[:10]} cannot be checked out: submodule ")
    assert Path(caught.value.log).read_text()
    return caught.value


def test_what_cannot_be_had(host: LocalHost, origin: Path, clone: Path, tmp_path: Path) -> None:
    shutil.rmtree(origin / "lib")
    failed = refused(host, clone)
    assert f"submodule libs/lib at {git(clone, 'rev-parse', 'HEAD:libs/lib')[:10]} is not in {clone}, and " in str(
        failed
    )
    assert f"{origin}/lib cannot be fetched: fatal: " in str(failed)
    assert failed.advice.startswith(f"`git -C {clone} submodule update --init libs/lib` may bring it. See ")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ext::sh -c touch% TRACE", "only file, https and ssh are used"),
        (
            "http://user:secret@example.org/x",
            "address in .gitmodules, http://***@example.org/x, is not used: only file",
        ),
        ("git://example.org/x", "only file, https and ssh are used"),
        ("-u./TRACE", "it is no address"),
        ("ssh://-oProxyCommand=x/y", "its host begins with a dash"),
        ("../../../../../../../../../../../x", "it is relative, and leads outside"),
        ("", "it is empty"),
    ],
)
def test_addresses_that_are_not_used(host: LocalHost, clone: Path, tmp_path: Path, url: str, sentence: str) -> None:
    git(clone, "config", "--file", ".gitmodules", "submodule.libs/lib.url", url.replace("TRACE", str(tmp_path / "hit")))
    git(clone, "config", "--file", ".gitmodules", "submodule.libs/lib.update", f"!touch {tmp_path}/hit")
    git(clone, "commit", "-qam", "hostile")
    failed = refused(host, clone)
    assert sentence in str(failed)
    assert "secret" not in str(failed) + failed.advice + Path(failed.log).read_text()
    assert not list(tmp_path.rglob("hit"))


def test_names_and_paths_that_lead_elsewhere(host: LocalHost, origin: Path, clone: Path, tmp_path: Path) -> None:
    """Neither a name with `..`, nor a link in the user's checkout, reaches another repository."""
    Repo(clone / ".git/modules")
    shutil.copytree(origin / "lib", clone / ".git/private")
    (clone / ".gitmodules").write_text('[submodule "../private/.git"]\n\tpath = libs/lib\n\turl = /nowhere\n')
    git(clone, "commit", "-qam", "hostile")
    assert "leads outside of the folder of submodules: ../private/.git" in str(refused(host, clone))
    (clone / ".gitmodules").write_text(f'[submodule "{"x" * 5000}"]\n\tpath = libs/lib\n\turl = /nowhere\n')
    git(clone, "commit", "-qam", "too long")
    assert "/nowhere cannot be fetched" in str(refused(host, clone))
    (clone / ".gitmodules").write_text("")
    git(clone, "commit", "-qam", "without an entry")
    failed = refused(host, clone)
    assert ".gitmodules has no entry for it" in str(failed)
    assert failed.advice.startswith('If the build does not need it, leave it out by the recipe: ignore = ["libs/lib"].')
    shutil.rmtree(clone / "libs")
    (clone / "libs").symlink_to(clone / "elsewhere")
    shutil.copytree(origin / "lib", clone / "elsewhere/lib")
    refused(host, clone)
    (clone / "libs").unlink()
    shutil.copytree(origin / "lib", clone / "libs/lib")
    check_out(host, clone)
    assert listing(host) == TOP | LIB | DEEP


def test_a_path_that_is_not_utf8_is_left_out_as_the_advice_says(host: LocalHost, origin: Path, clone: Path) -> None:
    Repo(clone).move_module(os.fsdecode(b"odd\xe9"), head(origin / "lib"))
    failed = refused(host, clone)
    assert "its path is not UTF-8" in str(failed)
    assert 'ignore = ["odd?"]' in failed.advice
    check_out(host, clone, ignore=("odd?",))
    assert listing(host) == TOP | LIB | DEEP
