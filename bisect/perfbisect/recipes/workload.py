"""The shape of a suite of workloads, ``workloads/SUITE/suite.toml``.

A workload is a sysbench Lua script with its arguments, or plain SQL. sysbench runs it with these environment
variables, which the shared Lua module ``workloads/perfbisect.lua`` reads:

PERFBISECT_LIBRARY  path of the embedded library (absent for a server)
PERFBISECT_DATA     the dataset copy of this visit
PERFBISECT_WARMUP   seconds to run the operation in thread_init, before sysbench's clock starts
PERFBISECT_CONTROL  FIFO of ``perf stat --control``; thread 0 writes "enable" at its first event, "disable" at its end
PERFBISECT_ACK      FIFO on which perf answers
PERFBISECT_SETUP, PERFBISECT_PREPARE, PERFBISECT_STATEMENT  the SQL of a plain SQL workload
"""

import msgspec

Option = str | int | float | bool


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One microbenchmark."""

    name: str = ""  # its key in the suite, filled in by the reader
    suite: str = ""  # filled in by the reader
    folder: str = ""  # absolute path of the suite's folder, filled in by the reader
    driver: str = ""  # of the suite
    summary: str
    group: str  # point, range, range-aggregate, scan, write, …: as in the field's tables
    script: str = ""  # Lua file in the suite's folder
    args: dict[str, Option] = {}  # sysbench options, without the leading dashes
    prepare_script: str = ""  # makes the dataset; run with the command "prepare"
    prepare_args: dict[str, Option] = {}
    prepare: str = ""  # plain SQL instead of a script: makes the dataset
    setup: str = ""  # plain SQL run in each connection before the measured statement
    statement: str = ""  # plain SQL that is measured
    operation: str = "event"  # what is counted: "event" (one call of event()) or "query" (as sysbench counts them)
    threads: int = 1
    warmup: float = 2.0  # seconds
    time: float = 10.0  # seconds of the measured window


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A folder of workloads that share a driver and, mostly, a dataset."""

    name: str = ""  # the folder's name, filled in by the reader
    summary: str
    driver: str  # builders with this driver can run it
    defaults: dict[str, object] = {}  # keys of a workload, merged under each
    workloads: dict[str, Workload]
