import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.toml import to_toml
from perfbisect.recipes.workload import Option, Workload

Write = Callable[[str, str], Path]

FULL = '''
repository = "https://example.org/small.git"
release_tags = ["v{version}", "R_{version:_}"]
version = ["cat", "VERSION"]
ignore = ["doc/**"]
env = {A = "x", EMPTY = ""}
configure = [["sh", "-c", """
echo "${{HOME}}" \\\\ 'x'
cd {prefix}
"""]]
needs = ["make", "zlib.h", "odd.pc"]
[build.packages]
"odd.pc" = {debian = "libodd-dev"}
[variants.lto]
ldflags = ""
[server]
initialise = [["{prefix}/init", "{data}"]]
start = ["{prefix}/server"]
ready = ["true"]
sysbench = {"a key" = "x"}
[[when]]
version = ">=3"
change.build.env = {EMPTY = "", B = "2"}
change.build.configure = [["./configure"]]
[[when]]
compiler = "clang"
change.variants.native.cflags = "-O3"
'''


def test_what_is_shown_can_be_read_back(write: Write, small: str) -> None:
    head, build = small.split("[build]")
    top, rest = FULL.split("env =", 1)
    write("builders/full/builder.toml", f"{head}{top}[build]{build}env ={rest}")
    full = load_builder("full")
    write("builders/again/builder.toml", to_toml(full))
    again = load_builder("again")
    assert msgspec.structs.replace(again, name=full.name, folder=full.folder) == full


def test_an_extended_recipe_is_shown_whole(write: Write, small: str) -> None:
    write("builders/small/builder.toml", small)
    write("builders/top/builder.toml", 'extends = "small"\nsummary = "top"')
    shown = tomllib.loads(to_toml(load_builder("top")))
    assert shown["build"]["compile"] == [["make"]]
    assert "extends" not in shown


def test_what_is_required_is_shown_when_it_is_empty(write: Write, small: str) -> None:
    write("builders/bare/builder.toml", 'summary="s"\ndriver="d"\n[build]\ncompile=[]\ninstall=[]\nartifacts=[]')
    bare = load_builder("bare")
    write("builders/again/builder.toml", to_toml(bare))
    assert load_builder("again").build == bare.build


TEXT = st.text(st.characters(codec="utf-8")) | st.sampled_from(["a\r\nb", "\r", "\n"])


@given(TEXT.filter(bool), st.dictionaries(TEXT, TEXT | st.integers(-(2**60), 2**60) | st.booleans(), min_size=1))
def test_any_text_survives(text: str, options: dict[str, Option]) -> None:
    shown = tomllib.loads(to_toml(Workload(summary=text, group=text, args=options)))
    assert (shown["summary"], shown["args"]) == (text, options)
