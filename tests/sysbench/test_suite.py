"""The suite for servers, as its file has it."""

import re
from pathlib import Path

import msgspec

from perfbisect.lab.workload.lua import SYSBENCH_DRIVERS, measured, preparing, with_modules
from perfbisect.recipes.workload import for_each_driver, read_suite

WORKLOADS = Path(__file__).parents[2] / "workloads"
SUITE = read_suite(WORKLOADS / "sysbench" / "suite.toml")
ALL = SUITE.workloads

WRITE = {name for name, workload in ALL.items() if workload.group == "write"}


def test_each_serves_both_of_sysbenchs_drivers() -> None:
    assert len(for_each_driver(SUITE)) == 2 * len(ALL)
    assert {workload.driver for workload in for_each_driver(SUITE)} == set(SYSBENCH_DRIVERS)


def test_pre_differs_from_its_like_in_the_data_only() -> None:
    for name, workload in ALL.items():
        churned = workload.prepare_args.get("churn", 0)
        assert churned == (0 if name.endswith(".pre") or name in WRITE else 1), name
        if name.endswith(".pre"):
            like = ALL[name.removesuffix(".pre")]
            same = {"name": name, "summary": workload.summary, "prepare_args": workload.prepare_args}
            assert msgspec.structs.replace(like, **same) == workload


def test_runs_that_change_the_data_draw_other_keys_each_time() -> None:
    assert {name for name, workload in ALL.items() if workload.args.get("rand-seed") == 0} == WRITE


def test_loading_and_runs_agree_on_the_tables() -> None:
    for workload in ALL.values():
        for arg in ("tables", "table-size"):
            assert workload.args[arg] == workload.prepare_args[arg] != 0
        assert workload.args.get("range-size", 0) <= workload.args["table-size"]  # type: ignore[operator]


def test_every_arg_is_an_option_of_the_scripts() -> None:
    declared = re.findall(r"^    (\w+) = \{\"", (WORKLOADS / "sysbench" / "sbtest.lua").read_text(), re.MULTILINE)
    known = {name.replace("_", "-") for name in declared} | {"rand-seed"}
    assert "table-size" in known
    for workload in ALL.values():
        assert {*workload.args, *workload.prepare_args} <= known


def test_no_script_is_left_over() -> None:
    used = set()
    for workload in ALL.values():
        for script in (measured(workload), preparing(workload)):
            assert script
            used |= {path.name for path in with_modules(workload, script)}
    assert used - {"perfbisect.lua"} == {path.name for path in (WORKLOADS / "sysbench").glob("*.lua")}


def test_transactions_count_their_queries() -> None:
    assert {name for name, workload in ALL.items() if workload.operation == "query"} == {
        name for name, workload in ALL.items() if workload.script == "transaction.lua"
    }
