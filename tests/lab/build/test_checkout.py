import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import msgspec
import pytest

from machine import Machine
from perfbisect.core.domain.settings import Patch
from perfbisect.errors import BuildFailed, CommandFailed, EnvironmentFailure
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import StoppableHost
from perfbisect.host.ssh import SshHost
from perfbisect.lab.build import checkout
from perfbisect.lab.build.host_git import REFS, push, scripted
from perfbisect.lab.build.host_git import git as git_on
from perfbisect.lab.build.pipeline import build, key_of
from perfbisect.lab.build.plan import BuildContext, Built
from perfbisect.recipes.builder import Build, Builder, Variant
from perfbisect.repository.discovery import open_repository
from repos import Repo
from sharing import Yard, break_stream
from waiting import finish

pytestmark = pytest.mark.tools


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    root = tmp_path / "our 'root'"
    root.mkdir()
    return LocalHost("here", PurePosixPath(root))


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def listing(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def place(host: LocalHost) -> PurePosixPath:
    return host.root / "work" / "some name" / "source"


def mirrored(host: LocalHost, folder: Path, name: str = "n") -> PurePosixPath:
    return finish(checkout.mirror(host, open_repository(folder), name, []))[1]


def check_out(host: LocalHost, bare: PurePosixPath, sha: str, to: PurePosixPath, ignore: list[str]) -> None:
    checkout.checkout(host, bare, sha, to, ignore)


def test_a_checkout_is_exact(host: LocalHost, git: Repo) -> None:
    first = git.commit({"a.c": "1", "dir/b.c": "1", "dir/c.c": "1", ".gitignore": "*.o"})
    second = git.commit({"a.c": "2", 'new/é "q"\n.c': "x", "dir/b.c": None})
    bare, to = mirrored(host, git.path, "some name"), place(host)
    check_out(host, bare, first, to, [])
    here = Path(to)
    assert listing(here) == {"a.c", "dir/b.c", "dir/c.c", ".gitignore"}

    write(here, {"a.c": "changed by a build", "built.o": "", "dir/made/x": "", "new": ""})
    (here / "dir/c.c").unlink()
    check_out(host, bare, second, to, [])
    assert listing(here) == {"a.c", "dir/c.c", 'new/é "q"\n.c', ".gitignore"}
    assert (here / "a.c").read_text() == "2"
    check_out(host, bare, first, to, [])
    assert listing(here) == {"a.c", "dir/b.c", "dir/c.c", ".gitignore"}


FILES = [
    "README.md", "src/a.c", "src/notes.md", "src/deep/notes.md", "doc/a", "doc/deep/b", "tests/a", "tests/lib/b",
    "test-old/a", "testing.c", ".hidden", ".config/a", "src/doc/a", "odd [x]/a", "odd x/a", "tail ", "tail", "#hash/a",
    "!bang", "deep/doc/a", "src/test1.c", "src/testlib/a.c", "back\\slash", "star*/a", "starry/a",
]  # fmt: skip


IGNORE = [
    ["doc/**"], ["*.md"], ["**/*.md"], ["doc"], [".*"], ["src/test*"], ["test*", "tests/**"], ["**/doc/**"],
    ["odd [[]x]/**"], ["odd \\[x\\]/**"], ["tail "], ["#hash/**"], ["!bang"], ["src/*"], ["src/*", "src/deep/**"],
    ["t*", "*/test*", "src/testlib/**"], ["star\\*/**"], ["back\\\\slash"], ["nothing/**"], ["**/a"], ["*/deep/**"],
    ["src/**/notes.md"], ["README.md", "doc/deep"], ["[t-t]ests/**", "*.[ch]"], [],
]  # fmt: skip


def test_ignored_paths_are_absent_and_no_others(host: LocalHost, git: Repo) -> None:
    """The range, the id of a tree and the checkout agree on what is ignored: git's pathspecs say it."""
    sha = git.commit(dict.fromkeys(FILES, "x"))
    bare, to = mirrored(host, git.path), place(host)
    for ignore in IGNORE:
        pathspecs = [f":(top,exclude,glob){pattern}" for pattern in ignore]
        expected = set(git("ls-files", "-z", "--", ":(top)", *pathspecs).strip("\0").split("\0"))
        check_out(host, bare, sha, to, ignore)
        assert listing(Path(to)) == expected, ignore


def test_ignored_files_that_a_build_made_do_not_survive(host: LocalHost, git: Repo) -> None:
    first = git.commit({"a.c": "1", "doc/a": "1"})
    second = git.commit({"a.c": "2"})
    bare, to = mirrored(host, git.path), place(host)
    check_out(host, bare, first, to, ["doc/**"])
    write(Path(to), {"doc/a": "made", "doc/b": "made"})
    check_out(host, bare, second, to, ["doc/**"])
    assert listing(Path(to)) == {"a.c"}
    check_out(host, bare, second, to, [])
    assert listing(Path(to)) == {"a.c", "doc/a"}
    check_out(host, bare, second, to, ["doc/**"])
    assert listing(Path(to)) == {"a.c"}


def test_the_id_of_a_tree_sees_all_but_ignored_paths(host: LocalHost, git: Repo) -> None:
    ignore = ["doc/**", "*.md"]
    shas = [
        git.commit({"a.c": "1", "doc/x": "1"}),
        git.commit({"doc/x": "2", "doc/y": "2", "README.md": "2"}),
        git.commit({"a.c": "2"}),
    ]
    (git.path / "a.c").chmod(0o755)
    shas.append(git.commit({}))
    git("mv", "a.c", "b.c")
    shas.append(git.commit({}))
    bare = mirrored(host, git.path)
    ids = [checkout.filtered_tree(host, bare, sha, ignore) for sha in shas]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 4
    assert checkout.filtered_tree(host, bare, shas[0], []) != checkout.filtered_tree(host, bare, shas[1], [])


def test_paths_of_a_tree(host: LocalHost, git: Repo) -> None:
    sha = git.commit({"a b.c": "1", "dir/x": "1"})
    bare = mirrored(host, git.path)
    assert checkout.present(host, bare, sha, ["a b.c", "dir", "dir/", "dir/x", "dir/y", "a*"]) == {
        "a b.c", "dir", "dir/", "dir/x",
    }  # fmt: skip
    assert checkout.present(host, bare, sha, ["dir/y"]) == checkout.present(host, bare, sha, []) == frozenset()


def lose(git: Repo, blob: str) -> None:
    """Take an object away, as in a snapshot that came without it."""
    (git.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()


def test_an_incomplete_repository_serves_for_what_it_has(host: LocalHost, git: Repo) -> None:
    sha = git.commit({"a.c": "1", "test/big": "not here"})
    lose(git, git("rev-parse", "HEAD:test/big"))
    bare, to = mirrored(host, git.path), place(host)
    assert checkout.filtered_tree(host, bare, sha, ["test/**"]) != checkout.filtered_tree(host, bare, sha, [])
    check_out(host, bare, sha, to, ["test/**"])
    assert listing(Path(to)) == {"a.c"}
    assert checkout.present(host, bare, sha, ["test/big"])
    with pytest.raises(
        BuildFailed, match="cannot be checked out: error: unable to read sha1 file of test/big"
    ) as caught:
        check_out(host, bare, sha, to, [])
    assert caught.value.stage == "checkout"
    assert caught.value.advice.startswith("A partial clone serves only when its recipe ignores what is missing. See ")
    assert "test/big" in Path(caught.value.log).read_text()


def test_an_unknown_commit_is_named(host: LocalHost, git: Repo) -> None:
    git.commit({"a.c": "1"})
    with pytest.raises(EnvironmentFailure, match="commit 1234512345 is not in"):
        check_out(host, mirrored(host, git.path), "1234512345" * 4, place(host), [])


def test_another_repository_and_a_cut_checkout_do_no_harm(host: LocalHost, git: Repo, tmp_path: Path) -> None:
    first = git.commit({"a.c": "1", "b.c": "1"})
    to = place(host)
    check_out(host, mirrored(host, git.path), first, to, [])
    other = tmp_path / "other"
    subprocess.run(["git", "init", "-q", str(other)], check=True)
    write(other, {"c.c": "1"})
    git("add", "-A", cwd=other)
    git("commit", "-q", "-m", "other", cwd=other)
    bare = mirrored(host, other)
    Path(bare, "index.lock").touch()
    check_out(host, bare, git("rev-parse", "HEAD", cwd=other), to, [])
    assert listing(Path(to)) == {"c.c"}
    Path(bare, "index").write_bytes(b"cut")
    check_out(host, mirrored(host, git.path), first, to, [])
    assert listing(Path(to)) == {"a.c", "b.c"}


def test_on_this_machine_nothing_is_copied(host: LocalHost, git: Repo) -> None:
    sha = git.commit({"a.c": "1"})
    told, bare = finish(checkout.mirror(StoppableHost(host, threading.Event()), open_repository(git.path), "n", [sha]))
    assert told == []
    assert not list(Path(bare, "objects").glob("??"))
    check_out(host, bare, sha, place(host), [])
    assert listing(Path(place(host))) == {"a.c"}


def test_an_error_names_the_command_of_git_and_nothing_around_it(host: LocalHost) -> None:
    with pytest.raises(CommandFailed, match=r"^on host \w+, git cat-file -e 1234 ended with status 128: fatal: "):
        git_on(host, "cat-file", "-e", "1234")
    with pytest.raises(
        CommandFailed, match=r"^on host \w+, sh -c 'git \"\$@\"' git no-such ended with status 1: git: 'no-such' is"
    ):
        scripted(host, 'git "$@"', ["no-such"])


RECIPE = Builder(
    name="text",
    summary="a text",
    driver="text",
    version=["cat", "{source}/VERSION"],
    ignore=["doc/**"],
    variants={"o2nofp": Variant()},
    build=Build(
        compile=[["sh", "-c", "! grep broken {source}/text"]],
        install=[["sh", "-c", "mkdir -p {prefix} && cat {source}/text {source}/*.add >{prefix}/text || :"]],
        artifacts=["text"],
        timeout=60.0,
    ),
)


def change(old: str, new: str, path: str = "text") -> bytes:
    return f"--- a/{path}\n+++ b/{path}\n@@ -1,2 +1,2 @@\n-{old}\n+{new}\n end\n".encode()


def new_file(path: str) -> bytes:
    return f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+added\n".encode()


Commit = Callable[..., str]
Patched = Callable[..., BuildContext]


@pytest.fixture
def commit(git: Repo) -> Commit:
    """``commit(text, version)`` commits a tree with these; returns the hash."""
    return lambda text, version="1.0": git.commit({"text": f"{text}\nend\n", "VERSION": f"{version}\n"})


@pytest.fixture
def context(yard: Yard) -> Patched:
    yard.recipe = msgspec.structs.replace(RECIPE, folder=yard.recipe.folder)
    return lambda *patches: yard.context("", *patches)


def built(context: BuildContext, sha: str) -> tuple[Built, str]:
    """A build, and what it installed."""
    made = finish(build(context, sha))[1]
    return made, Path(context.host.root, "builds", made.facts.key, "prefix", "text").read_text()


def test_a_commit_is_known_by_its_patched_tree(commit: Commit, context: Patched) -> None:
    """With the patch it is the same build as the commit that has the fix; where nothing fits, it is as without patches."""
    old, fixed, other = commit("broken"), commit("fixed"), commit("other")
    fix = Patch("fix.patch", change("broken", "fixed"))
    with pytest.raises(BuildFailed):
        built(context(), old)
    plain, with_it = context(), context(fix)
    assert key_of(with_it, old) == key_of(plain, fixed) != key_of(plain, old)
    assert key_of(with_it, other) == key_of(plain, other)
    made, text = built(with_it, old)
    assert text == "fixed\nend\n"
    assert made.facts.commit == old
    assert made.facts.patches == {"fix.patch": True}
    again, _ = built(with_it, fixed)
    assert again.facts.reused
    assert again.facts.patches == {"fix.patch": False}, "it has the fix already"
    assert built(plain, other)[0].facts.patches == {}
    assert built(with_it, other)[0].facts.reused
    left = {path.name for path in Path(str(with_it.bare)).iterdir()}
    assert not {"perfbisect.index", "perfbisect.index.lock"} & left


def test_patches_build_on_each_other_and_those_for_some_versions_come_last(commit: Commit, context: Patched) -> None:
    first, second = commit("zero", "1.5"), commit("zero", "2.5")
    patches = (
        Patch("late", change("two", "three"), version="<2"),
        Patch("one", change("zero", "one")),
        Patch("two", change("one", "two")),
    )
    made, text = built(context(*patches), first)
    assert (text, made.version) == ("three\nend\n", "1.5")
    assert made.facts.patches == dict.fromkeys(("late", "one", "two"), True)
    made, text = built(context(*patches), second)
    assert text == "two\nend\n"
    assert made.facts.patches == {"late": False, "one": True, "two": True}
    again = built(context(*patches), first)[0].facts
    assert again.reused
    assert again.patches["late"]
    keys = {key_of(context(*some), first) for some in (patches, patches[1:], patches[2:], ())}
    assert len(keys) == 3, "the last does not fit alone"


def test_a_binary_name_and_content_that_is_not_utf_8_are_no_obstacle(
    commit: Commit, context: Patched, git: Repo, tmp_path: Path
) -> None:
    commit("x")
    (tmp_path / "repo" / "text").write_bytes(b"\xe5se\nend\n")
    git("commit", "-qam", "Latin-1")
    sha = git("rev-parse", "HEAD")
    patch = Patch("it's $(touch x).patch", b"--- a/text\n+++ b/text\n@@ -1,2 +1,2 @@\n-\xe5se\n+\xe4\xf6\n end\n")
    made = finish(build(context(patch), sha))[1]
    place = Path(context().host.root, "builds", made.facts.key, "prefix", "text")
    assert place.read_bytes() == b"\xe4\xf6\nend\n"


@pytest.mark.parametrize("path", ["../out.add", ".git/hooks/post-checkout", "link/out.add", "/tmp/out.add"])
def test_nothing_outside_of_the_tree_is_touched(commit: Commit, context: Patched, tmp_path: Path, path: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "repo" / "link").symlink_to(outside)
    sha = commit("x")
    made, text = built(context(Patch("p", new_file(path)), Patch("in", new_file("in.add"))), sha)
    assert text == "x\nend\nadded\n"
    assert made.facts.patches == {"p": False, "in": True}
    assert not list(outside.iterdir())
    assert not list(tmp_path.rglob("out.add"))


@pytest.fixture
def bare(host: LocalHost) -> PurePosixPath:
    place = host.root / "a b.git"
    host.run(["git", "init", "-q", "--bare", str(place)])
    return place


def pushed(git: Repo, name: str) -> str:
    return git.commit({name: name * 1000})


def there(bare: PurePosixPath) -> set[str]:
    show = ["git", f"--git-dir={bare}", "for-each-ref", "--format=%(refname)"]
    return set(subprocess.run(show, capture_output=True, text=True, check=True).stdout.split())


def objects(bare: PurePosixPath) -> int:
    return sum(1 for _ in Path(bare, "objects").glob("??/*"))


def test_only_what_is_missing_travels(tmp_path: Path, git: Repo, host: LocalHost, bare: PurePosixPath) -> None:
    git("checkout", "-q", "-b", "$(touch${IFS}hit);'-odd-é")
    first = pushed(git, "a")
    repository = open_repository(tmp_path / "repo")
    told = list(push(host, bare, repository, [first]))
    assert told[0] == (0, 0)
    assert told[-1] == (3, 3)
    assert there(bare) == {f"{REFS}/{first}"}
    assert objects(bare) == 3
    second, third = pushed(git, "-b $(id)\n"), pushed(git, "ü")
    list(push(host, bare, repository, [first, third, third]))
    assert there(bare) == {f"{REFS}/{first}", f"{REFS}/{third}"}
    assert objects(bare) == 9
    show = subprocess.run(["git", f"--git-dir={bare}", "show", f"{second}:-b $(id)\n"], capture_output=True, check=True)
    assert show.stdout.startswith(b"-b $(id)\n")
    (repository.git_dir / "HEAD").unlink()  # nothing is asked of a repository whose commits are all there
    assert list(push(host, bare, repository, [first, third])) == []


def test_an_incomplete_clone_is_refused(tmp_path: Path, git: Repo, host: LocalHost, bare: PurePosixPath) -> None:
    last = pushed(git, "a")
    git("config", "uploadpack.allowFilter", "true")
    git("clone", "-q", "--bare", "--filter=blob:none", "--", f"file://{tmp_path}/repo", str(tmp_path / "clone"))
    with pytest.raises(EnvironmentFailure, match="is a partial clone"):
        list(push(host, bare, open_repository(tmp_path / "clone"), [last]))
    assert there(bare) == set()


def test_what_git_says_is_reported(tmp_path: Path, git: Repo, host: LocalHost, bare: PurePosixPath) -> None:
    pushed(git, "a")
    with pytest.raises(EnvironmentFailure, match="cannot be pushed to host here"):
        list(push(host, bare, open_repository(tmp_path / "repo"), ["1234512345" * 4]))
    with pytest.raises(EnvironmentFailure, match=r"cannot be pushed to host here: fatal: '.*/nowhere' "):
        list(push(host, host.root / "nowhere", open_repository(tmp_path / "repo"), [git("rev-parse", "HEAD")]))


def test_a_push_goes_on_after_a_lost_link(
    tmp_path: Path, git: Repo, far: SshHost, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More is on its way then than fits into the buffers, and git is not left waiting."""
    host = far
    (tmp_path / "repo" / "much").write_bytes(os.urandom(10_000_000))
    last = pushed(git, "a")
    bare = host.root / "a.git"
    host.run(["git", "init", "-q", "--bare", str(bare)])
    break_stream(monkeypatch, True, machine.kill_sshd, pieces=4)  # what is asked for comes first
    list(push(host, bare, open_repository(tmp_path / "repo"), [last]))
    assert there(bare) == {f"{REFS}/{last}"}
