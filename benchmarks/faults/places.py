"""Where hunts take place: this machine, or one at the end of a link, each with small disks that can be filled."""

import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import processes
from processes import Process

from machine import PROJECT, Machine, run

ROOM = 1 << 30  # bytes of the disk of the host's root: hunts refuse less than a quarter of that
STATE_ROOM = 64 << 20  # bytes of the disk of the history


class Disk:
    """A file system in memory that can be filled by taking its free space away."""

    def __init__(self, folder: Path, size: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.size = folder, size
        run("mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "none", str(folder))

    def fill(self, left: int) -> None:
        """Leave only so many bytes."""
        with suppress(AssertionError):  # more is used by now
            run("mount", "-o", f"remount,size={self._used() + left}", str(self.folder))

    def free(self) -> None:
        """Give back what ``fill`` has taken."""
        run("mount", "-o", f"remount,size={self.size}", str(self.folder))

    def remove(self) -> None:
        """Unmount it."""
        run("umount", "-l", str(self.folder))

    def _used(self) -> int:
        printed = subprocess.run(
            ["df", "-B1", "--output=used", str(self.folder)], capture_output=True, text=True, check=True
        )
        return int(printed.stdout.split()[1])


class Place(ABC):
    """A host for one hunt at a time; ``root`` is new for each hunt, ``side`` is outside of it."""

    name: str
    disk: Disk
    side: Path
    root: Path
    home: Path  # of the user who hunts

    def renew(self, mark: str) -> None:
        """An empty root whose path contains ``mark``, and an empty side folder."""
        for old in self.disk.folder.iterdir():
            shutil.rmtree(old)
        self.root = self.disk.folder / mark
        shutil.rmtree(self.side, ignore_errors=True)
        self.side.mkdir()

    @abstractmethod
    def inventory(self) -> str:
        """Its hosts.toml."""

    @abstractmethod
    def processes(self) -> Iterator[Process]:
        """What runs there for a hunt."""

    @abstractmethod
    def remove(self) -> None:
        """Nothing is left of it."""


class Here(Place):
    """This machine."""

    name = "here"

    def __init__(self, folder: Path) -> None:
        self.disk = Disk(folder / "disk", ROOM)
        self.side = folder / "side"
        self.home = folder / "home"
        self.home.mkdir()

    def inventory(self) -> str:
        """Its hosts.toml."""
        return f'[hosts.{self.name}]\nroot = "{self.root}"\njobs = 2\n'

    def processes(self) -> Iterator[Process]:
        """What runs there for a hunt."""
        return processes.marked(self.root.name)

    def remove(self) -> None:
        """Nothing is left of it."""
        self.disk.remove()


class Far(Place):
    """A machine of its own, reached over ssh."""

    name = "far"

    def __init__(self, folder: Path, hidden: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.machine = Machine(self.home / ".ssh", hidden=[PROJECT, hidden])
        self.machine.make_known()
        self.machine.power_off()  # its view of the file system begins with the disk
        self.disk = Disk(Path(self.machine.root), ROOM)
        self.machine.power_on()
        self.side = self.machine.folder / "side"

    def inventory(self) -> str:
        """Its hosts.toml."""
        return f'[hosts.{self.name}]\naddress = "{self.machine.address}"\nroot = "{self.root}"\njobs = 2\n'

    def processes(self) -> Iterator[Process]:
        """What runs there for a hunt: everything but what keeps the machine alive."""
        found = [*self._all()]
        listeners = {each.pid for each in found if "[listener]" in " ".join(each.words) or each.name == "sleep"}
        first = min((each.pid for each in found), default=0)
        return (each for each in found if each.pid not in {*listeners, first} and not _starts(each))

    def sessions(self) -> list[Process]:
        """The processes of sshd that serve connections."""
        return [each for each in self.processes() if each.name == "sshd"]

    def restart(self) -> None:
        """The power fails, and comes back."""
        self.machine.power_off()
        self.machine.power_on()

    def remove(self) -> None:
        """Nothing is left of it."""
        self.disk.remove()
        self.machine.remove()

    def _all(self) -> Iterator[Process]:
        if init := self.machine.first_process():
            yield from processes.in_space(init)


def _starts(process: Process) -> bool:
    """Whether it is sshd before it listens."""
    return process.name == "sshd" and "-D" in process.words
