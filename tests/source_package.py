"""Source packages of Debian or Ubuntu, downloaded by apt from the package sources of this machine."""

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

HOME = os.environ.get("HOME", "")  # tests run with another HOME, which is empty and temporary
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or f"{HOME}/.cache") / "perfbisect-tests" / "source-packages"
LISTED = Path("/etc/apt")


class Absent(Exception):
    """The source package is not available. The message is the reason why a test is skipped."""


def unpack(name: str, folder: Path) -> None:
    """Unpack a source package into ``folder``, with Debian's patches. The download is kept for later tests."""
    for program, package in (("apt-get", "apt"), ("dpkg-source", "dpkg-dev")):
        if shutil.which(program) is None:
            raise Absent(f"{program} is not installed; where there is apt: apt-get install {package}")
    if not list(KEPT.glob(f"{name}/*.dsc")):
        _download(name)
    [description] = KEPT.glob(f"{name}/*.dsc")
    _run("dpkg-source", "--no-check", "-x", str(description), str(folder), check=True)


def _download(name: str) -> None:
    """Download the newest available version. The lists of apt may have versions that are not available."""
    apt = _apt_options()
    _run("apt-get", *apt, "update")
    listed = _run("apt-cache", *apt, "showsrc", "--only-source", name).stdout
    partial = KEPT / f"{name}.{os.getpid()}"
    for version in reversed(re.findall(r"^Version: (\S+)", listed, re.MULTILINE)):
        partial.mkdir(parents=True)
        done = _run("apt-get", *apt, "source", "--download-only", "--only-source", f"{name}={version}", cwd=partial)
        if done.returncode == 0 and list(partial.glob("*.dsc")):
            with suppress(OSError):  # another test run has just downloaded it
                partial.rename(KEPT / name)
            return
        shutil.rmtree(partial)
    raise Absent(f"apt does not bring the source package {name} here")


def _apt_options() -> list[str]:
    """Options for an apt that reads source packages from this machine's sources, and changes nothing on the machine."""
    own = KEPT / "apt"
    for folder in ("sources", "lists/partial", "cache/archives/partial"):
        (own / folder).mkdir(parents=True, exist_ok=True)
    for file in (LISTED / "sources.list", *LISTED.glob("sources.list.d/*")):
        if file.suffix in (".list", ".sources") and file.exists():
            text = re.sub(r"^(Types:).*|^deb(?= )", _source, file.read_text(), flags=re.MULTILINE)
            (own / "sources" / file.name).write_text(text)
    settings = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": own / "sources",
        "Dir::State::Lists": own / "lists",
        "Dir::Cache": own / "cache",
        "APT::Sandbox::User": "",
    }
    return ["-qq", *(f"-o{name}={value}" for name, value in settings.items())]


def _source(found: re.Match[str]) -> str:
    return "Types: deb-src" if found[1] else "deb-src"


def _run(*argv: str, cwd: Path | None = None, check: bool = False) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=600, check=check)
    except subprocess.TimeoutExpired as late:
        raise Absent(f"{argv[0]} does not come to an end here") from late
