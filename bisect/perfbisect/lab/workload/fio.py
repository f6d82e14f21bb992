"""The JSON that fio prints (``--output-format=json``): IOPS, latencies and CPU time of one job.

fio changed its JSON over the years: 3.0 renamed ``clat`` (µs) to ``clat_ns``, ``total_ios``, ``job_runtime`` and ``sync``
came in later ones. What a version lacks is derived, or is None; only a run without IOPS is an error.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

CPU = "fio-cpu"  # milliseconds of usr and sys time: a counter of a run
PERCENTILES = {"p95": "95.000000", "p99": "99.000000"}


@dataclass(frozen=True, slots=True)
class FioResult:
    """What one fio did."""

    iops: float
    operations: int
    latency: Mapping[str, float | None]  # milliseconds
    cpu: float | None  # milliseconds of usr and sys time


class Times(msgspec.Struct, frozen=True):
    """A distribution of latencies, in the unit that the name of its key says."""

    mean: float = 0.0
    max: float = 0.0
    N: int = 0
    percentile: dict[str, float] = {}


class Direction(msgspec.Struct, frozen=True):
    """The reads or the writes of a job."""

    iops: float = 0.0
    runtime: float = 0.0  # milliseconds
    total_ios: int = 0
    clat: Times | None = None  # µs, before 3.0
    clat_ns: Times | None = None

    @property
    def operations(self) -> float:
        """Their number, before 2.2 from rate and time."""
        return self.total_ios or self.iops * self.runtime / 1000


class Sync(msgspec.Struct, frozen=True):
    """The fsyncs of a job."""

    lat_ns: Times = Times()


class Job(msgspec.Struct, frozen=True):
    """One job, or a group of jobs reported as one."""

    error: int = 0
    job_runtime: float = 0.0  # milliseconds, of all jobs of a group together
    usr_cpu: float = 0.0  # per cent of that
    sys_cpu: float = 0.0
    read: Direction = Direction()
    write: Direction = Direction()
    sync: Sync = Sync()


class Report(msgspec.Struct, frozen=True):
    """All that fio prints."""

    jobs: list[Job] = []


def read(stdout: str) -> FioResult:
    """The result in fio's output, warnings before the JSON passed over.

    Latencies are those of the direction with more I/Os, or of fsync in a job that calls it. Raises ValueError, with a
    sentence, where there is no such result.
    """
    job = _job(stdout)
    sides = sorted((job.read, job.write), key=lambda side: side.operations)
    iops = sum(side.iops for side in sides)
    operations = round(sum(side.operations for side in sides))
    if not 0 < iops < float("inf") or not operations:
        raise ValueError("it did less than one I/O")
    runtime = job.job_runtime or max(side.runtime for side in sides)
    cpu = (job.usr_cpu + job.sys_cpu) / 100 * runtime
    return FioResult(iops, operations, _latency(job, sides[-1]), cpu or None)


def _job(stdout: str) -> Job:
    begin, end = stdout.find("\n{") + 1, stdout.rfind("}") + 1
    try:
        jobs = msgspec.json.decode(stdout[0 if stdout.startswith("{") else begin : end], type=Report).jobs
    except msgspec.DecodeError as error:
        raise ValueError(f"its output is not the JSON of fio (--output-format=json): {error}") from error
    if len(jobs) != 1:
        raise ValueError(f"its output has {len(jobs)} jobs, but must have one: add --group_reporting")
    if jobs[0].error:
        raise ValueError(f"fio reports error {jobs[0].error}")
    return jobs[0]


def _latency(job: Job, side: Direction) -> dict[str, float | None]:
    if job.sync.lat_ns.N:
        times, divisor = job.sync.lat_ns, 1e6
    elif side.clat_ns is not None:
        times, divisor = side.clat_ns, 1e6
    else:
        times, divisor = side.clat or Times(), 1e3
    found = {"avg": times.mean, "max": times.max} | {
        name: times.percentile.get(key, 0.0) for name, key in PERCENTILES.items()
    }
    return {name: value / divisor or None for name, value in found.items()}
