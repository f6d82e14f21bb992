"""Patches on a host: what is built, under which key, and what a patch cannot reach."""

from collections.abc import Callable
from pathlib import Path, PurePosixPath

import msgspec
import pytest

from generators import finish
from perfbisect.core.domain.patch import Patch
from perfbisect.errors import BuildFailed
from perfbisect.host.local import LocalHost
from perfbisect.lab.build import checkout
from perfbisect.lab.build.pipeline import build, build_context, key_of
from perfbisect.lab.build.plan import BuildContext, Built
from perfbisect.recipes.builder import Build, Builder, Variant
from perfbisect.recipes.inventory import HostEntry
from perfbisect.repository.discovery import open_repository

pytestmark = pytest.mark.tools

Git = Callable[..., str]
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


@pytest.fixture
def commit(git: Git, tmp_path: Path) -> Callable[[str, str], str]:
    """``commit(text, version)`` commits a tree with these; returns the hash."""

    def make(text: str, version: str = "1.0") -> str:
        for name, content in (("text", f"{text}\nend\n"), ("VERSION", f"{version}\n")):
            (tmp_path / "repo" / name).write_text(content)
        git("add", "-A")
        git("commit", "-q", "--allow-empty", "-m", "change")
        return git("rev-parse", "HEAD")

    return make


@pytest.fixture
def context(host: LocalHost, tmp_path: Path) -> Callable[..., BuildContext]:
    def make(*patches: Patch) -> BuildContext:
        repository = open_repository(tmp_path / "repo")
        bare: PurePosixPath = finish(checkout.mirror(host, repository, "text", []))[1]
        (tmp_path / "recipe").mkdir(exist_ok=True)
        recipe = msgspec.structs.replace(RECIPE, folder=str(tmp_path / "recipe"))
        return build_context(host, HostEntry(name="here", jobs=1), recipe, "", bare, repository, patches)

    return make


def built(context: BuildContext, sha: str) -> tuple[Built, str]:
    """A build, and what it installed."""
    made = finish(build(context, sha))[1]
    return made, Path(context.host.root, "builds", made.facts.key, "prefix", "text").read_text()


def test_a_commit_is_known_by_its_patched_tree(
    commit: Callable[..., str], context: Callable[..., BuildContext]
) -> None:
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


def test_patches_build_on_each_other_and_those_for_some_versions_come_last(
    commit: Callable[..., str], context: Callable[..., BuildContext]
) -> None:
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
    commit: Callable[..., str], context: Callable[..., BuildContext], git: Git, tmp_path: Path
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
def test_nothing_outside_of_the_tree_is_touched(
    commit: Callable[..., str], context: Callable[..., BuildContext], tmp_path: Path, path: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "repo" / "link").symlink_to(outside)
    sha = commit("x")
    made, text = built(context(Patch("p", new_file(path)), Patch("in", new_file("in.add"))), sha)
    assert text == "x\nend\nadded\n"
    assert made.facts.patches == {"p": False, "in": True}
    assert not list(outside.iterdir())
    assert not list(tmp_path.rglob("out.add"))
