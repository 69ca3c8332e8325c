"""Who is told by `echoscope watch`, and of which alarms: --notify, --severity and --config."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from echoscope.diagnostics.config import DiagnosticsConfig

_VARIABLE = re.compile(r"[A-Za-z_]\w{0,199}", re.ASCII)


class Severity(StrEnum):
    WARNING = "warning"
    CRITICAL = "critical"


def watch_settings(
    config: Path | None, notify: Sequence[str], severity: Severity | None
) -> DiagnosticsConfig:
    """What is measured and judged, and who is told: of a file, with the targets of the options.

    Raises:
        ConfigError, SettingError: the file or a target is wrong.
    """
    from echoscope.core.config.loading import load_diagnostics
    from echoscope.diagnostics.config import DiagnosticsConfig, NotifyConfig
    from echoscope.diagnostics.tools.setting_errors import checked

    targets = [*map(_target, notify)]
    settings = DiagnosticsConfig() if config is None else load_diagnostics(file=config)[1]
    told = settings.notify.model_dump(mode="json")
    told["targets"] = [*told["targets"], *targets]
    if severity is not None:
        told["severity"] = severity.value
    return settings.model_copy(update={"notify": checked(NotifyConfig, told, ("notify",))})


def _target(words: str) -> dict[str, str]:
    """A target of `--notify`.

    >>> _target("slack:SLACK_HOOK"), _target("desktop")
    ({'kind': 'slack', 'url_env': 'SLACK_HOOK'}, {'kind': 'desktop'})

    Raises:
        SettingError: it is none.
    """
    from echoscope.diagnostics.tools.setting_errors import SettingError

    kind, _, value = words.partition(":")
    if words == "desktop":
        return {"kind": kind}
    if kind == "command" and value:
        return {"kind": kind, "command": value}
    if kind in ("slack", "discord", "teams", "webhook"):
        if _VARIABLE.fullmatch(value):
            return {"kind": kind, "url_env": value}
        raise SettingError(  # what stands there may be a secret
            f"--notify {kind}: takes the NAME of an environment variable that holds the address, "
            f"such as --notify {kind}:MY_HOOK; run: export MY_HOOK=ADDRESS"
        )
    if kind == "email":
        raise SettingError(
            "--notify takes no email: a mail needs a host and a sender; give them in a file with "
            "--config (docs/alarms.md)"
        )
    given = "an address" if "://" in words else repr(words[:80])
    raise SettingError(
        f"--notify is {given}, but must be desktop, command:COMMAND, or slack:, discord:, "
        "teams: or webhook: with the name of an environment variable, such as slack:SLACK_HOOK"
    )
