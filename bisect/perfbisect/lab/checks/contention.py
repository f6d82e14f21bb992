"""Does anything else use the machine, and is its clock right?"""

import time
from collections.abc import Iterator

from perfbisect.host import jobs, lock
from perfbisect.host.conditions import CLOCK_SOURCE, PORTS, SYNCHRONISED, TIME
from perfbisect.host.facts import CORES, LOAD, ask
from perfbisect.lab.checks.finding import Finding, Inspection, Level
from perfbisect.lab.server.service import FIRST_PORT

BUSY = 0.5  # load average for each core above which measurements suffer
ASTRAY = 2.0  # seconds between its clock and the controller's from which on times in reports mislead
QUICK = frozenset({"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "stp", "tod", "timebase"})
SERVER_PORTS = range(FIRST_PORT, FIRST_PORT + 10)  # where servers of hunts listen


def load(inspection: Inspection) -> Iterator[Finding]:
    """Do other programs run there?"""
    average, cores = inspection.answers.get(LOAD), inspection.answers.get(CORES)
    if average is None or not cores:
        return
    if average > BUSY * cores:
        yield Finding(
            Level.WARNING,
            "load",
            f"host {inspection.name} is busy: its load average is {average:.1f} on {cores} cores",
            "Find what runs there with `top`, and stop it.",
        )
    else:
        yield Finding(Level.OK, "load", f"the load average is {average:.1f} on {cores} cores")


def others(inspection: Inspection) -> Iterator[Finding]:
    """The owner of the host's lock, and what an earlier hunt may have left running."""
    host = inspection.request.host
    if owner := lock.holder(host):
        yield Finding(
            Level.WARNING,
            "lock",
            f"host {inspection.name} is busy: {owner} is measuring there",
            "Wait for it with --wait, or stop it.",
        )
        return
    if lock.is_apart(host):
        yield Finding(
            Level.NOTE,
            "lock",
            f"host {inspection.name} is a container: sessions elsewhere on its machine do not see its lock, nor it theirs",
            f"Mount one folder of the machine at {lock.FOLDERS[0]} in all containers in which something is measured.",
        )
    else:
        yield Finding(Level.OK, "lock", "no other hunt is measuring there")
    if left := (*jobs.running(host), *jobs.orphaned(host)):
        yield Finding(
            Level.NOTE,
            "jobs",
            f"an earlier hunt left {len(left)} of its jobs running on host {inspection.name}: {left[0].id}"
            + (", …" if len(left) > 1 else ""),
            "The next hunt there ends them.",
        )
    if taken := sorted((inspection.answers.get(PORTS) or frozenset()) & frozenset(SERVER_PORTS)):
        yield Finding(
            Level.NOTE,
            "ports",
            f"something listens on port {taken[0]} of host {inspection.name}, where servers of hunts do: one may be left over",
            f"sudo ss -ltnp 'sport = :{taken[0]}' names it; hunts take the next free port.",
        )


def clock(inspection: Inspection) -> Iterator[Finding]:
    """Is reading the clock fast, and is it right?"""
    source = inspection.answers.get(CLOCK_SOURCE)
    if source and source not in QUICK:
        yield Finding(
            Level.WARNING,
            "clock",
            f"host {inspection.name} reads the time from {source}, which is slow: every operation that is timed pays for it",
            "Its kernel log contains the reason why not from tsc: sudo dmesg | grep -i clocksource",
        )
    before = time.time()
    there = ask(inspection.request.host, TIME)
    after = time.time()
    if there is not None and not before - ASTRAY < there < after + ASTRAY:
        away = there - (before + after) / 2
        yield Finding(
            Level.WARNING,
            "clock",
            f"the clock of host {inspection.name} is {abs(away):.0f} s {'ahead of' if away > 0 else 'behind'} that of this machine",
            "sudo timedatectl set-ntp true",
        )
    elif inspection.answers.get(SYNCHRONISED) is False:
        text = f"the clock of host {inspection.name} follows no time server, and may be set in the middle of a hunt"
        yield Finding(Level.NOTE, "clock", text, "sudo timedatectl set-ntp true")
