"""Packages that may not import the settings spell them: this finds one that was renamed."""

from __future__ import annotations

import ast
import re

from own_sources import ROOT, name, tree_of
from setting_paths import setting_paths

from echoscope.core.config.settings import RunConfig

BELOW_AND_BESIDE = ("store", "diagnostics", "recorder", "watch", "dashboard", "notebook")
SPELLED = re.compile(rf"((?:{'|'.join(RunConfig.model_fields)})(?:\.[a-z_]+)+)(?:=.*)?")
OTHERS = {
    "checkpoint.step": "of a rewind's command",
    "critic.optim.lr": "of verl",
    "envs.probe": "of runs of earlier versions",
    "eval.top": "of runs of earlier versions",
}
"""What looks like a setting and is none."""


def test_every_setting_that_other_packages_spell_is_one() -> None:
    spelled: dict[str, list[str]] = {}
    for path in (p for folder in BELOW_AND_BESIDE for p in (ROOT / folder).rglob("*.*")):
        if path.suffix == ".py":
            texts = [
                (node.lineno, node.value)
                for node in ast.walk(tree_of(path))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            ]
        elif path.suffix == ".toml":
            lines = path.read_text(encoding="utf-8").splitlines()
            texts = [(n, t) for n, line in enumerate(lines, 1) for t in re.findall('"(.*?)"', line)]
        else:
            continue
        for line, text in texts:
            if match := SPELLED.fullmatch(text):
                spelled.setdefault(match[1], []).append(f"{name(path)}:{line}")
    assert len(spelled) > 30
    paths = setting_paths()
    wrong = {
        key: at for key, at in spelled.items() if not any(path.startswith(key) for path in paths)
    }
    assert {key: at for key, at in wrong.items() if key not in OTHERS} == {}
