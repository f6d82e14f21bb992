"""The schema of a suite of workloads, ``workloads/SUITE/suite.toml``.

A workload is a sysbench Lua script with its arguments, plain SQL, or a command that is run without sysbench.
sysbench runs the first two with these environment variables, which the shared Lua module ``workloads/perfbisect.lua`` reads:

PERFBISECT_LIBRARY  path of the embedded library (absent for a server)
PERFBISECT_DATA     the dataset copy of this visit
PERFBISECT_WARMUP   seconds to run the operation in thread_init, before sysbench's clock starts
PERFBISECT_CONTROL  FIFO of ``perf stat --control``; thread 0 writes "enable" at its first event, "disable" at its end
PERFBISECT_ACK      FIFO on which perf answers
PERFBISECT_SETUP, PERFBISECT_PREPARE, PERFBISECT_CHECK, PERFBISECT_STATEMENT  the SQL of a plain SQL workload
"""

from typing import Annotated, ClassVar, Literal

import msgspec

from perfbisect.recipes.builder import LONGEST, Argv, Need, Seconds, Weight

EVENTS = "events"  # the arg that is a workload's length in operations: an option of sysbench, {events} in a command

Drivers = str | Annotated[list[str], msgspec.Meta(min_length=1, description="a list of at least one")]
Option = str | int | float | bool
LatencyName = Literal["min", "avg", "p95", "p99", "max"]
SecondsOrZero = Annotated[float, msgspec.Meta(ge=0, le=LONGEST, description="a number of seconds, 0 or more")]


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One microbenchmark."""

    filled_in: ClassVar[frozenset[str]] = frozenset({"name", "suite", "folder", "driver"})  # by the reader

    name: str = ""  # its key in the suite
    suite: str = ""
    folder: str = ""  # absolute path of the suite's folder
    driver: str = ""  # one of the suite's: a suite with several has one Workload for each
    summary: str
    group: str  # point, range, range-aggregate, scan, write, …: the section of a table of results
    script: str = ""  # Lua file in the suite's folder
    args: dict[str, Option] = {}  # sysbench options, without the leading dashes; of a command: its own placeholders
    prepare_script: str = ""  # loads the dataset; run with the command "prepare"
    prepare_args: dict[str, Option] = {}
    prepare: str = ""  # plain SQL instead of a script: loads the dataset
    check: str = ""  # plain SQL: its result, read once a session, must be that of when the data was loaded
    setup: str = ""  # plain SQL run in each connection before the measured statement
    statement: str = ""  # plain SQL that is measured
    suspects: dict[str, Weight] = {}  # path of the system's source → how much likelier a commit that touches it is
    operation: Literal["event", "query"] = (
        "event"  # what counts as one operation: "event" (one call of event()) or "query" (as sysbench counts them)
    )
    threads: Annotated[int, msgspec.Meta(ge=1, le=1_000_000, description="a whole number from 1 to 1000000")] = 1
    warmup: SecondsOrZero = 2.0
    time: Seconds = 10.0  # the measured window
    command: list[str] = []  # measured from its start to its end, instead of a script; run in {prefix}
    prepare_commands: list[Argv] = []  # load its dataset, below {data}
    rate: str = ""  # pattern of a rate in the output (higher is better): see perfbisect.recipes.output_pattern
    cost: str = ""  # pattern of a cost in the output (lower is better)
    operations: str = ""  # pattern of the number of operations in the output; "": the whole execution is one operation
    latencies: dict[LatencyName, str] = {}  # "avg", "p95", …: patterns of latencies in the output, in milliseconds
    format: Literal["", "fio"] = (
        ""  # instead of patterns: whose JSON the output is; see perfbisect.lab.workload.command
    )
    needs: list[Need] = []  # programs that its commands use, beyond those of the build
    # Seconds after which a run is killed; 0: five times its length, and an hour for a command, otherwise a minute.
    timeout: SecondsOrZero = 0.0

    @property
    def metric(self) -> str:
        """The default metric."""
        return "rate" if self.rate or self.format else "cost" if self.cost else "latency" if self.command else "qps"


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A folder of workloads that share a driver and, mostly, a dataset."""

    filled_in: ClassVar[frozenset[str]] = frozenset({"name"})  # by the reader

    name: str = ""  # the folder's name
    summary: str
    driver: Drivers  # builders with this driver, or one of these, can run it
    defaults: dict[str, object] = {}  # keys of a workload, merged under each
    workloads: dict[str, Workload]

    @property
    def drivers(self) -> list[str]:
        """The driver, or all of them."""
        return [self.driver] if isinstance(self.driver, str) else self.driver
