"""Every dotted key that some configuration has."""

from __future__ import annotations

from functools import cache
from typing import Any

from echoscope.core.config.settings import RunConfig


@cache
def setting_paths() -> frozenset[str]:
    schema = RunConfig.model_json_schema()
    kinds = schema["$defs"]

    def keys(model: dict[str, Any], prefix: str) -> set[str]:
        out = set()
        for name, field in model.get("properties", {}).items():
            out.add(prefix + name)
            for option in [field, *field.get("anyOf", ()), *field.get("oneOf", ())]:
                if "$ref" in option:
                    out |= keys(kinds[option["$ref"].rsplit("/", 1)[1]], f"{prefix}{name}.")
        return out

    return frozenset(keys(schema, ""))
