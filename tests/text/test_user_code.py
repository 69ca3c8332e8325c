"""Names of the user's own code: what they mean, who may import it, and what failures say."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import echoscope
from echoscope.text import user_code
from echoscope.text.user_code import UserCodeError, call, load, loaded, require_params

ROOT = Path(echoscope.__file__).resolve().parent
MAY_IMPORT_CODE = {
    "envs/registry.py",  # an environment's id, in a configuration that trains or is checked
    "core/rollout/shaping.py",
    "core/plugins/checks.py",
    "core/warm_start/narrators.py",
    "core/engines/build.py",  # the hook that takes weights to a server, when a run starts
    "diagnostics/bench/detectors/own.py",  # the detector that `bench collapse --detector` names
    "cli/whatif.py",  # only what its own command line names
}
"""Who turns a name into code. None of them reads a stored run or a checkpoint to show it."""


@pytest.fixture
def my_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "value = 3\ndef double(x, *, by=2):\n    return x * by\ndef bad(x):\n    return 1 / 0\n"
    (tmp_path / "my_code.py").write_text(text)
    (tmp_path / "my_broken.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(user_code, "_loaded", {})
    monkeypatch.delitem(sys.modules, "my_code", raising=False)


@pytest.mark.long
def test_only_those_who_train_or_were_told_import_code() -> None:
    importing = set()
    for package in ("envs", "store", "diagnostics", "core", "dashboard", "cli"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module == "echoscope.text.user_code":
                    names = {alias.name for alias in node.names}
                    if names & {"load", "import_named"}:
                        importing.add(str(path.relative_to(ROOT)))
    assert importing == MAY_IMPORT_CODE


@pytest.mark.usefixtures("my_module")
def test_what_nobody_loaded_is_not_handed_out() -> None:
    with pytest.raises(UserCodeError, match="is the run's own code, which is not executed here"):
        loaded("loss", "my_code:double")
    assert "my_code" not in sys.modules
    function = load("loss", "my_code:double")
    assert loaded("loss", "my_code:double") is function
    with pytest.raises(UserCodeError, match="not executed here"):
        loaded("selection", "my_code:double")  # a name of another kind


@pytest.mark.usefixtures("my_module")
def test_an_entry_point_is_a_shorter_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_code, "entry_points", lambda group: {"twice": "my_code:double"})
    assert load("loss", "twice")(3) == 6
    with pytest.raises(UserCodeError, match="no loss plug-in 'twise' is installed; did you mean"):
        load("loss", "twise")


@pytest.mark.usefixtures("my_module")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("my_code:doubel", "has no function 'doubel'; did you mean 'double'"),
        ("my_code:value", "has no function 'value'"),
        ("my_broken:f", "cannot import 'my_broken': SystemExit: 0; it must be importable"),
        ("nowhere:f", "cannot import 'nowhere': ModuleNotFoundError"),
        ("my_code:", "'module:function'"),
        (":double", "'module:function'"),
        ("math:sin", "is built into Python"),
    ],
)
def test_a_wrong_name_is_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(UserCodeError) as caught:
        load("loss", name)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_module_imported_is_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_partials.py").write_text(
        "from functools import partial\nfrom collections import Counter\nthrice = partial(pow, 3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserCodeError, match=r"has no function 'counter'; known: thrice$"):
        load("loss", "my_partials:counter")


@pytest.mark.usefixtures("my_module")
def test_a_failure_says_where() -> None:
    function = load("loss", "my_code:bad")
    with pytest.raises(
        UserCodeError, match=r"'my_code:bad' failed in line 5 of my_code\.py: ZeroDivisionError"
    ):
        call("loss", "my_code:bad", function, 1)
    load("loss", "my_code:double")
    require_params("loss", "my_code:double", {"by": 3})
    with pytest.raises(UserCodeError, match="unexpected keyword argument 'bye'"):
        require_params("loss", "my_code:double", {"bye": 3})
