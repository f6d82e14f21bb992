"""Builders and workloads from options of the command line, such as `--build` and `--run`."""

import tomllib
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from perfbisect.core.domain.settings import QuickCommand, Settings
from perfbisect.errors import RecipeError, UsageError
from perfbisect.lab.building.plan import build_fingerprint
from perfbisect.lab.workload import dataset
from perfbisect.recipes.builder import Build, Builder, Server
from perfbisect.recipes.builder_reader import find_variant
from perfbisect.recipes.requested import command_words, converted_overrides, load_requested, with_overrides
from perfbisect.recipes.workload import Workload

QUICK = QuickCommand("./bench --quick", ("./configure 'a b'", "make -j{jobs}"), rate="ops: ([0-9]+)")
ASKED = Settings("v1", "v2", "/src/my store.git", "", "", "local", quick=QUICK)


@pytest.fixture(autouse=True)
def sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overrides the fixture that hides the shipped recipes."""


def asked(**changes: object) -> Settings:
    return replace(ASKED, quick=replace(QUICK, **changes))


def test_commands_of_options_become_builder_and_workload() -> None:
    builder, workload = load_requested(ASKED)
    assert builder.build.compile == [
        ["env", "-C", "{prefix}", "./configure", "a b"],
        ["env", "-C", "{prefix}", "make", "-j{jobs}"],
    ]
    assert (workload.command, workload.rate, workload.metric) == (["./bench", "--quick"], "ops: ([0-9]+)", "rate")
    assert builder.name.startswith("my-store-")
    assert workload.name == "bench --quick"
    on_recipe, of_recipe = load_requested(replace(asked(build=None), builder="demo"))
    assert (on_recipe.name, of_recipe.driver) == ("demo", "demo"), "a workload of options on the builder of a recipe"


def test_changed_file_outside_the_repository_makes_another_build(tmp_path: Path) -> None:
    """A benchmark that is not in the repository may be edited between two hunts."""
    made = []
    for content in ("int main() {}\n", "int main() { return 0; }\n"):
        (tmp_path / "bench.c").write_text(content)
        made.append(load_requested(asked(build=(f"sh -c 'cc {tmp_path}/bench.c -o bench'",)))[0])
    assert made[0].name != made[1].name and made[0].build.compile != made[1].build.compile


def test_then_commands_follow_a_build_system_or_a_recipe(tmp_path: Path) -> None:
    (bench := tmp_path / "bench.c").write_text("int main() {}\n")
    settings = replace(asked(build=(), then=(f"{{cc}} {bench} -o bench",)), system="make")
    builder, _ = load_requested(settings)
    ((*before, files, compiler, source, _, _),) = builder.build.then
    assert (before, compiler) == (["env", "-C", "{prefix}", "CC={cc}", "CXX={cxx}"], "{cc}")
    assert (files.partition("=")[0], source, builder.started) == ("PERFBISECT_FILES", str(bench), [])
    chosen = replace(settings, programs=("x/kvd",))
    assert load_requested(chosen)[0].started == ["x/kvd"], "the programs that the build system is to build"
    bench.write_text("int main() { return 0; }\n")
    assert load_requested(settings)[0].name != builder.name
    recipe = replace(
        settings, system="", builder="sqlite", quick=QuickCommand("{prefix}/bench", then=settings.quick.then)
    )
    followed, plain = (
        load_requested(replace(recipe, quick=replace(recipe.quick, then=then)))[0] for then in (recipe.quick.then, ())
    )
    assert (len(followed.build.then), plain.build.then) == (1, [])
    variant = find_variant(plain, "")
    assert build_fingerprint(followed, variant) != build_fingerprint(plain, variant)
    with pytest.raises(UsageError, match="--then has no effect: builder host builds nothing"):
        load_requested(replace(recipe, builder="host"))


def test_names_differ_if_build_or_run_commands_differ() -> None:
    builder, workload = load_requested(ASKED)
    for change, alike in (
        ({}, (True, True)),
        ({"build": ("./configure 'a b'", "make")}, (False, True)),
        ({"build": ("./configure 'a b' make -j{jobs}",)}, (False, True)),
        ({"run": "./bench --slow"}, (True, False)),
        ({"then": ("./more",)}, (False, True)),
    ):
        made, run = load_requested(asked(**change))
        assert (made.name == builder.name, run.name == workload.name) == alike
        assert made.work_name == builder.work_name
    theirs = load_requested(replace(ASKED, repository="/other/my store.git"))[0]
    assert theirs.name != builder.name and theirs.work_name != builder.work_name


def test_clones_of_one_repository_share_their_work_folder() -> None:
    """The folder is part of a build and of its key. A clone of another name or history has another folder."""
    ours = replace(ASKED, root="a" * 40)
    folder = PurePosixPath(ASKED.repository)
    theirs = replace(ours, repository=f"/home/else/{folder.name}")
    place = load_requested(ours)[0].work_name
    assert load_requested(theirs)[0].work_name == place
    assert load_requested(theirs)[0].name != load_requested(ours)[0].name
    others = replace(ours, repository=f"{folder}2"), replace(ours, root="b" * 40), ASKED
    assert place not in {load_requested(other)[0].work_name for other in others}


COMMANDS = tomllib.loads(Path(__file__).with_name("commands.toml").read_text())


def test_workload_is_named_after_its_command() -> None:
    assert {run: load_requested(asked(run=run))[1].name for run in COMMANDS["names"]} == COMMANDS["names"]
    assert load_requested(asked(run="./match", name="match 2"))[1].name == "match 2"


@pytest.mark.parametrize("wrong", COMMANDS["wrong"], ids=lambda wrong: str(wrong["options"]))
def test_wrong_options_are_refused_with_the_reason(wrong: Any) -> None:
    options = {name: tuple(given) if isinstance(given, list) else given for name, given in wrong["options"].items()}
    with pytest.raises(UsageError, match=wrong["why"]):
        load_requested(asked(**options))


def test_option_that_the_command_does_not_use_is_refused() -> None:
    hunt = Settings("v1", "v2", "/src/rocksdb.git", "rocksdb", "fillseq_disable_wal", "local")
    for settings, option, name in ((ASKED, "--threads", "threads"), (hunt, "--set seek-nexts", "seek-nexts")):
        with pytest.raises(UsageError, match=rf"{option} would change nothing: .* does not use {{{name}}}"):
            load_requested(replace(settings, overrides={name: 4}))
    assert load_requested(replace(hunt, overrides={"num": 7}))[1].args["num"] == 7
    assert load_requested(replace(asked(run="./bench -t {threads}"), overrides={"threads": 4}))[1].threads == 4
    counted = asked(run="./bench --n={events}")
    assert load_requested(counted)[1].args == {"events": 1}, "a command may use a number of operations"
    assert load_requested(replace(counted, overrides={"events": "500"}))[1].args == {"events": 500}
    assert load_requested(ASKED)[1].args == {}


def test_commands_need_an_explicit_shell_and_doubled_braces() -> None:
    assert command_words("N=3 './a b' C=d") == ["env", "N=3", "./a b", "C=d"], "assignments as in a shell"
    assert command_words("sh -c './a; ./b'") == ["sh", "-c", "./a; ./b"]
    assert command_words("./a; ./b $(x)") == ["./a;", "./b", "$(x)"]
    assert load_requested(asked(run="awk {{print}}"))[1].command == ["awk", "{{print}}"]
    with pytest.raises(RecipeError):
        load_requested(asked(run="awk {{print}"))


WORKLOAD = Workload(
    name="w", suite="s", folder=str(Path(__file__).parents[2] / "workloads"), summary="", group="point",
    prepare="create table t (a int)", statement="select 1",
    args={"table-size": 100, "rate": 0.5, "keys": "one", "covered": True}, prepare_args={"table-size": 100, "churn": 1},
)  # fmt: skip
SERVED = Server(initialise=[], start=["server"], ready=["true"])
BUILDER = Builder(summary="", driver="pgsql", build=Build(compile=[], install=[], artifacts=[]), server=SERVED)


def test_overrides_apply_to_loading_and_runs_and_keep_types() -> None:
    asked = {"table-size": "7", "rate": "2", "keys": "2", "covered": "off", "time": 3}
    assert converted_overrides(WORKLOAD, asked) == {
        "table-size": 7,
        "rate": 2.0,
        "keys": "2",
        "covered": False,
        "time": 3,
    }
    changed = with_overrides(WORKLOAD, {"table-size": "7", "churn": "2", "threads": 4})
    assert changed.args == WORKLOAD.args | {"table-size": 7}
    assert changed.prepare_args == {"table-size": 7, "churn": 2}
    assert (changed.threads, changed.time) == (4, WORKLOAD.time)
    assert (
        with_overrides(WORKLOAD, converted_overrides(WORKLOAD, {"covered": "off", "rate": "2"})).args["covered"]
        is False
    )
    loads: list[dict[str, str]] = [{}, {"keys": "all"}, {"table-size": "7"}]
    keys = [dataset.dataset_key(BUILDER, with_overrides(WORKLOAD, each), {}) for each in loads]
    assert keys[0] == keys[1] != keys[2], "data is shared unless loading is changed"


def test_override_of_a_wrong_type_is_refused() -> None:
    for name, value, sentence in (
        ("tablesize", "7", r"s/w has no argument 'tablesize' that --set could change. Did you mean 'table-size'"),
        ("table-size", "1e6", r"table-size=1e6 cannot be set: table-size must be a whole number"),
        ("rate", "much", r"rate=much cannot be set: rate must be a number"),
        ("covered", "perhaps", r"covered=perhaps cannot be set: covered must be true or false"),
    ):
        with pytest.raises(UsageError, match=sentence):
            converted_overrides(WORKLOAD, {name: value})
