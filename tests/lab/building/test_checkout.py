"""Sources on a host: pushed commits, exact checkouts, patches and submodules."""

import os
import shutil
import threading
import tomllib
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pytest

from machine import Machine
from perfbisect.core.domain.settings import Patch
from perfbisect.errors import BuildFailed, CommandFailed, EnvironmentFailure
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import StoppableHost
from perfbisect.host.ssh import SshHost
from perfbisect.lab.building import checkout
from perfbisect.lab.building.checkout import REFS, git_script, push
from perfbisect.lab.building.checkout import run_git as git_on
from perfbisect.repository.discovery import open_repository
from repos import Repo, git
from sharing import break_stream
from waiting import finish

pytestmark = pytest.mark.tools

UNKNOWN = "1234512345" * 4


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    root = tmp_path / "our 'root'"
    root.mkdir()
    return LocalHost("here", PurePosixPath(root))


@dataclass
class Source:
    """A repository, and a folder on a host with a checkout of it."""

    host: LocalHost
    repo: Path
    name: str = "some name"
    stages: set[str] = field(default_factory=set)  # of the steps of the last checkout

    def __post_init__(self) -> None:
        self.to = self.host.root / "work" / self.name / "source"
        self.here = Path(self.to)
        self.bare = finish(checkout.bring_mirror(self.host, open_repository(self.repo), self.name, []))[1]

    def at(self, sha: str = "", *ignore: str) -> set[str]:
        """Check out a commit (by default HEAD) with its submodules. Return the files of the checkout."""
        opened, sha = open_repository(self.repo), sha or Repo(self.repo).head
        steps, parts = finish(checkout.bring_submodules(self.host, self.name, opened, sha, ignore, ""))
        self.stages = {step.stage for step in steps}
        checkout.checkout(self.host, self.bare, sha, self.to, ignore, parts)
        return {path.relative_to(self.here).as_posix() for path in self.here.rglob("*") if not path.is_dir()}

    def write(self, *names: str) -> None:
        """Write files into the checkout, as a build does."""
        for name in names:
            (self.here / name).parent.mkdir(parents=True, exist_ok=True)
            (self.here / name).write_text("made")

    def id(self, sha: str, *ignore: str) -> str:
        tree = checkout.filtered_tree(self.host, self.bare, sha, ignore)
        return checkout.tree_id_with_submodules(tree, open_repository(self.repo), sha, ignore)


@pytest.fixture
def source(host: LocalHost, git: Repo) -> Source:
    return Source(host, git.path)


def test_checkout_contains_exactly_the_files_of_the_commit(source: Source, git: Repo) -> None:
    first = git.commit({"a.c": "1", "dir/b.c": "1", "dir/c.c": "1", ".gitignore": "*.o"})
    second = git.commit({"a.c": "2", 'new/é "q"\n.c': "x", "dir/b.c": None})
    expected = {"a.c", "dir/b.c", "dir/c.c", ".gitignore"}
    assert source.at(first) == expected
    source.write("a.c", "built.o", "dir/made/x", "new")
    (source.here / "dir/c.c").unlink()
    assert source.at(second) == {"a.c", "dir/c.c", 'new/é "q"\n.c', ".gitignore"}
    assert (source.here / "a.c").read_text() == "2"
    assert source.at(first) == expected


IGNORED = tomllib.loads(Path(__file__).with_name("ignored.toml").read_text())


def test_checkout_lacks_only_the_ignored_paths(source: Source, git: Repo) -> None:
    """The expected paths follow from git's pathspecs, which the range and the id of a tree also use."""
    sha = git.commit(dict.fromkeys(IGNORED["files"], "x"))
    for ignore in IGNORED["ignore"]:
        pathspecs = [f":(top,exclude,glob){pattern}" for pattern in ignore]
        expected = set(git("ls-files", "-z", "--", ":(top)", *pathspecs).strip("\0").split("\0"))
        assert source.at(sha, *ignore) == expected, ignore


