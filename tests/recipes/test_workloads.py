from collections.abc import Callable
from pathlib import Path

import pytest

from labs import SUITE
from perfbisect.errors import RecipeError
from perfbisect.recipes.workload import full_name, load_workload, load_workloads

Write = Callable[[str, str], Path]


@pytest.fixture
def suite(write: Write) -> Path:
    write("workloads/tables/select.lua", "")
    return write("workloads/tables/suite.toml", SUITE)


def test_defaults_lie_under_each_workload(suite: Path) -> None:
    select, view = load_workloads()
    assert (select.name, select.suite, select.driver, select.folder) == ("select", "tables", "small", str(suite.parent))
    assert (select.group, select.time, select.args) == ("point", 5.0, {"tables": 1, "rate": 1})
    assert (view.group, view.args, view.statement) == ("range", {"tables": 1, "rate": 0.5}, "SELECT 1;")


def test_a_workload_is_found_by_either_name(suite: Path) -> None:
    assert load_workload("view", "small") == load_workload("tables/view", "small")


def test_a_workload_in_two_suites_needs_its_suite(suite: Path, write: Write) -> None:
    write("workloads/more/suite.toml", SUITE.replace('script = "select.lua"', 'statement = "x"'))
    with pytest.raises(RecipeError, match="Several suites have a workload 'view'") as caught:
        load_workload("view", "small")
    assert caught.value.advice == "Choose one of more/view, tables/view."
    assert full_name(load_workload("more/view", "small")) == "more/view"


def test_the_same_name_for_another_driver_is_no_rival(suite: Path, write: Write) -> None:
    other = SUITE.replace('"small"', '"other"').replace('script = "select.lua"', 'statement = "x"')
    write("workloads/more/suite.toml", other)
    assert load_workload("view", "other").suite == "more"
    assert load_workload("view", "small").suite == "tables"


def test_a_suite_may_serve_several_drivers(suite: Path) -> None:
    suite.write_text(SUITE.replace('"small"', '["small", "other"]'))
    assert [(each.name, each.driver) for each in load_workloads()] == [
        ("select", "small"),
        ("select", "other"),
        ("view", "small"),
        ("view", "other"),
    ]
    assert load_workload("view", "other").driver == "other"
    with pytest.raises(RecipeError, match=r"no workload 'view' for third. The one of that name is for other, small"):
        load_workload("view", "third")


def test_a_suite_of_the_user_hides_one_of_its_name(suite: Path, write: Write) -> None:
    write("given/tables/suite.toml", SUITE.replace('script = "select.lua"', 'statement = "mine"'))
    assert load_workload("select", "small", "given").statement == "mine"


def test_an_unknown_workload_names_the_nearest(suite: Path, write: Write) -> None:
    with pytest.raises(RecipeError, match=r"no workload 'selct' for small. Did you mean 'select'") as caught:
        load_workload("selct", "small")
    assert caught.value.advice == "Workloads for small: select, view."
    with pytest.raises(RecipeError, match=r"no workload 'view' for other. The one of that name is for small"):
        load_workload("view", "other")


COMMAND = '[workloads.x]\nsummary = "x"\ncommand = ["x"]\n'


def test_a_mistake_in_the_defaults_is_named_there(suite: Path) -> None:
    suite.write_text(SUITE.replace("time = 5", "tme = 5"))
    with pytest.raises(RecipeError, match=r"`defaults.tme` is an unknown key. Did you mean 'time'"):
        load_workloads()


@pytest.mark.parametrize("drivers", ["[]", "3"])
def test_drivers_are_one_or_several_names(suite: Path, drivers: str) -> None:
    suite.write_text(SUITE.replace('"small"', drivers))
    with pytest.raises(RecipeError, match=r"`driver` is .*, but must be text or a list of at least one"):
        load_workloads()


def test_a_suite_without_workloads_is_a_mistake(suite: Path) -> None:
    suite.write_text('summary = "x"\ndriver = "y"\n[workloads]\n')
    with pytest.raises(RecipeError, match="`workloads` is empty"):
        load_workloads()


def test_the_args_of_a_command_are_placeholders(suite: Path) -> None:
    own = 'args = {key-size = 20}\nprepare_commands = [["y", "{tables}"]]'
    suite.write_text(SUITE + COMMAND.replace('["x"]', '["x", "--size={key-size}"]') + own)
    asked = load_workload("x", "small")
    assert asked.args == {"tables": 1, "rate": 0.5, "key-size": 20}


@pytest.mark.parametrize(
    ("keys", "metric"),
    [('command = ["x"]', "latency"), ('command = ["x"]\nrate = "(x)"', "rate"),
     ('command = ["x"]\ncost = "$.x"', "cost"), ('statement = "x"', "qps")],
)  # fmt: skip
def test_what_is_hunted_with_a_workload(write: Write, keys: str, metric: str) -> None:
    write("workloads/s/suite.toml", f'summary = "s"\ndriver = "d"\n[workloads.w]\nsummary = "w"\ngroup = "g"\n{keys}\n')
    assert load_workload("w", "d").metric == metric
