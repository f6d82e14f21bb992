"""What a command line changes of a workload."""

from pathlib import Path

import pytest

from perfbisect.errors import UsageError
from perfbisect.lab.workload import dataset
from perfbisect.recipes.builder import Build, Builder, Server
from perfbisect.recipes.overrides import overridden, typed
from perfbisect.recipes.workload import Workload

WORKLOAD = Workload(
    name="w",
    suite="s",
    folder=str(Path(__file__).parents[2] / "workloads"),
    summary="",
    group="point",
    prepare="create table t (a int)",
    statement="select 1",
    args={"table-size": 100, "rate": 0.5, "keys": "one", "covered": True},
    prepare_args={"table-size": 100, "churn": 1},
)
BUILDER = Builder(
    summary="",
    driver="pgsql",
    build=Build(compile=[], install=[], artifacts=[]),
    server=Server(initialise=[], start=["server"], ready=["true"]),
)


def test_an_arg_keeps_its_kind() -> None:
    asked = {"table-size": "7", "rate": "2", "keys": "2", "covered": "off", "time": 3}
    assert typed(WORKLOAD, asked) == {"table-size": 7, "rate": 2.0, "keys": "2", "covered": False, "time": 3}


def test_what_loading_and_runs_share_is_changed_for_both() -> None:
    changed = overridden(WORKLOAD, {"table-size": "7", "churn": "2", "threads": 4})
    assert changed.args == WORKLOAD.args | {"table-size": 7}
    assert changed.prepare_args == {"table-size": 7, "churn": 2}
    assert (changed.threads, changed.time) == (4, WORKLOAD.time)
    assert overridden(WORKLOAD, typed(WORKLOAD, {"covered": "off", "rate": "2"})).args["covered"] is False


def test_data_is_shared_unless_loading_is_changed() -> None:
    keys = [
        dataset.key(BUILDER, overridden(WORKLOAD, asked), {}) for asked in ({}, {"keys": "all"}, {"table-size": "7"})
    ]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"tablesize": "7"}, r"s/w has no arg 'tablesize' to set. Did you mean 'table-size'"),
        ({"table-size": "1e6"}, r"table-size=1e6 cannot be set: table-size is a whole number"),
        ({"rate": "much"}, r"rate=much cannot be set: rate is a number"),
        ({"covered": "perhaps"}, r"covered=perhaps cannot be set: covered is true or false"),
    ],
)
def test_a_mistake_is_named(asked: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        typed(WORKLOAD, asked)
