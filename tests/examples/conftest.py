"""The folder of the repository is searched, as by a command that runs in it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
