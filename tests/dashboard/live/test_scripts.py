"""The scripts of the pages: where they stand, and that they are the only ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from echoscope.dashboard import live
from echoscope.dashboard.live import scripts

DASHBOARD = Path(live.__file__).parents[1]


@pytest.fixture
def client() -> TestClient:
    return TestClient(Starlette(routes=scripts.routes()), client=("127.0.0.1", 1))


@pytest.mark.parametrize("name", list(scripts.files()))
def test_a_script_is_kept_for_ever_under_the_name_of_its_content(
    client: TestClient, name: str
) -> None:
    answer = client.get(scripts.address(name))
    assert answer.status_code == 200
    assert answer.content == scripts.files()[name].read_bytes()
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "immutable" in answer.headers["cache-control"]


def test_a_script_is_left_unpacked_for_this_machine_only(client: TestClient) -> None:
    """Streamlit packs what has no encoding yet."""
    path = scripts.address("figures.js")
    assert client.get(path).headers["content-encoding"] == "identity"
    far = TestClient(Starlette(routes=scripts.routes()), client=("192.0.2.7", 1))
    assert "content-encoding" not in far.get(path).headers


def test_scripts_import_each_other_by_name_and_nothing_else() -> None:
    for name, path in scripts.files().items():
        if name != "plotly.js":
            imported = re.findall(r'from "(.*?)"', path.read_text(encoding="utf-8"))
            assert {path.removeprefix("./") for path in imported} <= set(scripts.files()), name


def test_scripts_put_in_text_and_no_html() -> None:
    for name, path in scripts.files().items():
        if name != "plotly.js":
            text = path.read_text(encoding="utf-8")
            for word in ("innerHTML", "insertAdjacentHTML", "outerHTML", "eval(", "new Function"):
                assert word not in text, name


def test_no_script_stands_in_python_but_the_line_that_imports_one() -> None:
    for path in DASHBOARD.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        is_home = path.name == "scripts.py"
        assert text.count("export default") == int(is_home), path
        assert "addEventListener" not in text, path
        assert is_home or "components.v2" not in text, path
