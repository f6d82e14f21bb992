"""The program as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = [sys.executable, "-c", "from perfbisect.cli.main import main; main()"]
LIMIT = 300  # seconds; far beyond what is needed


def bisect(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False, timeout=LIMIT, cwd=cwd)


def bisect_until(words: list[str], sign: str, signal: int) -> subprocess.CompletedProcess[str]:
    """Run it, and send it a signal once it says ``sign`` on standard error."""
    said = ""
    with subprocess.Popen(
        [*PROGRAM, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stderr:
            said += line
            if sign in line:
                process.send_signal(signal)
                break
        out, rest = process.communicate(timeout=LIMIT)
    return subprocess.CompletedProcess(words, process.returncode, out, said + rest)
