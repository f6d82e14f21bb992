"""Profiles by perf: its commands, and the folded stacks of real and of recorded outputs."""

import platform
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace as struct_replace

from fake_host import FakeHost
from labs import BUILDER, FAST, SLOW, Open, bench_lab, lab_of, workload_of
from perfbisect.core.domain.events import LabEvent, Profiled, Unexplained
from perfbisect.core.domain.facts import ProfileFacts, RunFacts
from perfbisect.core.domain.orders import Measure, PlannedRuns, Purpose
from perfbisect.core.explain.profiles import RARE, UNKNOWN, FoldedStacks, folded_stacks, read_frame, stack_frames
from perfbisect.errors import EnvironmentFailure, NoPerfSamples, RunFailed
from perfbisect.host.local import LocalHost
from perfbisect.lab.host_lab import HostLab
from perfbisect.lab.measure import profiles
from perfbisect.lab.measure.profiles import (
    ADD_UP,
    ALONE,
    LARGEST,
    LARGEST_STACK,
    LOW,
    NAME,
    NO_KERNEL,
    NO_LEAF_CALLERS,
    OF_SHORT,
    OFTENEST,
    SAMPLED_INSTRUCTIONS,
    SAMPLES,
    SHORTEN,
    STACK,
    TIMES,
    WAITS,
    WAITS_FOR_ALL,
    ProfileStudy,
    Sampling,
    find_sampling,
    first_sampling_rate,
    next_rate,
    perf_record_command,
    profile_facts,
    read_folded_stacks,
    sampling_of_trial,
    wait_sampling_interval,
)
from perfbisect.lab.measure.visit import RunContext, Turn
from perfbisect.lab.servers import Installation
from perfbisect.lab.workload import command, lines_of
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload
from postgres import BUILDER as POSTGRES
from postgres import needs_postgres
from program import executable
from repos import Repo

OUTPUTS = Path(__file__).parents[2] / "outputs"
CLOCK = Sampling("cpu-clock:u", "dwarf")
FACTS = RunFacts("c", "key", "visit", "here", 0.0, 2.0, 50, {}, (), {}, {})


def recorded(name: str, waits: str = "") -> FoldedStacks:
    """The folded stacks of a recorded output of `perf script`."""
    text = (OUTPUTS / f"perf-script-{name}.txt").read_text()
    return folded_stacks(lines_of(added_up(f"{text}\n\f0\n", waits)), 1000)


def added_up(text: str, waits: str = "") -> str:
    argv = ["awk", "-v", f"waits={waits}", ADD_UP]
    return subprocess.run(argv, input=text, capture_output=True, text=True, check=True).stdout


def own(stacks: dict[str, float]) -> dict[str, float]:
    """The cost of each function without its callees."""
    costs: dict[str, float] = {}
    for stack, cost in stacks.items():
        function, _ = read_frame(stack_frames(stack)[-1])
        costs[function] = costs.get(function, 0.0) + cost
    return costs


def callers(stacks: dict[str, float], called: str) -> set[str]:
    """The functions that call ``called``."""
    chains = [[read_frame(frame)[0] for frame in stack_frames(stack)] for stack in stacks]
    return {chain[-2] for chain in chains if chain[-1] == called and len(chain) > 1}


@pytest.mark.tools
def test_frame_pointers_miss_the_caller_of_a_leaf_and_dwarf_finds_it() -> None:
    """12 samples each of one program: ``main`` calls ``heavy`` and ``light``, which call ``leaf``."""
    for chains, called_by in ("dwarf", {"heavy", "light"}), ("fp", {"main"}):
        folded = recorded(chains)
        assert callers(dict(folded.stacks), "leaf") == called_by
        assert folded.samples == 12
        assert all(stack.startswith("two;") for stack in folded.stacks)
    assert sum(folded.stacks.values()) == pytest.approx(12 * 2004.008)


@pytest.mark.tools
def test_call_chains_of_a_server_and_of_cpp_are_complete() -> None:
    folded = recorded("postgres")
    assert (folded.samples, folded.alone) == (8, 0)
    for chain in map(stack_frames, folded.stacks):
        assert chain[:2] == ("_start (postgres)", "__libc_start_main (libc.so.6)")
        assert "PostgresMain (postgres)" in chain
        assert not any(one == other == "[postgres]" for one, other in pairwise(chain))
    assert "shop::Store<shop::Item>::put" in callers(dict(recorded("cpp").stacks), "__memcmp_evex_movbe")


