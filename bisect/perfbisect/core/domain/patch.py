"""A patch for the commits that are built, by value: a hunt goes on when its file has changed or is gone."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patch:
    """Changes in the form that `git diff` prints."""

    name: str  # in messages and reports
    content: bytes  # base64 where it is stored
    version: str = ""  # of the trees that it is for, as in [[when]]; "" for all
    file: str = ""  # absolute path; "" for a recipe's own

    @property
    def identity(self) -> tuple[str, str]:
        """What it does to builds: its versions, and a hash of its content."""
        return self.version, hashlib.sha256(self.content).hexdigest()
