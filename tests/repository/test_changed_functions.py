"""The functions that a commit changes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.core.domain.facts import ChangeFacts
from perfbisect.repository import changed_functions as module
from perfbisect.repository import ctags
from perfbisect.repository.changed_functions import changed_functions, function_in_hunk_header, stripped_code
from perfbisect.repository.discovery import open_repository
from program import executable
from repos import Repo

Read = Callable[..., ChangeFacts]

pytestmark = pytest.mark.tools
needs_ctags = pytest.mark.skipif(ctags.universal_ctags() is None, reason="Universal Ctags is not installed")

PAGE = Path(__file__).with_name("page.c").read_text()


@pytest.fixture
def read(git: Repo) -> Read:
    """``read(before, after, seen=…)`` commits two trees, path → text, and reads what the second changes."""

    def commit(tree: dict[str, str]) -> str:
        git("rm", "-rqf", "--ignore-unmatch", ".")
        return git.commit(tree)

    def change(before: dict[str, str], after: dict[str, str], seen: tuple[str, ...] = ()) -> ChangeFacts:
        return changed_functions(open_repository(git.path), commit(before), commit(after), seen)

    return change


@needs_ctags
def test_changed_functions_are_functions_with_changed_lines(read: Read) -> None:
    after = PAGE.replace("return 4096", "return 8192").replace("\t\ti++;\n", "")
    found = read({"page.c": PAGE}, {"page.c": after, "notes.md": "int main(void) { }\n"})
    assert found.functions == ("slot_of", "page_size"), "a removed line counts"
    assert (found.files, found.approximate, found.note) == (1, False, "")


@needs_ctags
def test_functions_of_an_included_template_have_the_names_of_macros(read: Read) -> None:
    before = {
        "loop.h": "int NAME(int n)\n{\n    return n;\n}\n",
        "a.c": '#define NAME fast\n#include "loop.h"\n#undef NAME\n#  define NAME slow\n#include "loop.h"\n',
        "b.c": '#define NAME other\n#include "else.h"\n',
    }
    after = before | {"loop.h": before["loop.h"].replace("return n", "return n + 1")}
    assert read(before, after, seen=("fast",)).functions == ("NAME", "fast", "slow")
    named = {path: text.replace("#undef NAME\n", "#undef NAME\n#define MORE\n") for path, text in after.items()}
    assert {"NAME", "fast", "slow"} <= {*read(before, named).functions}, "the macro is in a file of the diff"


@needs_ctags
def test_main_function_of_a_test_program_is_left_out(read: Read) -> None:
    def tree(number: int) -> dict[str, str]:
        return dict.fromkeys(("api_test/main.c", "test/a.c"), f"int main(void)\n{{\n    return {number};\n}}\n")

    assert read(tree(1), tree(2)).functions == ()
    assert read(tree(1), {**tree(1), "main.c": "int main(void) { return 0; }\n"}).functions == ("main",)


@needs_ctags
def test_few_changed_lines_outside_of_functions_are_quoted(read: Read) -> None:
    """A compiler option or a default value. Comments and documents are not quoted, and no line if many differ."""
    make, page = "# Builds it.\nCFLAGS ?= -O2\nall: page\n", PAGE + "int cache = 8; /* pages */\n"
    before = {"Makefile": make, "page.c": page, "notes.md": "a\n"}
    after = {"Makefile": make.replace("O2", "O3"), "page.c": page.replace("8;", "16;"), "notes.md": "b\n"}
    option, default = (
        ("Makefile", "CFLAGS ?= -O2", "CFLAGS ?= -O3"),
        ("page.c", "int cache = 8; /* pages */", "int cache = 16; /* pages */"),
    )
    assert (read(before, after).lines, read(before, after).paths) == ((default, option), ("page.c", "Makefile"))
    assert read(before, before | {"notes.md": "b\n"}).paths == ("notes.md",)
    assert read(before, after | {"page.c": page.replace("pages", "sizes")}).lines == (option,)
    assert read(before, after | {"page.c": page.replace("return 4096", "return 8192")}).lines == (option,)
    assert read(before, after | {"Makefile": make + "install: all\n"}).lines == ()
    page = page.replace("return 4096", "return 8192")
    assert read(before, after | {"page.c": page, "script.lua": "f()\n"}).lines == (option,), "another file is new"
    assert read(before, after | {"Makefile": make.replace("all: page", "all: page " + 100 * "x")}).lines == ()


@needs_ctags
def test_rust_function_ends_before_the_next_function(read: Read) -> None:
    before = "fn size() -> u32 {\n    1\n}\n\nstruct Page;\n\nimpl Page {\n    fn insert(&self) {\n        run(\n            2)\n    }\n}\n"
    assert read({"a.rs": before}, {"a.rs": before.replace("2)", "3)")}).functions == ("Page::insert",)
    assert read({"a.rs": before}, {"a.rs": before.replace("    1", "    4")}).functions == ("size",)


@needs_ctags
def test_new_removed_and_renamed_functions_count_as_changed(read: Read) -> None:
    renamed = {"page.c": PAGE.replace("int page_size", "int page_bytes"), "new.c": "int f(void) { return 1; }\n"}
    assert set(read({"page.c": PAGE}, renamed).functions) == {"page_size", "page_bytes", "f"}
    assert set(read({"page.c": PAGE}, {}).functions) == {"less", "slot_of", "page_insert", "page_size"}


@needs_ctags
def test_moved_function_is_not_changed(read: Read) -> None:
    """A new place in the file, another file, comments and white space do not count."""
    functions = PAGE.split("\n\n")
    moved = "\n\n".join([functions[3], *functions[:3]]).replace("int i = 0;", "int i  = 0; /* the first */")
    split = {"a.c": "\n".join(functions[:2]), "b.c": "\n".join(functions[2:])}
    for after in ({"page.c": moved}, {"store/page.c": PAGE}, split):
        assert read({"page.c": PAGE}, after).functions == ()


@needs_ctags
def test_changed_methods_and_macros_are_named_with_their_scope(read: Read) -> None:
    header = (
        "#define GROW(n) \\\n\t((n) * 2)\n"
        "namespace store {\ntemplate <class T> struct Page {\n\tint size() const { return 1; }\n\tbool operator==(int) const\n"
        "\t{\n\t\treturn true;\n\t}\n};\n}\n"
    )
    after = header.replace("* 2", "* 3").replace("return true", "return false")
    assert read({"page.h": header}, {"page.h": after}).functions == ("GROW", "store::Page::operator==")


@needs_ctags
def test_callers_are_followed_up_to_functions_that_profiles_contain(read: Read) -> None:
    user = '#include "page.h"\nint scan(void)\n{\n\treturn page_insert(0, 0, GROW(1));\n}\nstruct t { int (*less)(int); };\nint no(struct t *t)\n{\n\t/* as less() does */\n\treturn t->less(1);\n}\n'
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


def test_functions_are_read_from_hunk_headers_without_ctags(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    for user in (module, ctags):
        monkeypatch.setattr(user, "universal_ctags", lambda: None)
    found = read({"page.c": PAGE}, {"page.c": PAGE.replace("\t\ti++;\n", "")}, ("main",))
    assert (found.functions, found.approximate, found.callers) == (("slot_of",), True, {})
    assert "universal-ctags" in found.note


def test_function_name_is_read_from_a_hunk_header() -> None:
    scopes = {
        "int slot_of(const int *k": "slot_of",
        "int store::Page<T>::insert(const T &row)": "Page::insert",
        "struct page {": "",
        "": "",
    }
    assert {scope: function_in_hunk_header(scope) for scope in scopes} == scopes


@needs_ctags
def test_functions_after_a_macro_that_misleads_ctags_are_found(read: Read) -> None:
    text = """#define END_OF_BODY }