def test_checkout_removes_ignored_files_that_a_build_made(source: Source, git: Repo) -> None:
    first, second = git.history([{"a.c": "1", "doc/a": "1"}, {"a.c": "2"}])
    source.at(first, "doc/**")
    source.write("doc/a", "doc/b")
    found = [source.at(second, *ignore) for ignore in (["doc/**"], [], ["doc/**"])]
    assert found == [{"a.c"}, {"a.c", "doc/a"}, {"a.c"}]


def test_id_of_a_tree_depends_on_all_paths_that_are_not_ignored(source: Source, git: Repo) -> None:
    shas = git.history([{"a.c": "1", "doc/x": "1"}, {"doc/x": "2", "doc/y": "2", "README.md": "2"}, {"a.c": "2"}])
    (git.path / "a.c").chmod(0o755)
    shas.append(git.commit())
    git("mv", "a.c", "b.c")
    ids = [source.id(sha, "doc/**", "*.md") for sha in [*shas, git.commit()]]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 4
    assert source.id(shas[0]) != source.id(shas[1])


def test_present_paths_are_paths_of_the_tree(source: Source, git: Repo) -> None:
    sha = git.commit({"a b.c": "1", "dir/x": "1"})
    there = ["a b.c", "dir", "dir/", "dir/x"]
    for asked, present in (([*there, "dir/y", "a*"], there), (["dir/y"], []), ([], [])):
        assert checkout.present_paths(source.host, source.bare, sha, asked) == frozenset(present)


