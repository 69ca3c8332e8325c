"""Commands that readers leave at the copy of a run, for the process that copies it to deliver."""

from __future__ import annotations

import re

MAIL = "commands"
MAX_MAIL_BYTES = 65_536
_NAME = re.compile(r"[0-9]{20}-[0-9a-f]{6}\.json")


def is_mail(name: str) -> bool:
    """Whether an object in the folder of commands has the name of one."""
    return _NAME.fullmatch(name) is not None
