from dataclasses import replace

from perfbisect.core.domain.facts import HostFacts, host_differences

BEFORE = HostFacts("here", "A CPU", 8, 16384, "6.1.0-18", "gcc 12", {"perf": "6.1"}, {"governor": "performance"})


def test_the_same_machine_has_no_differences() -> None:
    assert host_differences(BEFORE, replace(BEFORE)) == ()


def test_each_difference_is_said_with_both_values() -> None:
    after = replace(BEFORE, kernel="6.1.0-22", tools={"perf": "6.1", "git": "2.39"}, settings={"governor": "powersave"})
    assert host_differences(BEFORE, after) == (
        "its kernel was 6.1.0-18 and is 6.1.0-22",
        "its governor was performance and is powersave",
    )
    [memory] = host_differences(BEFORE, replace(BEFORE, memory_mib=8192))
    assert memory == "its memory was 16,384 MiB and is 8,192 MiB"


def test_what_is_not_known_of_one_of_them_is_no_difference() -> None:
    assert host_differences(BEFORE, replace(BEFORE, tools={}, settings={}, compiler="")) == ()


def test_long_values_are_cut() -> None:
    long, longer = (replace(BEFORE, settings={"mitigations": "x" * size}) for size in (500, 600))
    [mitigations] = host_differences(long, longer)
    assert len(mitigations) < 180
