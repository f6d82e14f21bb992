"""Searches with the expressions of recipes, which may take for ever on an output that their author never saw.

An expression such as ``(a+)+b`` doubles its time with each character, and Python cannot interrupt a search. So it runs in
a process of its own, which is ended after a while: it takes as long as the start of Python, some hundredths of a second.
"""

import json
import subprocess
import sys
from collections.abc import Sequence

from perfbisect.errors import EnvironmentFailure

LONGEST = 30.0  # seconds of a search: thousands of times what an expression needs that is fit for its output
CAPTURED = 1000  # characters of what is found

_SEARCH = f"""\
import json, re, sys
pattern, texts = json.load(sys.stdin)
for text in texts:
    last = None
    for last in re.finditer(pattern, text, re.MULTILINE):
        pass
    if last:
        print(json.dumps((last[1] or "")[:{CAPTURED}]))
        break
else:
    print("null")
"""


def last_match(pattern: str, texts: Sequence[str]) -> str | None:
    """What the one group of the last match captures in the first text that has a match; None without any.

    Raises TimeoutError, and EnvironmentFailure when the process cannot do its work.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-W", "ignore", "-c", _SEARCH],
            input=json.dumps([pattern, texts]),
            capture_output=True,
            timeout=LONGEST,
            check=False,
            encoding="ascii",
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    except OSError as error:
        raise _failure(error.strerror or str(error)) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise _failure(f"status {done.returncode}{f', {lines[-1]}' if lines else ''}")
    found: str | None = json.loads(done.stdout)
    return found


def _failure(why: str) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"the process that searches a benchmark's output failed on this machine: {why}",
        "It may lack memory. Free some, then `bisect resume`.",
    )