int first() { return 1; END_OF_BODY

int second() {
  return 2;
}

int third() {
  return 3; // three
}
"""
    added = text.replace("int third", "int new_one() {\n  return 0;\n}\n\nint third").replace("return 3;", "return 4;")
    assert set(read({"a.cc": text}, {"a.cc": added}).functions) == {"new_one", "third"}
    assert read({"a.cc": text}, {"a.cc": text.replace("three", "3")}).functions == (), "only a comment differs"
    assert read({"a.cc": text}, {"a.cc": text.replace("// three", "// three\n  // of three")}).functions == ()


@needs_ctags
def test_other_ctags_is_not_used_and_a_failure_makes_names_approximate(
    read: Read, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = executable(tmp_path / "ctags", "#!/bin/sh\necho Exuberant Ctags 5.8\nexit 1\n")
    assert (ctags.universal_ctags(str(tmp_path)), ctags.universal_ctags("")) == (None, None)
    monkeypatch.setattr(ctags, "universal_ctags", lambda: str(fake))
    found = read({"page.c": PAGE}, {"page.c": PAGE.replace("return 4096", "return 8192")})
    assert found.approximate
    assert "Universal Ctags failed" in found.note


@needs_ctags
def test_hostile_tree_has_no_effect(git: Repo, read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ctags.d").mkdir()
    (tmp_path / ".ctags.d" / "evil.ctags").write_text("--kinds-C=-f\n")
    names = ["--options=x.c", "-a b\tc\n.c", '"; touch ran.c', "$(touch ran).c", ":(glob)*.c", "dir/\\.c"]
    before = dict.fromkeys(names, PAGE) | {".ctags.d/x.ctags": "--kinds-C=-f\n"}
    after = before | {name: PAGE.replace("a < b", f"a < b + {number}") for number, name in enumerate(names)}
    after |= {"binary.c": "int f(void)\0{ }\n", "@@.c": "@@ -1 +1 @@ int g(void)\n", "null.c": ""}
    assert read(before, after, ("main",)).functions == ("less",)
    assert not list(tmp_path.rglob("ran*"))
    (git.path / "link.c").symlink_to("/etc/passwd")
    linked = changed_functions(open_repository(git.path), git.head, git.commit())
    assert (linked.functions, linked.files) == ((), 0)


def test_comments_and_white_space_are_stripped_from_code() -> None:
    assert stripped_code("a = b; // c\n/* d */ e") == "a=b;e"
    assert stripped_code('"// no comment" + 1') == '"//nocomment"+1'
    assert stripped_code("/* never ends " * 50_000) == "", "in time that is in proportion to the length"


@needs_ctags
def test_too_much_change_is_left_out_with_a_note(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers of many functions, a large file, and many files."""
    after = PAGE.replace("a < b", "a <= b").replace("i = 0", "i = 1")
    assert read({"page.c": PAGE}, {"page.c": after}, ("page_insert",)).note == ""
    monkeypatch.setattr(module, "NAMES", 1)
    found = read({"page.c": PAGE}, {"page.c": after.replace("4096", "8192")}, ("page_insert",))
    assert found.functions == ("less", "slot_of", "page_size")
    assert found.note.startswith("1 changed functions are in no profile, and their callers were not searched")
    monkeypatch.setattr(module, "LARGEST", 1000)
    large = {"large.c": PAGE + "/* " + "x" * 2000 + " */\n", "page.c": PAGE}
    found = read(large, {name: text.replace("4096", "8192") for name, text in large.items()})
    assert found.functions == ("page_size",)
    assert "1 of 2 source files" in found.note
    monkeypatch.setattr(module, "FILES", 1)
    note = read({}, {"a.c": "int f(void) { return 1; }\n", "page.c": PAGE}).note
    assert note == "1 of 2 source files of the commit are not read, because there are too many."
