"""The sandbox as a user without rights sees it. Reads JSON lines [program, inputs] and answers each
with a line of outcomes; the first line it writes is why no sandbox can be made.

Runs as `python plain_user.py FOLDERS`, by any Python of the same version: a user may not read the
one that runs the tests.
"""

from __future__ import annotations

import json
import os
import site
import sys
from dataclasses import astuple

USER = 12345


def main() -> None:
    for folder in sys.argv[1].split(os.pathsep):
        site.addsitedir(folder)
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    from echoscope.envs.worlds.code.sandbox import Sandbox, SandboxLimits, why_not

    _say(why_not())
    for line in sys.stdin:
        program, inputs, limits = json.loads(line)
        outcomes = Sandbox(SandboxLimits(**limits)).run(program, inputs)
        _say([astuple(outcome) for outcome in outcomes])


def _say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
