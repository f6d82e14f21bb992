"""The choice of a build system for a commit and for a range, and the effect of the build system on a build's key."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.core.domain.settings import Flags, QuickCommand, Settings
from perfbisect.errors import UsageError
from perfbisect.host.local import LocalHost
from perfbisect.hunt.resolve import choose_system, resolve_settings
from perfbisect.lab.building.plan import build_fingerprint
from perfbisect.lab.building.toolchain import Toolchain
from perfbisect.recipes import build_commands, programs
from perfbisect.recipes.build_systems import (
    AUTO,
    MARKERS,
    SYSTEMS,
    build_with_commands,
    command_to_build_program,
    commands_hash,
    system_for_commit,
    system_for_range,
    systems_in,
)
from perfbisect.recipes.builder import BUILD_PLACEHOLDERS, Build, Builder, Variant
from perfbisect.recipes.placeholders import fill_command
from perfbisect.recipes.requested import requested_builder
from perfbisect.repository.discovery import open_repository
from perfbisect.wording.text import recognised_system_text
from program import executable
from repos import Repo
from sharing import key_of_build

TREES = st.sets(st.sampled_from(sorted(MARKERS)))
RECIPE = Builder(name="tool", summary="a tool", driver="tool")
SETTINGS = Settings("a", "b", ".", "tool", "w", "here")


@given(st.lists(TREES, min_size=1, max_size=3))
def test_range_uses_first_build_system_that_all_ends_have(trees: list[set[str]]) -> None:
    system = system_for_range(trees)
    common = [each for each in SYSTEMS if all(each in systems_in(tree) for tree in trees)]
    assert system == (common[0] if common else AUTO if any(trees) else "")
    for tree in trees:
        own = system_for_commit("" if system == AUTO else system, tree)
        assert own in systems_in(tree) if tree else own == ""


def test_cmake_is_preferred_to_meson_autotools_and_make() -> None:
    assert systems_in({"Makefile", "configure", "meson.build", "CMakeLists.txt"}) == (
        "cmake",
        "meson",
        "autotools",
        "make",
    )


@pytest.mark.parametrize("system", SYSTEMS)
def test_build_system_commands_have_only_known_placeholders(system: str) -> None:
    values = dict.fromkeys(BUILD_PLACEHOLDERS, "x")
    for in_place, paths in product((False, True), (MARKERS, frozenset())):
        recipe = replace_build(options=["{prefix}"], in_place=in_place, programs=["bin/x"])
        build = build_with_commands(recipe, system, paths)
        for argv in (*build.configure, *build.compile, *build.install):
            assert not any("{{" in word for word in fill_command(argv, values))


@pytest.mark.tools
def test_build_system_is_chosen_from_the_trees_of_the_ends(git: Repo) -> None:
    """A folder with the name of a marker file, such as ``configure/``, is no marker."""
    trees = {
        "made": ("Makefile",), "moved": ("CMakeLists.txt", "configure/x", "Makefile"),
        "later": ("meson.build", "Makefile/x"), "none": ("README",),
    }  # fmt: skip
    shas = {}
    for name, files in trees.items():
        git("rm", "-rq", "--ignore-unmatch", ".")
        shas[name] = git.commit(dict.fromkeys(files, "x"))
    repo = open_repository(git.path)
    meson, commands = replace_build(system="meson"), replace_build(compile=[["make"]])
    alone = replace(SETTINGS, quick=QuickCommand(run="true", build=()))
    chosen = [
        (RECIPE, SETTINGS, "made", "moved", "make"),
        (RECIPE, SETTINGS, "moved", "moved", "cmake"),
        (RECIPE, SETTINGS, "made", "later", AUTO),
        (commands, SETTINGS, "none", "none", ""),
        (RECIPE, alone, "none", "none", ""),  # the checkout is measured without a build
    ]
    for recipe, settings, good, bad, system in chosen:
        assert choose_system(repo, recipe, {"a": shas[good], "b": shas[bad]}, settings) == system
    configured = {"configure": ("-Dx",)}
    refused = [
        (RECIPE, SETTINGS, "made", "none", r"b cannot be built: the tree has no build system: none of Cargo\.toml"),
        (meson, SETTINGS, "moved", "later",
         "a cannot be built with meson, which the recipe of tool names: the tree of a has cmake and make"),
        (commands, replace(SETTINGS, **configured), "made", "made", "no effect, because tool is built by commands"),
        (RECIPE, replace(alone, **configured), "none", "none", "no effect: the tree has no build system"),
    ]  # fmt: skip
    for recipe, settings, good, bad, sentence in refused:
        with pytest.raises(UsageError, match=sentence):
            choose_system(repo, recipe, {"a": shas[good], "b": shas[bad]}, settings)


def test_started_program_decides_between_build_systems_of_a_tree(git: Repo) -> None:
    mixed = git.commit({
        "Makefile": "vet:\n\tgo vet ./...\nbench:\n\ttrue\n", "go.mod": "module example.org/tool/v2\n", "cmd/kvd/a.go": "",
        "Cargo.toml": '[package]\nname = "rusty"\n', "src/bin/other.rs": "", "lib/lib.go": "",
    })  # fmt: skip
    git("rm", "-q", "go.mod", "Cargo.toml")
    only, repo = git.commit(), open_repository(git.path)

    def choose(run: str, good: str = mixed, **quick: tuple[str, ...]) -> str:
        asked = QuickCommand(run, (), **quick)  # type: ignore[arg-type]
        return choose_system(repo, RECIPE, {"a": good, "b": mixed}, replace(SETTINGS, quick=asked))

    started = ["./bin/kvd x", "./tool", "target/release/rusty", "./other", "./bench", "./lib", "ls"]
    assert [choose(run) for run in started] == ["go"] * 2 + ["cargo"] * 2 + ["make"] * 3
    assert choose("./kvd", only) == choose("./kvd", then=("true",)) == "make"


def test_command_to_build_a_program_is_derived_from_the_tree() -> None:
    text = 'module example.org/tool\nname = "rusty"\nbench: x\npart := 1\n'
    go = {"bin/kvd": "./x/cmd/kvd", "tool": ".", "main": "./main"}
    commands = {program: f"go build -o {program} {folder}" for program, folder in go.items()}
    commands |= {"a/rusty": "cargo build --release --bin=rusty", "bench": "make bench", "part": "", "k.d": ""}
    for program, command in commands.items():
        assert command_to_build_program(program, ["x/cmd/kvd/a.go", "main/main.go", "part/part.go"], text) == command


def replace_build(programs: list[str] | None = None, **changes: object) -> Builder:
    return replace_builder(build=Build(**changes), programs=programs or [])  # type: ignore[arg-type]


def test_build_system_named_in_a_recipe_is_used(tmp_path: Path, git: Repo) -> None:
    git.commit({"CMakeLists.txt": "x", "Makefile": "x"})
    text = 'summary = "a tool"\ndriver = "command"\n[build]\nsystem = "make"\n'
    executable(tmp_path / "builders" / "tool" / "builder.toml", text)
    asked = Settings("HEAD", "HEAD", str(git.path), "tool", "", "here", builders_path=str(tmp_path / "builders"))
    resolved = resolve_settings(replace(asked, metric="", quick=QuickCommand(run="true")))
    assert resolved.system == "make"
    for system in ("make", ""):  # "": a hunt that an older version stored
        build = requested_builder(replace(resolved, system=system)).build
        assert build and build.system == "make"


def key(builder: Builder, system: str = "cmake") -> str:
    return key_of_build(builder, Variant(), Toolchain("gcc", "12", "gcc 12"), system)


def test_build_key_covers_all_inputs_of_a_build_system() -> None:
    plain: dict[str, object] = {"system": "cmake"}
    changes = ({}, {"options": ["-DX=1"]}, {"targets": ["x"]}, {"in_place": True}, {"env": {"X": "1"}})
    keys = [key(replace_build(**plain | change)) for change in changes]
    keys.append(key(replace_build(system="make"), "make"))
    named = ({"programs": ["bin/x"]}, {"library": "lib/x.so"}, {"name": "other"})  # the name is in the RPATH
    keys += [key(replace_builder(build=Build(system="cmake"), **each)) for each in named]
    assert len(set(keys)) == len(keys) == 9
    assert key(replace_build()) == keys[0], "the key does not depend on how the build system was chosen"
    commands = replace_build(compile=[["make"]])
    assert key(commands, "") == key(msgspec.structs.replace(commands, name="other", programs=["x"]), "")


@pytest.mark.parametrize("system", SYSTEMS)
def test_commands_hash_covers_all_commands_of_a_build_system(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash changes with each text of the commands, except texts that refuse a build, and with ``programs.COPY``."""
    texts = {name for name, value in vars(build_commands).items() if name.isupper() and isinstance(value, str)}
    used = texts & set(SYSTEMS[system].commands.__code__.co_names)
    assert used or system == "go"
    before = commands_hash(system)
    for of, name in ((programs, "COPY"), *((build_commands, name) for name in used - {"_REFUSE", "_LOGGED", "_LOG"})):
        with monkeypatch.context() as patched:
            patched.setattr(of, name, getattr(of, name) + "# another\n")
            assert commands_hash(system) != before, name