@pytest.mark.tools
def test_costs_are_scaled_up_by_the_lost_samples() -> None:
    folded = recorded("lost")
    assert (folded.samples, folded.lost) == (4, 1 + 1 + 15 + 9 + 18 + 14 + 16)
    made = profile_facts(FACTS, folded, CLOCK)
    assert sum(made.stacks.values()) == pytest.approx((4 + 74) * 200.040)
    assert made.note == f"{NO_KERNEL} 95 % of the samples were lost."


@pytest.mark.tools
def test_wait_lasts_until_the_thread_runs_again() -> None:
    """The thread has three waits, of which the last has not ended when the recording ends."""
    folded = recorded("waits", "1")
    assert folded.samples == 2
    first, second = 235887437 - 235807778, 247469685 - 243827952  # nanoseconds
    assert sum(folded.stacks.values()) == pytest.approx((first + second) / 1000)
    assert all(stack.startswith("postgres;_start (postgres);") for stack in folded.stacks)
    assert all("schedule ([kernel])" in stack for stack in folded.stacks)


COUNTED = "samples 20\nframes 60\n"
TRIALS = [
    ("cycles", COUNTED, "dwarf", Sampling("cycles", "dwarf")),
    ("cycles:u", COUNTED, "dwarf", Sampling("cycles:u", "dwarf")),  # the kernel may not be sampled
    ("cpu-clock:uH", COUNTED, "dwarf", CLOCK),
    ("dummy:HG\ncpu-clock", COUNTED, "fp", Sampling("cpu-clock", "fp")),
    ("cycles", "samples 0\nframes 0\n", "fp", None),  # it is counted, and no interrupt comes
    ("cycles", "samples 20\nframes 20\n", "dwarf", None),  # callers are unknown
    ("cycles", "samples 20\nframes 20\n", "fp", Sampling("cycles", "fp")),
    ("", "", "fp", None),
]


def test_sampling_is_chosen_by_trials() -> None:
    """perf 6.1 adds "H" to the name of a replacement event, and prints one name for each of two core types."""
    for names, counted, chains, found in TRIALS:
        assert sampling_of_trial(f"{names}\n{counted}", chains) == found
    for event, end in (("cycles:u", "cycles/u"), ("instructions", "instructions/")):
        names = f"cpu_core/{end}", f"cpu_atom/{end}"
        assert sampling_of_trial("\n".join((*names, COUNTED)), "fp") == Sampling(event, "fp", names)


def test_profiles_have_units_and_notes() -> None:
    events = {"cpu-clock:u": "us", "cycles": "cycles", "instructions:u": "instructions", "instructions": "instructions"}
    assert {event: Sampling(event, "dwarf").unit for event in events} == events
    assert Sampling("cycles", "dwarf").notes == ()
    assert Sampling("cycles:u", "fp").notes == (NO_KERNEL, NO_LEAF_CALLERS)
    made = profile_facts(
        FACTS, FoldedStacks({"p;f (x)": 3.0}, samples=10, lost=0, alone=0.3), Sampling("cycles", "dwarf")
    )
    assert (made.note, made.alone) == ("", 0.3)
    made = profile_facts(
        FACTS, FoldedStacks({"p;main (x);poll (libc.so.6)": 5.0}, 10, 0, 0.0), Sampling(WAITS, "dwarf")
    )
    assert (made.off_cpu, made.unit, made.note) == (True, "us", WAITS_FOR_ALL)


def test_server_is_sampled_separately_from_its_client() -> None:
    """Processes that a server starts before the window are known only if perf follows them from its own start."""
    folder, sampled, waits = PurePosixPath("/visit"), {"sampled": CLOCK, "rate": 99}, Sampling(WAITS, "dwarf")
    embedded, served = (
        perf_record_command(["sysbench"], folder, **sampled),
        perf_record_command(["sysbench"], folder, [7, 8], **sampled),
    )
    assert "--delay=-1" in embedded and "-p" not in embedded
    assert "--control" not in perf_record_command(["bench"], folder, from_start=True, **sampled)
    assert "--delay=-1" not in served and served[served.index("-p") + 1] == "7,8"
    assert served[4:8] == ["-e", "dummy:u", "-e", "cpu-clock:u"]
    argv = perf_record_command(["sysbench"], folder, sampled=waits, rate=7)
    assert argv[4:12] == ["-e", "dummy:u", "-e", WAITS, "-c", "7", "--switch-events", f"--max-size={LARGEST}"]
    assert "--delay=-1" in argv


