"""Sources on a host: what is pushed there, checked out exactly, patched, and their submodules."""

import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec
import pytest

from machine import Machine
from perfbisect.core.domain.settings import Patch
from perfbisect.errors import BuildFailed, CommandFailed, EnvironmentFailure
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import Host, StoppableHost
from perfbisect.host.ssh import SshHost
from perfbisect.lab.build import checkout
from perfbisect.lab.build.host_git import REFS, push, scripted
from perfbisect.lab.build.host_git import git as git_on
from perfbisect.lab.build.pipeline import build, key_of
from perfbisect.lab.build.plan import BuildContext, Built
from perfbisect.recipes.builder import Build, Builder, Variant
from perfbisect.repository.discovery import open_repository
from repos import Repo, git
from sharing import Yard, break_stream
from waiting import finish

pytestmark = pytest.mark.tools


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    root = tmp_path / "our 'root'"
    root.mkdir()
    return LocalHost("here", PurePosixPath(root))


def mirrored(host: LocalHost, folder: Path, name: str = "n") -> PurePosixPath:
    return finish(checkout.mirror(host, open_repository(folder), name, []))[1]


@dataclass
class Source:
    """A repository, mirrored on a host, and a folder with a checkout of it."""

    host: LocalHost
    git: Repo
    name: str = "some name"

    def __post_init__(self) -> None:
        self.bare = mirrored(self.host, self.git.path, self.name)
        self.to = self.host.root / "work" / self.name / "source"
        self.here = Path(self.to)

    def at(self, sha: str, *ignore: str) -> set[str]:
        """The files there, once that commit is checked out."""
        checkout.checkout(self.host, self.bare, sha, self.to, list(ignore))
        return {path.relative_to(self.here).as_posix() for path in self.here.rglob("*") if not path.is_dir()}

    def write(self, files: dict[str, str]) -> None:
        for name, content in files.items():
            (self.here / name).parent.mkdir(parents=True, exist_ok=True)
            (self.here / name).write_text(content)


def test_a_checkout_is_exact(host: LocalHost, git: Repo) -> None:
    first = git.commit({"a.c": "1", "dir/b.c": "1", "dir/c.c": "1", ".gitignore": "*.o"})
    second = git.commit({"a.c": "2", 'new/é "q"\n.c': "x", "dir/b.c": None})
    source, expected = Source(host, git), {"a.c", "dir/b.c", "dir/c.c", ".gitignore"}
    assert source.at(first) == expected
    source.write({"a.c": "changed by a build", "built.o": "", "dir/made/x": "", "new": ""})
    (source.here / "dir/c.c").unlink()
    assert source.at(second) == {"a.c", "dir/c.c", 'new/é "q"\n.c', ".gitignore"}
    assert (source.here / "a.c").read_text() == "2"
    assert source.at(first) == expected


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
    source = Source(host, git)
    for ignore in IGNORE:
        pathspecs = [f":(top,exclude,glob){pattern}" for pattern in ignore]
        expected = set(git("ls-files", "-z", "--", ":(top)", *pathspecs).strip("\0").split("\0"))
        assert source.at(sha, *ignore) == expected, ignore


def test_ignored_files_that_a_build_made_do_not_survive(host: LocalHost, git: Repo) -> None:
    first, second = git.history([{"a.c": "1", "doc/a": "1"}, {"a.c": "2"}])
    source = Source(host, git)
    source.at(first, "doc/**")
    source.write({"doc/a": "made", "doc/b": "made"})
    found = [source.at(second, *ignore) for ignore in (["doc/**"], [], ["doc/**"])]
    assert found == [{"a.c"}, {"a.c", "doc/a"}, {"a.c"}]


