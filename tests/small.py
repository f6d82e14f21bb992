"""A small library in C, at six commits, in a lab."""

from collections.abc import Callable
from pathlib import Path

from perfbisect.lab.host_lab import HostLab
from perfbisect.recipes.builder import Build, Builder, Variant
from perfbisect.recipes.workload import Option, Workload

HERE = Path(__file__).parent / "lab"
FAST, SLOW, SAME, BROKEN, CRASHING = range(5)

BUILDER = Builder(
    name="small",
    folder=str(HERE),
    summary="",
    driver="small",
    library="libsmall.so",
    variants={"o2nofp": Variant(cflags="-O2")},
    build=Build(
        compile=[["sh", "-c", "$CC {cflags} -fPIC -c {source}/library.c -o library.o"]],
        install=[["sh", "-c", "mkdir -p {prefix} && gcc -shared library.o -o {prefix}/libsmall.so"]],
        artifacts=["libsmall.so"],
        env={"CC": "{cc}"},
    ),
)


def workload(args: dict[str, Option] | None = None) -> Workload:
    return Workload(
        name="operation",
        suite="small",
        folder=str(HERE),
        driver="small",
        summary="",
        group="point",
        script="operation.lua",
        args=args or {},
        prepare_script="operation.lua",
        warmup=0.1,
        time=1.0,
    )


Open = Callable[..., HostLab]
