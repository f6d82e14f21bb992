"""The functions that a commit changes."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.core.domain.facts import ChangeFacts
from perfbisect.errors import EnvironmentFailure
from perfbisect.repository import changed_functions as module
from perfbisect.repository.changed_functions import bare, changed_functions, named
from perfbisect.repository.discovery import open_repository

Git = Callable[..., str]
Read = Callable[..., ChangeFacts]

pytestmark = pytest.mark.tools
needs_ctags = pytest.mark.skipif(module.program() is None, reason="Universal Ctags is not installed")

PAGE = """
static int less(int a, int b)
{
\treturn a < b;
}

static int slot_of(const int *keys, int used, int key)
{
\tint i = 0;
\twhile (i < used && less(keys[i], key))
\t\ti++;
\treturn i;
}

int page_insert(int *keys, int used, int key)
{
\treturn slot_of(keys, used, key) + 1;
}

int page_size(void)
{
\treturn 4096;
}
"""


@pytest.fixture
def read(git: Git, tmp_path: Path) -> Read:
    """``read(before, after, seen=…)`` commits two trees, path → text, and reads what the second changes."""
    folder = tmp_path / "repo"

    def commit(tree: dict[str, str]) -> str:
        for path in folder.iterdir():
            if path.name != ".git":
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for name, text in tree.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        git("add", "-A")
        git("commit", "-q", "--allow-empty", "-m", "change")
        return git("rev-parse", "HEAD")

    def change(before: dict[str, str], after: dict[str, str], seen: tuple[str, ...] = ()) -> ChangeFacts:
        return changed_functions(open_repository(folder), commit(before), commit(after), seen)

    return change


@needs_ctags
def test_functions_are_those_in_which_lines_differ(read: Read) -> None:
    after = PAGE.replace("return 4096", "return 8192").replace("\t\ti++;\n", "")
    found = read({"page.c": PAGE}, {"page.c": after, "notes.md": "int main(void) { }\n"})
    assert found.functions == ("slot_of", "page_size"), "a line that is removed counts"
    assert (found.files, found.approximate, found.note) == (1, False, "")


@needs_ctags
def test_functions_of_rust_end_before_the_next(read: Read) -> None:
    before = "fn size() -> u32 {\n    1\n}\n\nstruct Page;\n\nimpl Page {\n    fn insert(&self) {\n        run(\n            2)\n    }\n}\n"
    assert read({"a.rs": before}, {"a.rs": before.replace("2)", "3)")}).functions == ("Page::insert",)
    assert read({"a.rs": before}, {"a.rs": before.replace("    1", "    4")}).functions == ("size",)


@needs_ctags
def test_new_removed_and_renamed_functions_are_changed(read: Read) -> None:
    found = read(
        {"page.c": PAGE},
        {"page.c": PAGE.replace("int page_size", "int page_bytes"), "new.c": "int f(void) { return 1; }\n"},
    )
    assert set(found.functions) == {"page_size", "page_bytes", "f"}
    assert set(read({"page.c": PAGE}, {}).functions) == {"less", "slot_of", "page_insert", "page_size"}


@needs_ctags
def test_what_only_moves_is_not_changed(read: Read) -> None:
    """Another place in the file, another file, other comments and other white space change no function."""
    functions = PAGE.split("\n\n")
    moved = "\n\n".join([functions[3], *functions[:3]]).replace("int i = 0;", "int i  = 0; /* the first */")
    assert read({"page.c": PAGE}, {"page.c": moved}).functions == ()
    assert read({"page.c": PAGE}, {"store/page.c": PAGE}).functions == ()
    assert read({"page.c": PAGE}, {"a.c": "\n".join(functions[:2]), "b.c": "\n".join(functions[2:])}).functions == ()


@needs_ctags
def test_classes_templates_and_macros(read: Read) -> None:
    header = (
        "#define GROW(n) \\\n\t((n) * 2)\n"
        "namespace store {\ntemplate <class T> struct Page {\n\tint size() const { return 1; }\n\tbool operator==(int) const\n"
        "\t{\n\t\treturn true;\n\t}\n};\n}\n"
    )
    after = header.replace("* 2", "* 3").replace("return true", "return false")
    assert read({"page.h": header}, {"page.h": after}).functions == ("GROW", "store::Page::operator==")


@needs_ctags
def test_callers_of_what_profiles_lack_are_looked_for_until_they_have_some(read: Read) -> None:
    user = '#include "page.h"\nint scan(void)\n{\n\treturn page_insert(0, 0, GROW(1));\n}\nstruct t { int (*less)(int); };\nint no(struct t *t)\n{\n\treturn t->less(1);\n}\n'
    header = "int page_insert(int *, int, int);\n#define GROW(n) ((n) * 2)\n"
    tree = {"page.c": PAGE, "page.h": header, "lib/user.c": user}
    after = {**tree, "page.c": PAGE.replace("a < b", "a <= b"), "page.h": header.replace("* 2", "* 3")}
    found = read(tree, after, ("scan", "main"))
    assert set(found.functions) == {"less", "GROW"}
    assert found.callers == {
        "less": ("slot_of",), "slot_of": ("page_insert",), "page_insert": ("scan",), "GROW": ("scan",),
    }  # fmt: skip
    nearer = read(tree, after, ("slot_of", "main")).callers
    assert nearer == {"less": ("slot_of",), "GROW": ("scan",)}
    assert read(tree, after).callers == {}, "without a profile nothing can be inlined"


HEADER = "static int slot_of(const int *keys"


def test_without_ctags_functions_are_those_that_git_names(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "program", lambda: None)
    found = read({"page.c": PAGE}, {"page.c": PAGE.replace("\t\ti++;\n", "")}, ("main",))
    assert (found.functions, found.approximate, found.callers) == (("slot_of",), True, {})
    assert "universal-ctags" in found.note


@pytest.mark.parametrize(
    ("scope", "name"),
    [
        (HEADER, "slot_of"),
        ("int store::Page<T>::insert(const T &row)", "Page::insert"),
        ("struct page {", ""),
        ("", ""),
    ],
)
def test_the_function_beside_a_hunk(scope: str, name: str) -> None:
    assert named(scope) == name


@needs_ctags
def test_another_program_of_that_name_is_not_used(tmp_path: Path) -> None:
    fake = tmp_path / "ctags"
    fake.write_text("#!/bin/sh\necho Exuberant Ctags 5.8\n")
    fake.chmod(0o755)
    assert module.program(str(tmp_path)) is None
    assert module.program("") is None


@needs_ctags
def test_a_program_that_fails_costs_exactness_only(read: Read, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "ctags"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(module, "program", lambda: str(fake))
    found = read({"page.c": PAGE}, {"page.c": PAGE.replace("return 4096", "return 8192")})
    assert found.approximate
    assert "ctags failed" in found.note


@needs_ctags
def test_hostile_paths_links_and_contents_are_harmless(
    git: Git, read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = tmp_path / "repo"
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ctags.d").mkdir()
    (tmp_path / ".ctags.d" / "evil.ctags").write_text("--kinds-C=-f\n")
    names = ["--options=x.c", "-a b\tc\n.c", '"; touch ran.c', "$(touch ran).c", ":(glob)*.c", "dir/\\.c"]
    before = dict.fromkeys(names, PAGE) | {".ctags.d/x.ctags": "--kinds-C=-f\n"}
    after = before | {name: PAGE.replace("a < b", f"a < b + {number}") for number, name in enumerate(names)}
    after |= {"binary.c": "int f(void)\0{ }\n", "@@.c": "@@ -1 +1 @@ int g(void)\n", "null.c": ""}
    found = read(before, after, ("main",))
    assert found.functions == ("less",)
    assert not list(tmp_path.rglob("ran*"))
    (repo / "link.c").symlink_to("/etc/passwd")
    git("add", "-A")
    git("commit", "-qm", "a link")
    linked = changed_functions(open_repository(repo), git("rev-parse", "HEAD^"), git("rev-parse", "HEAD"))
    assert (linked.functions, linked.files) == ((), 0)


@needs_ctags
def test_what_is_too_large_is_left_out_and_said(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 1000)
    large = PAGE + "/* " + "x" * 2000 + " */\n"
    tree = {"large.c": large, "page.c": PAGE}
    found = read(tree, {name: text.replace("4096", "8192").replace("a < b", "b > a") for name, text in tree.items()})
    assert found.functions == ("less", "page_size")
    assert "1 of 2 source files" in found.note


def test_a_missing_commit_is_an_error(git: Git, read: Read, tmp_path: Path) -> None:
    read({}, {})
    with pytest.raises(EnvironmentFailure):
        changed_functions(open_repository(tmp_path / "repo"), "0" * 40, git("rev-parse", "HEAD"))


def test_texts_without_comments() -> None:
    assert bare("a = b; // c\n/* d */ e") == "a=b;e"
    assert bare('"// no comment" + 1') == '"//nocomment"+1'
    assert bare("/* never ends " * 50_000) == "", "in time that is in proportion to the length"


@needs_ctags
def test_functions_whose_callers_are_not_looked_for_are_said(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    after = PAGE.replace("a < b", "a <= b").replace("i = 0", "i = 1")
    assert read({"page.c": PAGE}, {"page.c": after}, ("page_insert",)).note == ""
    monkeypatch.setattr(module, "NAMES", 1)
    found = read({"page.c": PAGE}, {"page.c": after.replace("4096", "8192")}, ("page_insert",))
    assert found.functions == ("less", "slot_of", "page_size")
    assert found.note.startswith("Of the functions that no profile contains, the callers of 1 were not looked for")


@needs_ctags
def test_files_beyond_the_most_that_are_read_are_not_said_to_be_large(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILES", 1)
    note = read({}, {"a.c": "int f(void) { return 1; }\n", "page.c": PAGE}).note
    assert note == "1 of 2 source files of the commit are not read: only the smallest are."