def test_interval_of_sampled_waits_depends_on_their_number() -> None:
    assert wait_sampling_interval(100_000) == 23, "20 has divisors that a pattern of waits may have"
    assert wait_sampling_interval(500) == wait_sampling_interval(0) == 1


def context(**changes: object) -> RunContext:
    """A context of a run of ten seconds."""
    workload = Workload(summary="", group="point", script="w.lua", **changes)  # type: ignore[arg-type]
    host = FakeHost("far", {"sh perf": "perf\n"})
    return RunContext(host, HostEntry(name="far"), workload, PurePosixPath("/far"), perf=False)


def test_sampling_rate_depends_on_length_and_threads() -> None:
    long = replace(context(command=["bench"]), longest_run_seconds=1000.0)  # an hour of it must not fill the disk
    assert first_sampling_rate(context(), cores=2) == OFTENEST
    assert [first_sampling_rate(context(threads=64), cores=cores) for cores in (256, 4)] == [
        SAMPLES / 1280,
        SAMPLES / 40,
    ]
    assert first_sampling_rate(long, cores=10) == 1
    assert [next_rate(100, samples) for samples in (SAMPLES // 2, SAMPLES * 10, SAMPLES * 1000)] == [200, 10, 1]
    assert [next_rate(1, 0), next_rate(1, 0, highest=OF_SHORT)] == [OFTENEST, OF_SHORT]


def test_host_without_perf_is_reported_once() -> None:
    """The turn ends at once."""
    [told] = ProfileStudy(context(), lambda: None).run_turn(
        SYSTEM, "", turn := Turn(3, 1, 1, 1, Purpose.EXPLAIN, runs_left=1)
    )
    assert isinstance(told, Unexplained)
    assert (told.part, told.host, turn.runs_left) == ("profiles", "far", 0)
    assert told.reason.startswith("perf is not installed on host far. Install with: apt-get install linux-perf (")
    assert list(ProfileStudy(context(), lambda: None, events=SAMPLED_INSTRUCTIONS).run_turn(SYSTEM, "", turn)) == []
    host = FakeHost("far", {"sampled */trial *": "cycles\nframes 0\nsamples 0\n"})  # it counts, and samples nothing
    with pytest.raises(EnvironmentFailure, match="perf takes no samples on host far: the command printed nothing"):
        find_sampling(host)


def folded_of(
    folder: Path, source: str, host: LocalHost, sampled: Sampling, rate: int, seconds: int = 0, *told: str
) -> FoldedStacks:
    """The samples of a program with the arguments ``told``, which is repeated for ``seconds`` seconds."""
    (folder / "made.c").write_text(source)
    subprocess.run(["gcc", "-O2", "-fno-inline", "-o", folder / "made", folder / "made.c"], check=True)
    argv = ["sh", "-c", command._TIMED, "timed", str(folder / command.CLOCK), *LOW, str(folder / "made"), *told]
    argv = perf_record_command(
        argv, PurePosixPath(folder), from_start=True, sampled=sampled, rate=rate, seconds=seconds
    )
    subprocess.run(argv, check=True)
    return read_folded_stacks(host, PurePosixPath(folder), sampled, rate)


SYSTEM = Installation("a commit", "key", PurePosixPath("/far"), BUILDER)
LOOP = "uint64_t x = n; for (uint64_t i = 0; i < n; i++) x = x * 6364136223846793005u + i; return x"
TWO = f"""#include <stdint.h>
volatile uint64_t sink;
__attribute__((noinline)) uint64_t heavy(uint64_t n) {{ {LOOP} ^ 1; }}
__attribute__((noinline)) uint64_t light(uint64_t n) {{ {LOOP}; }}
void work(void) {{ sink += heavy(7000); sink += light(3000); }}
int main(void) {{ for (int i = 0; i < 30000; i++) work(); return 0; }}
"""


DEEP = f"""#include <stdint.h>
#include <string.h>
volatile uint64_t sink;
__attribute__((noinline)) uint64_t heavy(uint64_t n) {{ {LOOP}; }}
__attribute__((noinline)) void around(void) {{ char large[40000]; memset(large, 1, sizeof large); __asm__ volatile("" : : "r"(large) : "memory"); sink += heavy(70000);
    __asm__ volatile("" : : "r"(large) : "memory"); }}
int main(void) {{ for (int i = 0; i < 6000; i++) around(); return 0; }}
"""
GENERATED = r"""#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    unsigned char code[] = {0x89, 0xf8, 0xff, 0xc8, 0x75, 0xfc, 0xc3};  /* x86: counts down to 0 */
    void *at = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(at, code, sizeof code);
    if (argc > 1) {
        char name[500];
        snprintf(name, sizeof name, "%s/perf-%d.map", argv[1], getpid());
        FILE *map = fopen(name, "w");
        fprintf(map, "%lx %x spin_loop\n", (unsigned long)at, (unsigned)sizeof code);
        fclose(map);
    }
    ((int (*)(int))at)(500000000);
    return 0;
}
"""


@pytest.mark.tools
def test_small_copy_of_the_stack_misses_callers_of_a_large_frame(tmp_path: Path, host: LocalHost) -> None:
    found = find_sampling(host)
    if found.chains != "dwarf":
        pytest.skip("perf cannot unwind")
    samplings = (replace(found, stack_bytes=size) for size in (STACK, LARGEST_STACK))
    small, large = (folded_of(tmp_path, DEEP, host, sampling, 499) for sampling in samplings)
    assert small.alone > 0.8, "the copy ends within the frame"
    assert large.alone < ALONE and callers(dict(large.stacks), "heavy") == {"around"}


@pytest.mark.tools
@pytest.mark.skipif(platform.machine() != "x86_64", reason="it generates code of x86")
def test_generated_code_has_the_names_of_the_programs_map_file(tmp_path: Path, host: LocalHost) -> None:
    """The map file is in the temporary folder of the job, where perf does not look, or does not exist."""
    found, folder = find_sampling(host), Path(host.root, "tmp")
    for told, name in (([str(folder)], "spin_loop"), ([], "[jit]")):
        costs = own(dict(folded_of(tmp_path, GENERATED, host, found, 499, 0, *told).stacks))
        assert max(costs, key=lambda each: costs[each]) == name
        for written in folder.glob("perf-*.map"):
            assert not Path("/tmp", written.name).exists(), "perf's copy is removed"
            written.unlink()


@pytest.mark.tools
def test_callers_of_library_functions_are_found_in_many_processes(tmp_path: Path, host: LocalHost) -> None:
    """Each process has its libraries at other addresses."""
    found = find_sampling(host)
    source = """#include <string.h>
    char text[100000]; volatile unsigned long sink;
    __attribute__((noinline)) void find(void) { sink += (char *)memchr(text, '!', sizeof text - sink % 2) == text; }
    int main(void) { for (int i = 0; i < 60000; i++) find(); return 0; }
    """
    folded = folded_of(tmp_path, source, host, found, 499, 2)
    assert int((tmp_path / TIMES).read_text()) > 3
    if found.chains == "dwarf":
        assert folded.alone < ALONE


@pytest.mark.tools
def test_short_command_is_repeated(tmp_path: Path, host: LocalHost) -> None:
    """The costs are those of one run, and the clock is that of the first run."""
    short = TWO.replace("30000", "300")
    folded = folded_of(tmp_path, short, host, find_sampling(host), 499, seconds=3)
    times = int((tmp_path / TIMES).read_text())
    assert times > 5 and folded.samples > 3 * 30
    made = profile_facts(FACTS, folded, CLOCK, times)
    assert sum(made.stacks.values()) == pytest.approx(sum(folded.stacks.values()) / times)
    began, status, ended = (tmp_path / command.CLOCK).read_text().split()
    assert status == "0" and float(ended) - float(began) < 1.5


@pytest.mark.tools
def test_short_processes_are_sampled_more_often(host: LocalHost, git: Repo) -> None:
    """Each process takes 0.5 ms. The shell that starts the processes is rarely on CPU."""
    source = TWO.replace("30000", "40")
    script = "#!/bin/sh\ni=0\nwhile [ $i -lt 300 ]; do ./made; i=$((i+1)); done\necho ops/s: 9\n"
    git.commit({"made.c": source, "bench": script})
    build = "sh -c 'gcc -O2 -fno-inline -o made made.c && chmod +x bench'"
    lab = bench_lab(host, git.path, git.head, command=["./bench"], build=build)
    lab.study = partial(ProfileStudy, seconds=1.0)
    [facts] = profiled(explain(lab, 0))
    assert facts.samples > 100
    assert own(dict(facts.stacks))["heavy"] > 0


@pytest.mark.tools
def test_profile_has_the_shares_of_two_functions(tmp_path: Path, host: LocalHost) -> None:
    """The program spends 70 % of its time in ``heavy`` and 30 % in ``light``, which call nothing."""
    found = find_sampling(host)
    folded = folded_of(tmp_path, TWO, host, found, 499)
    costs = own(dict(folded.stacks))
    shares = [costs[name] / sum(costs.values()) for name in ("heavy", "light")]
    assert shares == pytest.approx([0.7, 0.3], abs=0.12)
    if found.chains == "dwarf":
        assert callers(dict(folded.stacks), "heavy") == {"work"}
        assert folded.alone < 0.05
    assert not (tmp_path / NAME).exists()
    assert not list(Path(host.root, "jobs").iterdir())
    (tmp_path / NAME).write_text("no samples of perf\n")
    with pytest.raises(RunFailed, match=r"perf script ended with status [1-9]"):
        read_folded_stacks(host, PurePosixPath(tmp_path), CLOCK, 499)


def test_turn_without_waits_or_kernel_samples_ends_without_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is an error. A caller reports a failed run."""
    tried = []

    def begin(*_: object) -> None:
        raise NoPerfSamples("perf took no samples", stage="run", log="/log")

    monkeypatch.setattr(profiles, "begin_visit", begin)
    monkeypatch.setattr(profiles, "partial", lambda _, sampled, rate, seconds: tried.append((sampled.off_cpu, rate)))
    for sampled, tries in (Sampling("cycles:u", "dwarf"), 0), (Sampling("cycles", "dwarf"), 1):
        study = ProfileStudy(replace(context(), perf=True), lambda: None, 10.0, switches=1300.0, sampled=sampled)
        assert list(study.run_turn(SYSTEM, "", turn := Turn(0, 1, 1, 1, Purpose.EXPLAIN, runs_left=1))) == []
        assert (turn.runs_left, len(tried)) == (0, tries)
    assert tried == [(True, wait_sampling_interval(1300.0 * 10))]


@pytest.mark.tools
def test_builds_of_a_library_are_profiled_only_in_the_window(open_lab: Open, host: LocalHost) -> None:
    """An operation of the slow build executes twice as much arithmetic."""
    lab = open_lab({"rest": 0})
    lab.study = partial(ProfileStudy, seconds=1.0)
    events = [event for build in (FAST, SLOW) for event in explain(lab, build)]
    fast, slow = profiled(events)
    assert fast.commit != slow.commit
    costs = [own(dict(each.stacks))["operation"] / each.operations for each in (fast, slow)]
    assert 1.2 < costs[1] / costs[0] < 3.3
    for each in (fast, slow):
        whole = sum(each.stacks.values())
        assert own(dict(each.stacks))["operation"] > 0.3 * whole
        assert all(stack.startswith("sysbench;") for stack in each.stacks)
        assert any(stack.endswith(";operation (libsmall.so)") for stack in each.stacks)
        if each.unit == "us":
            assert whole <= 1.2e6 * each.seconds, "neither the start nor the warm-up are in it"
    assert not list(Path(host.root, "visit").glob(f"{NAME}*"))
    assert not list(Path(host.root, "jobs").iterdir())


def explain(lab: HostLab, build: int) -> list[LabEvent]:
    return list(lab.measure(Measure((PlannedRuns(build, 1),), Purpose.EXPLAIN)))


def profiled(events: list[LabEvent]) -> list[ProfileFacts]:
    """The profiles among the events, of which none is unexplained."""
    assert not [event for event in events if isinstance(event, Unexplained)]
    return [event.facts for event in events if isinstance(event, Profiled)]


def script_of(chains: int, frames: int, symbol: str) -> str:
    """A fake perf whose output has ``chains`` samples, each of another chain and function; sample n costs n."""
    return (
        "#!/bin/sh\nexec awk 'BEGIN { for (n = 1; n <= " + str(chains) + "; n++) {"
        r' printf "server %d\n", n; for (i = ' + str(frames) + "; i; i--)"
        rf' printf "\t ff %s%d (/opt/a long path/bin/server)\n", i == {frames} ? "{symbol}" : "caller", n; print "" }} }}'
        + "'\n"
    )


@pytest.mark.slow
@pytest.mark.tools
def test_shortened_profiles_keep_all_costs(host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unshortened output would be about 15 MB, which is more than is kept of a job's output."""
    executable(tmp_path / "perf", script_of(5000, 150, "leaf"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    folded = read_folded_stacks(host, PurePosixPath(tmp_path), Sampling("cycles", "dwarf"), 499)
    assert (folded.samples, sum(folded.stacks.values())) == (5000, 5000 * 5001 / 2)
    assert sum(cost for stack, cost in folded.stacks.items() if stack.endswith(";leaf4711 (server)")) == 4711
    by_cost = {cost: stack_frames(stack) for stack, cost in folded.stacks.items()}
    assert by_cost[5000] == (*["caller5000 (server)"] * 149, "leaf5000 (server)")
    assert by_cost[1] == (RARE, "leaf1 (server)")
    assert subprocess.run(["awk", SHORTEN], input="", text=True, check=False).returncode == 1, "its input was cut"


@pytest.mark.tools
def test_only_paths_of_files_are_shortened() -> None:
    shortened = {"/usr/lib/libc.so.6": "/libc.so.6", "/a (b)/c (deleted)": "/c (deleted)"}
    shortened |= {path: path for path in ("//anon", "/dev/zero (deleted)", "/memfd:a/b (deleted)", "[kernel.kallsyms]")}
    lines = added_up("".join(f"p 7\n\t ff f(int) ({path})\n\n" for path in shortened) + "\n\f0\n").splitlines()
    found = {line.split("\t")[3] for line in lines[: len(shortened)]}
    assert found == {f"f(int) ({path})" for path in shortened.values()}


@pytest.mark.tools
def test_too_many_stacks_are_a_failure(host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of 3,000 characters."""
    executable(tmp_path / "perf", script_of(5000, 2, "x" * 3000))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(
        RunFailed, match=r"perf script printed too much; .* from the middle of its output are missing"
    ) as raised:
        read_folded_stacks(host, PurePosixPath(tmp_path), Sampling("cycles", "dwarf"), 499)
    assert not isinstance(raised.value, NoPerfSamples)


@pytest.mark.slow
@pytest.mark.tools
@pytest.mark.dbms
@needs_postgres
def test_only_the_connections_of_a_server_are_profiled(tmp_path: Path, git: Repo) -> None:
    git.commit({"server.conf": "listen_addresses = ''\nfsync = off\n"})
    prepare = "create table t as select i as id, i as k from generate_series(1, 20000) i;"
    keys = {"prepare": prepare, "statement": "select sum(k) from t;", "warmup": 0.5, "time": 2.0}
    workload = workload_of(folder=str(tmp_path), **keys)
    assert POSTGRES.server
    builder = struct_replace(POSTGRES, server=struct_replace(POSTGRES.server, perf_scope="connections"))
    with tempfile.TemporaryDirectory(prefix="lab") as root:
        events: list[LabEvent] = []
        for study in ProfileStudy, partial(ProfileStudy, switches=1.0):  # each of them is sampled
            lab = lab_of(LocalHost("here", PurePosixPath(root)), builder, workload, git.path, (git.head,))
            lab.study = partial(study, seconds=3.0)
            events += explain(lab, 0)
    facts, *waits = profiled(events)
    assert {stack.partition(";")[0] for stack in facts.stacks} == {"postgres"}, "sysbench is not in it"
    known = {stack: [read_frame(frame)[0] for frame in stack_frames(stack)] for stack in facts.stacks}

    def share(condition: Callable[[list[str]], bool]) -> float:
        return sum(cost for stack, cost in facts.stacks.items() if condition(known[stack])) / sum(facts.stacks.values())

    assert share(lambda chain: "PostgresMain" in chain) > 0.8, "each stack is known down to its own process"
    assert share(lambda chain: chain[-1] == UNKNOWN) < 0.1
    assert share(lambda chain: bool({*chain} & {"ExecInterpExpr", "ExecAgg", "heap_getnextslot"})) > 0
    for each in (facts, *waits):
        assert each.unit != "us" or sum(each.stacks.values()) <= 1.2e6 * each.seconds, "of one connection"
    for waiting in waits:
        assert waiting.off_cpu
        assert any("WaitEventSetWait" in stack and "schedule ([kernel])" in stack for stack in waiting.stacks)
