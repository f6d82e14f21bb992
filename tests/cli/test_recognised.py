"""Commands whose output perfbisect recognises as the output of a benchmark, so that no pattern is needed."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from program import SCRIPT, bisect_until, exits, printed, rows, run
from repos import Repo

pytestmark = pytest.mark.tools

HISTORY = Path(".local/state/perfbisect/history.db")
# The output differs from run to run, like the output of a real benchmark.
PGBENCH = "echo again >>{count}\necho transaction type: x\necho tps = {tps}.$(($(wc -l <{count}) % 8)) '(without initial connection time)'\n"
GOOGLE = """n=$(wc -l <{count})
echo again >>{count}
echo 'Benchmark  Time  CPU  Iterations'
echo "BM_Insert/64  9 ns  1{cpu}.$((n % 8)) ns  7"
echo "BM_Insert/1024  9 ns  {cpu}.$((n % 8)) ns  7"
"""
QUICK = ["--build", "true", "--run", "sh bench", "--pairing", "interleaved"]


@pytest.fixture
def count(git: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(git.path)
    (tmp_path / "count").touch()
    return tmp_path / "count"


def test_hunt_measures_the_recognised_rate_of_pgbench(git: Repo, count: Path, seal: Path) -> None:
    """The recognised metric is stored: the resumed hunt uses it, and the report shows it."""
    commits = [git.commit({"bench": PGBENCH.format(count=count, tps=tps)}) for tps in (900, 899, 450, 451)]
    hunt = ["run", commits[0], commits[-1], *QUICK, "--no-explain", "--no-layouts", "--plain"]
    cut = bisect_until(hunt, "run 3 of 4", signal.SIGINT)
    assert cut.returncode == 130 and "metric    pgbench: 1 result; measured: tps." in cut.stdout
    output = exits(0, "resume", "--plain")
    assert f"The culprit is {commits[2][:10]}" in output and "rate is 0.50" in output
    assert not re.search(r"metric {4}pgbench", output.partition("resumed")[2]), "it is stored"
    report = printed("show", "1")
    assert "metric rate\n  chosen    pgbench: 1 result; measured: tps.\n" in report
    assert re.search(r" 45\d tps ", output)
    read = rows(seal / HISTORY, "select json_extract(body, '$.facts.reported') from events where kind = 'RunFinished'")
    assert all(400 < tps < 1000 for (tps,) in read)
    assert "--rate" not in report and f"The culprit is {commits[2][:10]}" in printed("replay", "1")


def test_only_option_selects_one_of_several_results(git: Repo, count: Path) -> None:
    """In `compare` and in `noise`. A session with one result has another workload name than the whole command."""
    ends = [git.commit({"bench": GOOGLE.format(count=count, cpu=cpu)}) for cpu in (100, 150)]
    errors = exits(3, "noise", "--rev", ends[0], *QUICK)
    assert "The output of Google Benchmark has 2 results" in errors and "BM_Insert/64, BM_Insert/1024" in errors
    ended = run("compare", *ends, *QUICK, "--visits", "3", "--runs", "1")
    assert ended.status == 0 and "Google Benchmark: 2 results; measured: all, by cpu_time." in ended.err
    assert "Of 2 results, 2 became worse and 0 better" in ended.out and ended.err.count("of 7  ") == 6, (
        "both results are read from the same runs"
    )
    worse = {name: float(size) for name, size in re.findall(r"(BM_Insert/\d+): ×([\d.]+)", ended.out)}
    assert worse == {"BM_Insert/64": pytest.approx(1.045, abs=0.003), "BM_Insert/1024": pytest.approx(1.5, abs=0.03)}
    assert "the command, cpu/o" in printed("show", "c2")
    only = ["--only", "*/1024", "--visits", "3"]
    ended = run("compare", *ends, *QUICK, *only, "--runs", "1")
    assert ended.status == 0 and "Google Benchmark: 2 results; measured: BM_Insert/1024, by cpu_time." in ended.err
    assert re.match(rf"cost of {ends[1][:8]}\w* is (49|50) % higher", ended.out)
    assert "workload  bench 2" not in ended.out and "bench 2" in printed("history")
    ended = run("noise", "--rev", ends[0], *QUICK, *only, "--runs", "2")
    assert "measured: BM_Insert/1024" in ended.err and "of one run" in ended.out


# Prints two results that change and one that is constant, or only the results that match the program's filter.
THREE = """n=$(wc -l <{count})
echo again >>{count}
echo 'Benchmark  Time  CPU  Iterations'
awk -v n=$((n % 8)) -v only="${{1#*=}}" 'BEGIN {{
    time["BM_Insert/64"] = {other}; time["BM_Insert/1024"] = {cpu}; time["BM_Erase"] = 900
    for (name in time) if (name ~ only) printf "%s  9 ns  %d.%d ns  7\\n", name, time[name], n
}}'
"""


@pytest.mark.parametrize("obeys", [True, False])
def test_hunts_of_one_commands_results_share_runs(git: Repo, count: Path, seal: Path, obeys: bool) -> None:
    """A comparison of the ends covers all results; each result has a hunt and a culprit. A run counts for one hunt, and
    is a reading of each open hunt. The hunts reuse the runs of the comparison if both measure in the same way.
    """
    sizes = ((500, 500), (500, 701), (700, 702), (701, 703))
    script = THREE if obeys else THREE.replace("${{1#*=}}", "")
    commits = [git.commit({"bench": script.format(count=count, cpu=cpu, other=other)}) for cpu, other in sizes]
    ended = run("run", commits[0], commits[-1], *QUICK, "--no-explain", "--plain")
    assert (
        ended.status == 0 and "To continue after an interruption: bisect compare c2 --hunt --no-explain" in ended.err
    ), ended.err
    assert "Of 3 results, 2 became worse and 0 better" in ended.out and ended.out.count("The culprit is") == 2
    found = dict(rows(seal / HISTORY, "select workload, culprit from culprits"))
    assert found == {"sh bench BM_Insert/64": commits[1], "sh bench BM_Insert/1024": commits[2]}
    assert rows(seal / HISTORY, "select id, kind from sessions") == [(2, "compare"), (3, "hunt"), (4, "hunt")]
    assert "There is no hunt 1" in exits(3, "show", "1"), "the session of hunt 1 was replaced by a comparison"
    [[own]] = rows(seal / HISTORY, "select sum(run_count) from sessions")
    tried = 2 if obeys else 1
    assert own == len(count.read_text().splitlines()) - 1 - tried, "the first runs do not count"
    [[entered]] = rows(seal / HISTORY, "select count(*) from runs")
    assert entered > own + 4
    of_ends = (
        "select count(*) from runs where session_id = 3 and visit in (select visit from runs where session_id = 2)"
    )
    assert rows(seal / HISTORY, of_ends) == [(0 if obeys else 17,)]
    ordered = "select count(*) from events where kind = 'Decided' and json_extract(body, '$.order.purpose') = 'ends'"
    assert (rows(seal / HISTORY, ordered) == [(1,)]) is not obeys, "the first run tries the filter"
    read = rows(seal / HISTORY, "select json_extract(body, '$.facts.reported') from events where kind = 'RunFinished'")
    assert all(490 < value < 910 for [value] in read)
    assert f"The culprit is {commits[2][:10]}" in printed("replay", "3") + printed("replay", "4")
    assert "; hunt 3: " in printed("compare", "c2", "--hunt", "--dry-run")
    few = git.commit({"bench": THREE.format(count=count, cpu=703, other=704)})
    output = exits(1, "run", commits[-1], few, *QUICK, "--only", "BM*", "--direction", "drop")
    assert re.search(
        r"(?s)To begin again after an interruption: bisect run .* --only 'BM\*' .*--direction drop.*No hunt begins",
        output,
    )


def test_hunt_interrupted_before_its_first_run_resumes_with_all_results(git: Repo, count: Path, seal: Path) -> None:
    """A result that rises by 28 % is hunted with --min-effect 25%, and not with --min-effect 30%."""
    ends = [git.commit({"bench": THREE.format(count=count, cpu=cpu, other=500)}) for cpu in (500, 640)]
    hunt = ["run", *ends, *QUICK, "--no-explain", "--plain", "--min-effect"]
    assert bisect_until([*hunt, "25%"], "  next  ", signal.SIGINT).returncode == 130
    assert f"The culprit is {ends[1][:10]}" in exits(0, "resume", "--plain")
    assert rows(seal / HISTORY, "select id, kind from sessions") == [(2, "compare"), (3, "hunt")]
    assert "No hunt begins" in exits(1, *hunt, "30%")


@pytest.mark.parametrize("obeys", [True, False])
def test_filter_option_is_passed_to_a_benchmark_that_obeys_it(git: Repo, count: Path, obeys: bool) -> None:
    """A benchmark that does not obey the filter runs all its results each time."""
    lines = ["n=$(wc -l <{count})", 'echo "all $*" >>{count}', "echo 'Benchmark  Time  CPU  Iterations'"]
    lines += [
        f'echo "BM_{name}  9 ns  {{cpu}}.$((n % 8)) ns  7" | awk -v p="$f" \'$1 ~ p\''
        for name in ("Get/8", "Get/64", "Put")
    ]
    script = f"f=${{{{1#--benchmark_filter=}}}}\n{'' if obeys else 'f='}\n" + "\n".join(lines)
    ends = [git.commit({"bench": script.format(count=count, cpu=cpu)}) for cpu in (100, 150)]
    ended = run("compare", *ends, *QUICK, "--visits", "3", "--runs", "1", "--only", "BM_Get/*")
    assert "Google Benchmark: 3 results; measured: 2 of them, by cpu_time" in ended.err
    assert ("selected with '--benchmark_filter=^(BM_Get/8|BM_Get/64)$'." in ended.err) is obeys
    assert ended.status == 0 and "Of 2 results, 2 became worse" in ended.out
    calls = count.read_text().splitlines()
    filtered = sum("--benchmark_filter=^(BM_Get/8|BM_Get/64)$" in line for line in calls)
    assert filtered == (len(calls) - 1 if obeys else 1)


def test_hunts_of_two_workloads_of_a_recipe_share_builds(script: Callable[[str], str], tmp_path: Path) -> None:
    """Each workload of the suite selects one result of the same command with `only`."""
    (tmp_path / "count").touch()
    ends = [script(GOOGLE.format(count=tmp_path / "count", cpu=cpu)) for cpu in (100, 150)]
    suite = Path("workloads/script/suite.toml")
    chosen = """one.only = "*/64"\ntwo.only = "*/1024"\n"""
    suite.write_text(re.sub("rate = .*", "", suite.read_text()) + chosen)
    output = exits(
        0, "run", *ends, *SCRIPT, "--workload", "one,two", "--plain", "--no-explain", "--pairing", "interleaved"
    )
    assert [re.findall(rf"{name} .* measured: BM_Insert/(\d+), by", output) for name in ("one", "two")] == [
        ["64"],
        ["1024"],
    ]
    assert len(re.findall(f"The culprit is {ends[1][:10]}", output)) == 2
    suite.write_text(suite.read_text().replace("one.only", "one.rate = '(.)'\none.only"))
    assert "only` has no effect, because the workload already defines the measured number" in exits(
        3, "run", *ends, *SCRIPT
    )


def test_unrecognised_output_is_measured_by_its_duration(git: Repo, count: Path) -> None:
    """A note explains the choice once, except with `--metric latency`, by which the user asks for the duration."""
    assert count.exists()
    ends = [git.commit({"bench": f"echo {text}\n"}) for text in ("took 12 s", "took 13 s")]
    few = ["--visits", "2", "--runs", "1"]
    note = "the output of the command is not the output of a known benchmark, so the duration is measured"
    assert run("compare", *ends, *QUICK, *few).err.count(note) == 1
    assert note not in run("compare", *ends, *QUICK, *few, "--metric", "latency").err
    assert "--only x has no effect: the output of the command is not the output of a known" in exits(
        3, "compare", *ends, *QUICK, *few, "--only", "x"
    )
    assert "--only has no effect" in exits(3, "compare", *ends, *QUICK, "--only", "x", "--metric", "latency")
    assert "--only has no effect, because the workload already defines the measured number" in exits(
        3, "run", *ends, *QUICK, "--only", "x", "--rate", "(.)"
    )
    assert "--only needs a command" in exits(3, "run", *ends, "--only", "x")
