"""Who is told by `echoscope watch`, and of which alarms: --notify, --severity and --config."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from echoscope.diagnostics.config import DiagnosticsConfig


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

    settings = DiagnosticsConfig() if config is None else load_diagnostics(file=config)[1]
    told = settings.notify.model_dump(mode="json")
    told["targets"] = [*told["targets"], *notify]
    if severity is not None:
        told["severity"] = severity.value
    return settings.model_copy(update={"notify": checked(NotifyConfig, told, ("notify",))})
