"""What a host prints of profiles that are too large to be printed whole."""

import subprocess
from pathlib import Path, PurePosixPath

import pytest

from perfbisect.core.domain.profiles import RARE, frames
from perfbisect.errors import NoSamples, RunFailed
from perfbisect.host.local import LocalHost
from perfbisect.lab.measure.sampling import ADD_UP, SHORTEN, WHOLE, Sampling, folded_on

pytestmark = pytest.mark.tools


def script_of(chains: int, frames: int, symbol: str) -> str:
    """A perf whose script has so many samples, each of another chain and function; the n-th costs n."""
    return (
        "#!/bin/sh\nexec awk 'BEGIN { for (n = 1; n <= " + str(chains) + "; n++) {"
        r' printf "server %d\n", n; for (i = ' + str(frames) + "; i; i--)"
        rf' printf "\t ff %s%d (/opt/a long path/bin/server)\n", i == {frames} ? "{symbol}" : "caller", n; print "" }} }}'
        + "'\n"
    )


def test_large_profiles_are_shortened_and_no_cost_is_dropped(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal chains added up, it would be about 15 MB: more than is kept of a job's output."""
    (tmp_path / "perf").write_text(script_of(5000, 150, "leaf"))
    (tmp_path / "perf").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    folded = folded_on(host, PurePosixPath(tmp_path), Sampling("cycles", "dwarf"), 499)
    assert folded.samples == 5000
    assert folded.alone == 0
    assert sum(folded.stacks.values()) == 5000 * 5001 / 2
    assert sum(cost for stack, cost in folded.stacks.items() if stack.endswith(";leaf4711 (server)")) == 4711
    dearest = next(stack for stack, cost in folded.stacks.items() if cost == 5000)
    assert frames(dearest) == (*["caller5000 (server)"] * 149, "leaf5000 (server)")
    (rarest,) = (stack for stack, cost in folded.stacks.items() if cost == 1)
    assert frames(rarest) == (RARE, "leaf1 (server)")


def test_a_host_shortens_the_cheapest_chains() -> None:
    lines = [f"{WHOLE + 9 - n}\t1\tp\tleaf{n % 2} (/x)\tcaller{n} (/x)" for n in range(WHOLE + 9)]
    text = "\n".join([*lines, "5\t1\tp\tleaf0 (/x)", "lost\t3", "status\t0"])
    done = subprocess.run(["awk", SHORTEN], input=text, capture_output=True, text=True, check=True)
    printed = done.stdout.splitlines()
    assert printed[:WHOLE] == lines[:WHOLE]
    assert sorted(printed[WHOLE:]) == sorted(
        [f"{9 + 7 + 5 + 3 + 1}\t5\tp\tleaf0 (/x)\t{RARE}", f"{8 + 6 + 4 + 2}\t4\tp\tleaf1 (/x)\t{RARE}",
         "5\t1\tp\tleaf0 (/x)", "lost\t3"]
    )  # fmt: skip
    assert subprocess.run(["awk", SHORTEN], input="", text=True, check=False).returncode == 1, "its input was cut"


def test_paths_of_files_are_shortened_and_what_is_no_file_is_not() -> None:
    paths = [
        "/usr/lib/libc.so.6",
        "/a (b)/c (deleted)",
        "//anon",
        "/dev/zero (deleted)",
        "/memfd:a/b (deleted)",
        "[kernel.kallsyms]",
    ]
    text = "".join(f"p 7\n\t ff f(int) ({path})\n\n" for path in paths)
    added = subprocess.run(["awk", ADD_UP], input=f"{text}\n\f0\n", capture_output=True, text=True, check=True)
    shortened = ["/libc.so.6", "/c (deleted)", *paths[2:]]
    assert sorted(line.split("\t")[3] for line in added.stdout.splitlines()[: len(paths)]) == sorted(
        f"f(int) ({path})" for path in shortened
    )


def test_stacks_that_are_too_many_all_the_same_are_a_failure(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of 3,000 characters."""
    (tmp_path / "perf").write_text(script_of(5000, 2, "x" * 3000))
    (tmp_path / "perf").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(RunFailed, match="perf script printed too many stacks; of what it printed") as raised:
        folded_on(host, PurePosixPath(tmp_path), Sampling("cycles", "dwarf"), 499)
    assert not isinstance(raised.value, NoSamples)