def test_the_id_of_a_tree_sees_all_but_ignored_paths(host: LocalHost, git: Repo) -> None:
    ignore = ["doc/**", "*.md"]
    shas = git.history([{"a.c": "1", "doc/x": "1"}, {"doc/x": "2", "doc/y": "2", "README.md": "2"}, {"a.c": "2"}])
    (git.path / "a.c").chmod(0o755)
    shas.append(git.commit())
    git("mv", "a.c", "b.c")
    shas.append(git.commit())
    bare = mirrored(host, git.path)
    ids = [checkout.filtered_tree(host, bare, sha, ignore) for sha in shas]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 4
    assert checkout.filtered_tree(host, bare, shas[0], []) != checkout.filtered_tree(host, bare, shas[1], [])


def test_paths_of_a_tree(host: LocalHost, git: Repo) -> None:
    sha = git.commit({"a b.c": "1", "dir/x": "1"})
    bare, there = mirrored(host, git.path), ["a b.c", "dir", "dir/", "dir/x"]
    for asked, present in (([*there, "dir/y", "a*"], there), (["dir/y"], []), ([], [])):
        assert checkout.present(host, bare, sha, asked) == frozenset(present)


def test_an_incomplete_repository_serves_for_what_it_has(host: LocalHost, git: Repo) -> None:
    """As in a snapshot that came without an object."""
    sha = git.commit({"a.c": "1", "test/big": "not here"})
    blob = git("rev-parse", "HEAD:test/big")
    (git.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    source = Source(host, git)
    ids = {checkout.filtered_tree(host, source.bare, sha, ignore) for ignore in (["test/**"], [])}
    assert len(ids) == 2
    assert source.at(sha, "test/**") == {"a.c"}
    assert checkout.present(host, source.bare, sha, ["test/big"])
    with pytest.raises(
        BuildFailed, match="cannot be checked out: error: unable to read sha1 file of test/big"
    ) as caught:
        source.at(sha)
    assert caught.value.stage == "checkout"
    assert caught.value.advice.startswith("A partial clone serves only when its recipe ignores what is missing. See ")
    assert "test/big" in Path(caught.value.log).read_text()
    with pytest.raises(EnvironmentFailure, match="commit 1234512345 is not in"):
        source.at("1234512345" * 4)


def test_another_repository_and_a_cut_checkout_do_no_harm(host: LocalHost, git: Repo, tmp_path: Path) -> None:
    first, other = git.commit({"a.c": "1", "b.c": "1"}), Repo(tmp_path / "other")
    second = other.commit({"c.c": "1"})
    assert Source(host, git).at(first) == {"a.c", "b.c"}
    source = Source(host, other)
    Path(source.bare, "index.lock").touch()
    assert source.at(second) == {"c.c"}
    Path(source.bare, "index").write_bytes(b"cut")
    assert Source(host, git).at(first) == {"a.c", "b.c"}


def test_on_this_machine_nothing_is_copied(host: LocalHost, git: Repo) -> None:
    sha = git.commit({"a.c": "1"})
    stoppable = StoppableHost(host, threading.Event())
    told, bare = finish(checkout.mirror(stoppable, open_repository(git.path), "some name", [sha]))
    assert told == []
    assert not list(Path(bare, "objects").glob("??"))
    assert Source(host, git).at(sha) == {"a.c"}


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
    patches = (
        Patch("late", change("two", "three"), version="<2"),
        Patch("one", change("zero", "one")),
        Patch("two", change("one", "two")),
    )
    first = commit("zero", "1.5")
    for sha, expected, version, late in ((first, "three", "1.5", True), (commit("zero", "2.5"), "two", "2.5", False)):
        made, text = built(context(*patches), sha)
        assert (text, made.version) == (f"{expected}\nend\n", version)
        assert made.facts.patches == {"late": late, "one": True, "two": True}
    again = built(context(*patches), first)[0].facts
    assert again.reused
    assert again.patches["late"]
    keys = {key_of(context(*some), first) for some in (patches, patches[1:], patches[2:], ())}
    assert len(keys) == 3, "the last does not fit alone"


def test_a_binary_name_and_content_that_is_not_utf_8_are_no_obstacle(
    commit: Commit, context: Patched, git: Repo
) -> None:
    commit("x")
    (git.path / "text").write_bytes(b"\xe5se\nend\n")
    patch = Patch("it's $(touch x).patch", b"--- a/text\n+++ b/text\n@@ -1,2 +1,2 @@\n-\xe5se\n+\xe4\xf6\n end\n")
    made = finish(build(context(patch), git.commit()))[1]
    place = Path(context().host.root, "builds", made.facts.key, "prefix", "text")
    assert place.read_bytes() == b"\xe4\xf6\nend\n"


def test_nothing_outside_of_the_tree_is_touched(commit: Commit, context: Patched, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "repo" / "link").symlink_to(outside)
    paths = ("../out.add", ".git/hooks/post-checkout", "link/out.add", "/tmp/out.add")
    made, text = built(context(*(Patch(path, new_file(path)) for path in (*paths, "in.add"))), commit("x"))
    assert text == "x\nend\nadded\n"
    assert made.facts.patches == dict.fromkeys(paths, False) | {"in.add": True}
    assert not list(outside.iterdir())
    assert not [*tmp_path.rglob("out.add"), *Path("/tmp").glob("out.add")]


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


def test_only_what_is_missing_travels(git: Repo, host: LocalHost, bare: PurePosixPath) -> None:
    git("checkout", "-q", "-b", "$(touch${IFS}hit);'-odd-é")
    first = pushed(git, "a")
    repository = open_repository(git.path)
    told = list(push(host, bare, repository, [first]))
    assert (told[0], told[-1]) == ((0, 0), (3, 3))
    assert (there(bare), objects(bare)) == ({f"{REFS}/{first}"}, 3)
    second, third = pushed(git, "-b $(id)\n"), pushed(git, "ü")
    list(push(host, bare, repository, [first, third, third]))
    assert (there(bare), objects(bare)) == ({f"{REFS}/{first}", f"{REFS}/{third}"}, 9)
    show = subprocess.run(["git", f"--git-dir={bare}", "show", f"{second}:-b $(id)\n"], capture_output=True, check=True)
    assert show.stdout.startswith(b"-b $(id)\n")
    (repository.git_dir / "HEAD").unlink()  # nothing is asked of a repository whose commits are all there
    assert list(push(host, bare, repository, [first, third])) == []


def test_what_cannot_be_pushed(tmp_path: Path, git: Repo, host: LocalHost, bare: PurePosixPath) -> None:
    last, repository = pushed(git, "a"), open_repository(git.path)
    git("config", "uploadpack.allowFilter", "true")
    git("clone", "-q", "--bare", "--filter=blob:none", "--", f"file://{git.path}", str(tmp_path / "clone"))
    for sha, to, opened, sentence in (
        (last, bare, open_repository(tmp_path / "clone"), "is a partial clone"),
        ("1234512345" * 4, bare, repository, "cannot be pushed to host here"),
        (last, host.root / "nowhere", repository, r"cannot be pushed to host here: fatal: '.*/nowhere' "),
    ):
        with pytest.raises(EnvironmentFailure, match=sentence):
            list(push(host, to, opened, [sha]))
    assert there(bare) == set()


def test_a_push_goes_on_after_a_lost_link(
    git: Repo, far: SshHost, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More is on its way then than fits into the buffers, and git is not left waiting."""
    (git.path / "much").write_bytes(os.urandom(10_000_000))
    last, bare = pushed(git, "a"), far.root / "a.git"
    far.run(["git", "init", "-q", "--bare", str(bare)])
    break_stream(monkeypatch, True, machine.kill_sshd, pieces=4)  # what is asked for comes first
    list(push(far, bare, open_repository(git.path), [last]))
    assert there(bare) == {f"{REFS}/{last}"}


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """Where the repositories come from: ``super`` with ``libs/lib`` (relative), which has ``deep``, and nothing else."""
    place_of_modules = tmp_path / "origin"
    deep, lib, top = (
        Repo(place_of_modules / "deep").path,
        Repo(place_of_modules / "lib").path,
        Repo(place_of_modules / "super").path,
    )
    Repo(deep).commit({"d.c": "1", "doc/x": "1"})
    Repo(lib).add_module(str(deep), "deep")
    git(lib, "config", "--file", ".gitmodules", "submodule.deep.url", "../deep")
    Repo(lib).commit({"l.c": "1", "doc/x": "1"})
    Repo(top).add_module(str(lib), "libs/lib")
    git(top, "config", "--file", ".gitmodules", "submodule.libs/lib.url", "../lib")
    git(top, "config", "--file", ".gitmodules", "submodule.libs/lib.ignore", "all")
    git(top, "add", "-f", "libs/lib")
    Repo(top).commit({"a.c": "1"})
    return place_of_modules


@pytest.fixture
def clone(origin: Path, tmp_path: Path) -> Path:
    git(tmp_path, "clone", "-q", str(origin / "super"), "clone")
    return tmp_path / "clone"


def head(repo: Path) -> str:
    return git(repo, "rev-parse", "HEAD")


def place_of_modules(host: Host) -> PurePosixPath:
    return host.root / "work" / "n" / "source"


def bring(host: Host, repo: Path, sha: str = "", ignore: tuple[str, ...] = ()) -> set[str]:
    """Stages of what was brought; the checkout is made."""
    opened, sha = open_repository(repo), sha or head(repo)
    _, bare = finish(checkout.mirror(host, opened, "n", [sha]))
    steps, parts = finish(checkout.bring_submodules(host, "n", opened, sha, ignore, ""))
    checkout.checkout(host, bare, sha, place_of_modules(host), ignore, parts)
    return {step.stage for step in steps}


def tree_of(host: Host) -> set[str]:
    found = host.run(["find", str(place_of_modules(host)), "!", "-type", "d", "-printf", "%P\\n"])
    return set(found.stdout.splitlines())


TOP = {".gitmodules", "a.c"}
LIB = {"libs/lib/.gitmodules", "libs/lib/l.c", "libs/lib/doc/x"}
DEEP = {"libs/lib/deep/d.c", "libs/lib/deep/doc/x"}


def test_they_are_fetched_once_with_those_inside_them(host: LocalHost, origin: Path, clone: Path, seal: Path) -> None:
    """Also of a server that gives only branches."""
    Repo(origin / "lib").commit({"newer": ""})
    (seal / ".gitconfig").write_text("[protocol]\n\tversion = 0\n")
    assert bring(host, clone) == {"fetch"}
    assert tree_of(host) == TOP | LIB | DEEP
    shutil.rmtree(origin)
    assert bring(host, clone) == set()
    assert not list((clone / ".git").glob("modules/*")), "the clone stays as it is"


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
    assert bring(host, repo) == set()
    assert tree_of(host) == TOP | LIB | DEEP


def test_a_checkout_with_submodules_is_exact(host: LocalHost, origin: Path, clone: Path) -> None:
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
    for sha in (first, moved, first, gone, moved, folder, first, file, moved):
        bring(host, clone, sha)
        assert tree_of(host) == expected[sha]
        here = Path(place_of_modules(host))
        if sha in (first, moved):
            assert (here / "libs/lib/l.c").read_text() == ("1" if sha == first else "2")
            (here / "libs/lib/l.c").write_text("changed")
            (here / "libs/lib/deep/made.o").write_text("")
    for ignore, files in (
        (("libs/lib/deep", "**/doc/**"), (TOP | LIB) - {"libs/lib/doc/x"}),
        (("libs/**",), TOP),
        ((), TOP | LIB | DEEP),
    ):
        bring(host, clone, first, ignore)
        assert tree_of(host) == files


def test_what_a_link_leads_to_is_left_alone(host: LocalHost, clone: Path, tmp_path: Path) -> None:
    bring(host, clone)
    outside = tmp_path / "outside"
    (outside / "lib").mkdir(parents=True)
    (outside / "lib/x").write_text("")
    for link in ("libs/lib/deep", "libs/lib", "libs"):
        shutil.rmtree(Path(place_of_modules(host), link))
        Path(place_of_modules(host), link).symlink_to(outside)
        bring(host, clone)
        assert tree_of(host) == TOP | LIB | DEEP
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
        bring(host, repo)
    assert caught.value.stage == "checkout"
    assert str(caught.value).startswith(f"{head(repo)[:10]} cannot be checked out: submodule ")
    assert Path(caught.value.log).read_text()
    return caught.value


def test_what_cannot_be_had(host: LocalHost, origin: Path, clone: Path) -> None:
    shutil.rmtree(origin / "lib")
    failed, at = refused(host, clone), git(clone, "rev-parse", "HEAD:libs/lib")
    assert f"submodule libs/lib at {at[:10]} is not in {clone}, and " in str(failed)
    assert f"{origin}/lib cannot be fetched: fatal: " in str(failed)
    assert failed.advice.startswith(f"`git -C {clone} submodule update --init libs/lib` may bring it. See ")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ext::sh -c touch% TRACE", "only file, https and ssh are used"),
        ("http://user:secret@h/x", "address in .gitmodules, http://***@h/x, is not used: only file"),
        ("-u./TRACE", "it is no address"),
        ("../../../../../../../../../../../x", "it is relative, and leads outside"),
        ("", "it is empty"),
    ],
)
def test_addresses_that_are_not_used(host: LocalHost, clone: Path, tmp_path: Path, url: str, sentence: str) -> None:
    for key, value in (("url", url.replace("TRACE", str(tmp_path / "hit"))), ("update", f"!touch {tmp_path}/hit")):
        git(clone, "config", "--file", ".gitmodules", f"submodule.libs/lib.{key}", value)
    git(clone, "commit", "-qam", "hostile")
    failed = refused(host, clone)
    assert sentence in str(failed)
    assert "secret" not in str(failed) + failed.advice + Path(failed.log).read_text()
    assert not list(tmp_path.rglob("hit"))


def test_names_and_paths_that_lead_elsewhere(host: LocalHost, origin: Path, clone: Path) -> None:
    """Neither a name with `..`, nor a link in the user's checkout, reaches another repository."""
    Repo(clone / ".git/modules")
    shutil.copytree(origin / "lib", clone / ".git/private")
    for entry, sentence in (
        ('[submodule "../private/.git"]', "leads outside of the folder of submodules: ../private/.git"),
        (f'[submodule "{"x" * 5000}"]', "/nowhere cannot be fetched"),
        ("", ".gitmodules has no entry for it"),
    ):
        (clone / ".gitmodules").write_text(entry and f"{entry}\n\tpath = libs/lib\n\turl = /nowhere\n")
        git(clone, "commit", "-qam", "hostile")
        failed = refused(host, clone)
        assert sentence in str(failed)
    assert failed.advice.startswith('If the build does not need it, leave it out by the recipe: ignore = ["libs/lib"].')
    shutil.rmtree(clone / "libs")
    (clone / "libs").symlink_to(clone / "elsewhere")
    shutil.copytree(origin / "lib", clone / "elsewhere/lib")
    refused(host, clone)
    (clone / "libs").unlink()
    shutil.copytree(origin / "lib", clone / "libs/lib")
    bring(host, clone)
    assert tree_of(host) == TOP | LIB | DEEP


def test_a_path_that_is_not_utf8_is_left_out_as_the_advice_says(host: LocalHost, origin: Path, clone: Path) -> None:
    Repo(clone).move_module(os.fsdecode(b"odd\xe9"), head(origin / "lib"))
    failed = refused(host, clone)
    assert "its path is not UTF-8" in str(failed)
    assert 'ignore = ["odd?"]' in failed.advice
    bring(host, clone, ignore=("odd?",))
    assert tree_of(host) == TOP | LIB | DEEP