def test_repository_without_an_ignored_file_can_be_checked_out(source: Source, git: Repo) -> None:
    """A snapshot of a repository may lack objects."""
    sha = git.commit({"a.c": "1", "test/big": "not here"})
    blob = git("rev-parse", "HEAD:test/big")
    (git.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    assert source.id(sha) != source.id(sha, "test/**")
    assert source.at(sha, "test/**") == {"a.c"}
    assert checkout.present_paths(source.host, source.bare, sha, ["test/big"])
    with pytest.raises(BuildFailed, match="checked out: error: unable to read sha1 file of test/big") as caught:
        source.at(sha)
    assert caught.value.stage == "checkout"
    assert caught.value.advice.startswith("If this is a partial clone, the recipe must ignore missing files. See ")
    assert "test/big" in Path(caught.value.log).read_text()
    with pytest.raises(EnvironmentFailure, match="commit 1234512345 is not in"):
        checkout.checkout(source.host, source.bare, UNKNOWN, source.to, [])


def test_checkout_replaces_another_repository_or_a_damaged_index(source: Source, git: Repo, tmp_path: Path) -> None:
    first, other = git.commit({"a.c": "1", "b.c": "1"}), Repo(tmp_path / "other")
    second = other.commit({"c.c": "1"})
    assert source.at(first) == {"a.c", "b.c"}
    Path(source.bare, "index.lock").touch()
    assert Source(source.host, other.path).at(second) == {"c.c"}
    Path(source.bare, "index").write_bytes(b"cut")
    assert Source(source.host, git.path).at(first) == {"a.c", "b.c"}


def test_mirror_on_this_machine_copies_no_objects(source: Source, git: Repo) -> None:
    sha, stoppable = git.commit({"a.c": "1"}), StoppableHost(source.host, threading.Event())
    steps, bare = finish(checkout.bring_mirror(stoppable, open_repository(git.path), "some name", [sha]))
    assert (steps, list(Path(bare, "objects").glob("??"))) == ([], [])
    assert source.at(sha) == {"a.c"}


def test_error_of_git_quotes_only_the_git_command(host: LocalHost) -> None:
    with pytest.raises(CommandFailed, match=r"^on host \w+, git cat-file -e 1234 ended with status 128: fatal: "):
        git_on(host, "cat-file", "-e", "1234")
    with pytest.raises(CommandFailed, match=r"^on host \w+, sh -c 'git \"\$@\"' git no-such ended .* 'no-such' is"):
        git_script(host, 'git "$@"', ["no-such"])


def change(name: str, old: str, new: str, version: str = "") -> Patch:
    text = f"--- a/text\n+++ b/text\n@@ -1,2 +1,2 @@\n-{old}\n+{new}\n end\n"
    return Patch(name, text.encode("latin1"), version=version)


def new_file(path: str) -> Patch:
    text = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+added\n"
    return Patch(path, text.encode())


def patched(source: Source, sha: str, *patches: Patch, version: str = "1.5") -> tuple[set[str], str]:
    """Check out a commit with the patches that fit. Return the names of these patches, and the id of the tree."""
    host, bare = source.host, source.bare
    common = checkout.with_common_patches(host, bare, sha, patches)
    patched_commit = checkout.with_version_patches(host, bare, common, patches, version)
    checkout.checkout(host, bare, patched_commit.built_commit, source.to, [])
    return {name for name, fits in patched_commit.patches.items() if fits}, checkout.filtered_tree(
        host, bare, patched_commit.built_commit, []
    )


def test_patches_are_applied_in_order_and_version_patches_last(source: Source, git: Repo) -> None:
    """If no patch fits, the tree is the tree of the commit. test_pipeline has builds with patches."""
    late, one, two = change("late", "two", "three", "<2"), change("one", "zero", "one"), change("two", "one", "two")
    trees = {text: git.commit({"text": f"{text}\nend\n"}) for text in ("zero", "one", "two", "three", "other")}
    for patches, version, old, expected, fitting in (
        ((late, one, two), "1.5", "zero", "three", {"late", "one", "two"}),
        ((late, one, two), "2.5", "zero", "two", {"one", "two"}),
        ((late, two), "1.5", "zero", "zero", set()),
        ((late, one, two), "1.5", "two", "three", {"late"}),
        ((one, two), "1.5", "other", "other", set()),
    ):
        assert patched(source, trees[old], *patches, version=version) == (fitting, source.id(trees[expected]))
    assert not list(Path(source.bare).glob("perfbisect.index*"))


def test_patch_may_have_an_odd_name_and_content_that_is_not_utf8(source: Source, git: Repo) -> None:
    git.commit()
    (git.path / "text").write_bytes(b"\xe5se\nend\n")
    assert patched(source, git.commit(), change("it's $(touch x).patch", "åse", "äö"))[0]
    assert (source.here / "text").read_bytes() == b"\xe4\xf6\nend\n"


def test_patch_cannot_write_outside_of_the_tree(source: Source, git: Repo, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (git.path / "link").symlink_to(outside)
    paths = ("../out.add", ".git/hooks/post-checkout", "link/out.add", "/tmp/out.add", "in.add")
    assert patched(source, git.commit(), *map(new_file, paths))[0] == {"in.add"}
    assert (source.here / "in.add").read_text() == "added\n"
    assert not [*outside.iterdir(), *tmp_path.rglob("out.add"), *Path("/tmp").glob("out.add")]


@pytest.fixture
def bare(host: LocalHost) -> PurePosixPath:
    place = host.root / "a b.git"
    host.run(["git", "init", "-q", "--bare", str(place)])
    return place


def there(bare: PurePosixPath) -> tuple[set[str], int]:
    """The commits that were pushed to ``bare``, and the number of its objects."""
    refs = git(Path(bare), "for-each-ref", "--format=%(refname)").split()
    return {ref.removeprefix(f"{REFS}/") for ref in refs}, sum(1 for _ in Path(bare, "objects").glob("??/*"))


def test_push_sends_only_missing_objects(git: Repo, host: LocalHost, bare: PurePosixPath) -> None:
    git("checkout", "-q", "-b", "$(touch${IFS}hit);'-odd-é")
    first, repository = git.commit({"a": "a" * 1000}), open_repository(git.path)
    progress = list(push(host, bare, repository, [first]))
    assert (progress[0], progress[-1]) == ((0, 0), (3, 3))
    assert there(bare) == ({first}, 3)
    second, third = (git.commit({name: name * 1000}) for name in ("-b $(id)\n", "ü"))
    list(push(host, bare, repository, [first, third, third]))
    assert there(bare) == ({first, third}, 9)
    assert git("show", f"{second}:-b $(id)\n", cwd=Path(bare)).startswith("-b $(id)\n")
    (repository.git_dir / "HEAD").unlink()  # the repository is not read if the host has all commits
    assert list(push(host, bare, repository, [first, third])) == []


def test_push_of_missing_objects_is_an_error(tmp_path: Path, git: Repo, host: LocalHost, bare: PurePosixPath) -> None:
    last, repository = git.commit({"a": ""}), open_repository(git.path)
    git("config", "uploadpack.allowFilter", "true")
    git("clone", "-q", "--bare", "--filter=blob:none", "--", f"file://{git.path}", str(tmp_path / "clone"))
    for sha, to, opened, sentence in (
        (last, bare, open_repository(tmp_path / "clone"), "is a partial clone"),
        (UNKNOWN, bare, repository, "cannot be pushed to host here"),
        (last, host.root / "nowhere", repository, r"cannot be pushed to host here: fatal: '.*/nowhere' "),
    ):
        with pytest.raises(EnvironmentFailure, match=sentence):
            list(push(host, to, opened, [sha]))
    assert there(bare)[0] == set()


def test_push_survives_a_lost_link(git: Repo, far: SshHost, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data in transit exceed the buffers. git must not wait for ever."""
    (git.path / "much").write_bytes(os.urandom(10_000_000))
    last, bare = git.commit(), far.root / "a.git"
    far.run(["git", "init", "-q", "--bare", str(bare)])
    break_stream(monkeypatch, True, machine.kill_sshd, pieces=4)  # the negotiation of git comes first
    list(push(far, bare, open_repository(git.path), [last]))
    assert there(bare)[0] == {last}


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """The origins: ``super`` has the submodule ``libs/lib`` (with a relative URL), which has the submodule ``deep``."""
    folder = tmp_path / "origin"
    Repo(folder / "deep").commit({"d.c": "1", "doc/x": "1"})
    for name, module, path, files in (
        ("lib", "deep", "deep", {"l.c": "1", "doc/x": "1"}),
        ("super", "lib", "libs/lib", {"a.c": "1"}),
    ):
        repo = Repo(folder / name)
        repo.add_module(str(folder / module), path)
        for key, value in (("url", f"../{module}"), ("ignore", "all")):
            repo("config", "--file", ".gitmodules", f"submodule.{path}.{key}", value)
        repo("add", "-f", path)
        repo.commit(files)
    return folder


@pytest.fixture
def clone(origin: Path, tmp_path: Path) -> Repo:
    git(tmp_path, "clone", "-q", str(origin / "super"), "clone")
    return Repo(tmp_path / "clone")


@pytest.fixture
def cloned(host: LocalHost, clone: Repo) -> Source:
    return Source(host, clone.path)


TOP = {".gitmodules", "a.c"}
LIB = {"libs/lib/.gitmodules", "libs/lib/l.c", "libs/lib/doc/x"}
DEEP = {"libs/lib/deep/d.c", "libs/lib/deep/doc/x"}
ALL = TOP | LIB | DEEP


def test_nested_submodules_are_fetched_once(cloned: Source, origin: Path, clone: Repo, seal: Path) -> None:
    """Also from a server that sends only branches."""
    Repo(origin / "lib").commit({"newer": ""})
    (seal / ".gitconfig").write_text("[protocol]\n\tversion = 0\n")
    assert (cloned.at(), cloned.stages) == (ALL, {"fetch"})
    shutil.rmtree(origin)
    assert (cloned.at(), cloned.stages) == (ALL, set())
    assert not list((clone.path / ".git").glob("modules/*")), "the clone stays as it is"


@pytest.mark.parametrize("kind", ["absorbed", "folder", "worktree", "without its folder"])
def test_submodules_come_from_the_clone(host: LocalHost, origin: Path, clone: Repo, tmp_path: Path, kind: str) -> None:
    clone("submodule", "--quiet", "update", "--init", "--recursive")
    repo = clone.path
    if kind == "folder":
        for path in ("libs/lib/deep", "libs/lib"):
            module = repo / path
            git_dir = Path(git(module, "rev-parse", "--absolute-git-dir"))
            (module / ".git").unlink()
            shutil.copytree(git_dir, module / ".git", ignore=shutil.ignore_patterns("modules"))
            clone("config", "--file", str(module / ".git/config"), "--unset", "core.worktree")
        shutil.rmtree(repo / ".git/modules")
    elif kind == "worktree":
        repo = tmp_path / "linked"
        clone("worktree", "add", "-q", str(repo))
    elif kind == "without its folder":
        clone("submodule", "--quiet", "deinit", "--all", "--force")
    shutil.rmtree(origin)
    source = Source(host, repo)
    assert (source.at(), source.stages) == (ALL, set())


def test_checkout_has_exactly_the_files_of_commit_and_submodules(cloned: Source, clone: Repo) -> None:
    """Also if a submodule moves, becomes a folder or a file, is removed, or returns; and after builds."""
    clone("submodule", "--quiet", "update", "--init", "--recursive")
    first, lib = clone.head, clone.path / "libs/lib"
    moved = clone.move_module("libs/lib", Repo(lib).commit({"l.c": "2", "new.c": ""}))
    clone("rm", "-q", "--cached", "libs/lib")
    clone("commit", "-q", "-m", "gone")
    gone = clone.head
    lib.rename(clone.path.parent / "aside")
    folder = clone.commit({"libs/lib/l.c": "folder", "libs/lib/other": ""})
    shutil.rmtree(lib)
    file = clone.commit({"libs/lib": "file"})
    expected = {
        first: ALL,
        moved: ALL | {"libs/lib/new.c"},
        gone: TOP,
        folder: TOP | {"libs/lib/l.c", "libs/lib/other"},
        file: TOP | {"libs/lib"},
    }
    for sha in (first, moved, first, gone, moved, folder, first, file, moved):
        assert cloned.at(sha) == expected[sha]
        if sha in (first, moved):
            assert (cloned.here / "libs/lib/l.c").read_text() == ("1" if sha == first else "2")
            cloned.write("libs/lib/l.c", "libs/lib/deep/made.o")
    assert cloned.at(first, "libs/lib/deep", "**/doc/**") == (TOP | LIB) - {"libs/lib/doc/x"}
    assert cloned.at(first, "libs/**") == TOP
    assert cloned.at(first) == ALL


def test_checkout_replaces_links_and_does_not_follow_them(cloned: Source, tmp_path: Path) -> None:
    cloned.at()
    outside = tmp_path / "outside"
    (outside / "lib").mkdir(parents=True)
    (outside / "lib/x").touch()
    for link in ("libs/lib/deep", "libs/lib", "libs"):
        shutil.rmtree(cloned.here / link)
        (cloned.here / link).symlink_to(outside)
        assert cloned.at() == ALL
        assert [path.name for path in outside.rglob("*")] == ["lib", "x"]


def test_id_of_a_tree_depends_on_submodules_that_are_not_ignored(cloned: Source, clone: Repo) -> None:
    first = clone.head
    plain = clone.commit({"libs/other": ""})
    git(Path(cloned.bare), "update-ref", "--no-deref", "HEAD", first)  # its .gitmodules has "ignore = all"
    moved = clone.move_module("libs/lib", plain)
    assert cloned.id(plain) != cloned.id(moved)
    without = {cloned.id(plain, "libs/lib"), cloned.id(moved, "libs/lib")}
    assert without == {checkout.filtered_tree(cloned.host, cloned.bare, moved, ["libs/lib"])}
    assert cloned.id(plain) != cloned.id(plain, "libs/lib/doc/**")


def refused(source: Source) -> BuildFailed:
    with pytest.raises(BuildFailed) as caught:
        source.at()
    assert caught.value.stage == "checkout"
    assert str(caught.value).startswith(f"commit {Repo(source.repo).head[:10]} cannot be checked out: submodule ")
    assert Path(caught.value.log).read_text()
    return caught.value


def test_unavailable_submodule_is_an_error_with_advice(cloned: Source, origin: Path, clone: Repo) -> None:
    shutil.rmtree(origin / "lib")
    failed, at = refused(cloned), clone("rev-parse", "HEAD:libs/lib")
    assert f"submodule libs/lib at {at[:10]} is not in {clone.path}, and " in str(failed)
    assert f"{origin}/lib cannot be fetched: fatal: " in str(failed)
    assert failed.advice.startswith(f"Try: git -C {clone.path} submodule update --init libs/lib. See ")


def test_submodule_with_an_unsafe_url_is_an_error(cloned: Source, clone: Repo, tmp_path: Path) -> None:
    """tests/repository/test_submodules.py lists all kinds of unsafe URLs."""
    for url, sentence in (
        (f"ext::sh -c touch% {tmp_path}/hit", "its scheme is none of file, https, ssh"),
        ("http://user:secret@h/x", "address in .gitmodules, http://***@h/x, is not used: its scheme is none of file"),
    ):
        for key, value in (("url", url), ("update", f"!touch {tmp_path}/hit")):
            clone("config", "--file", ".gitmodules", f"submodule.libs/lib.{key}", value)
        clone("commit", "-qam", "hostile")
        failed = refused(cloned)
        assert sentence in str(failed)
        assert "secret" not in str(failed) + failed.advice + Path(failed.log).read_text()
    assert not list(tmp_path.rglob("hit"))


def test_submodule_cannot_lead_to_another_repository(cloned: Source, origin: Path, clone: Repo) -> None:
    """Neither by a name with `..`, nor by a link in the user's checkout."""
    lib, elsewhere = clone.path / "libs/lib", clone.path / "elsewhere"
    Repo(clone.path / ".git/modules")
    shutil.copytree(origin / "lib", clone.path / ".git/private")
    for entry, sentence in (
        ('[submodule "../private/.git"]', "../private/.git, leads outside the folder of submodules"),
        (f'[submodule "{"x" * 5000}"]', "/nowhere cannot be fetched"),
        ("", ".gitmodules has no entry for it"),
    ):
        clone.write({".gitmodules": entry and f"{entry}\n\tpath = libs/lib\n\turl = /nowhere\n"})
        clone("commit", "-qam", "hostile")
        failed = refused(cloned)
        assert sentence in str(failed)
    assert failed.advice.startswith(
        'If the build does not need the submodule, ignore it in the recipe: ignore = ["libs/lib"].'
    )
    shutil.rmtree(lib.parent)
    lib.parent.symlink_to(elsewhere)
    shutil.copytree(origin / "lib", elsewhere / "lib")
    refused(cloned)
    lib.parent.unlink()
    shutil.copytree(origin / "lib", lib)
    assert cloned.at() == ALL


def test_submodule_path_that_is_not_utf8_can_be_ignored_as_advised(cloned: Source, origin: Path, clone: Repo) -> None:
    clone.move_module(os.fsdecode(b"odd\xe9"), Repo(origin / "lib").head)
    failed = refused(cloned)
    assert "its path is not UTF-8" in str(failed)
    assert 'ignore = ["odd?"]' in failed.advice
    assert cloned.at("", "odd?") == ALL