@pytest.mark.tools
def test_build_key_covers_the_compiler_of_a_build_system(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for compiler in ((), ("false",), ("echo", "rustc 1.7"), ("echo", "rustc 1.8")):
        monkeypatch.setitem(SYSTEMS, "make", replace(SYSTEMS["make"], compiler=compiler))
        keys.append(key_of_build(RECIPE, Variant(), Toolchain("gcc", "12", "gcc 12"), "make", host))
    assert keys[0] == keys[1]
    assert len({*keys}) == 3


def replace_builder(**changes: object) -> Builder:
    return msgspec.structs.replace(RECIPE, **changes)


def test_build_system_text_begins_with_the_name() -> None:
    assert all(recognised_system_text(system).startswith(f"{system}: ") for system in SYSTEMS)
    assert ("each commit" in recognised_system_text(AUTO), recognised_system_text("")) == (True, "")


def test_compiler_flags_change_a_build_but_not_its_home() -> None:
    settings = replace(SETTINGS, builder="", workload="", quick=QuickCommand("./x", ("make",)))
    given = replace(settings, flags=Flags("-UC", "-UCXX -DCXX=3", "-Wl,-rpath,/of/the/user"))
    plain, flagged = map(requested_builder, (settings, given))
    assert plain.name != flagged.name
    assert plain.home == flagged.home, "both builds use one copy of the sources"
    assert build_fingerprint(plain, Variant()) != build_fingerprint(flagged, Variant())
