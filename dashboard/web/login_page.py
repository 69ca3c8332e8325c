"""The page that asks for the password or the token: plain HTML without a script."""

from __future__ import annotations

import html
import math
from pathlib import Path
from string import Template

from starlette.responses import HTMLResponse

from ..charts.theme import ACCENT

_PAGE = Template((Path(__file__).parent / "login.html").read_text(encoding="utf-8"))
_TOKEN_ADVICE = (
    "<p>Open the link that the terminal shows (it ends in <code>token=...</code>), or paste its "
    "token here. Every start of the dashboard makes a new token.</p>\n"
)
_BOUNCE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="0">
<title>Echoscope</title></head><body></body></html>
"""


def login_page(
    target: str,
    message: str = "",
    *,
    has_password: bool = True,
    status: int = 401,
    retry_after_s: float = 0.0,
) -> HTMLResponse:
    """Ask for the password, or else for the token, and go to `target` afterwards."""
    alert = f'<p role="alert">{html.escape(message)}</p>' if message else ""
    page = _PAGE.substitute(
        accent=ACCENT,
        advice="" if has_password else _TOKEN_ADVICE,
        label="Password" if has_password else "Token",
        autocomplete="current-password" if has_password else "off",
        target=html.escape(target, quote=True),
        words=alert,
    )
    # Without a referrer a browser sends the form with `Origin: null`, as a foreign page would.
    headers = {"cache-control": "no-store", "referrer-policy": "same-origin"}
    if retry_after_s > 0:
        headers["retry-after"] = str(math.ceil(retry_after_s))
    return HTMLResponse(page, status_code=status, headers=headers)


def bounce_page() -> HTMLResponse:
    """Asks the browser to come again, this time from a page of ours."""
    return HTMLResponse(_BOUNCE, headers={"cache-control": "no-store"})
