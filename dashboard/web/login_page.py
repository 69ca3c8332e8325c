"""The page that asks for the password or the token: plain HTML without a script."""

from __future__ import annotations

import html
import math

from starlette.responses import HTMLResponse

from ..charts.theme import ACCENT

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Echoscope</title>
<link rel="icon" href="data:,">
<style>
:root {{ --back: #ffffff; --text: #262626; --line: #d0d0d0; --bad: #c62828; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --back: #171614; --text: #ececec; --line: #4a4a4a; --bad: #ff8a80; }}
}}
body {{ background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif;
       display: grid; place-items: center; min-height: 90vh; margin: 0; }}
form {{ width: min(22rem, 88vw); display: grid; gap: .8rem; }}
h1 {{ font-size: 1.5rem; margin: 0; }}
input {{ font: inherit; padding: .55rem .7rem; border: 1px solid var(--line);
        border-radius: .4rem; background: transparent; color: inherit; }}
button {{ font: inherit; padding: .55rem; border: 0; border-radius: .4rem; color: #fff;
         background: {accent}; cursor: pointer; }}
input:focus-visible, button:focus-visible {{ outline: 2px solid {accent}; outline-offset: 2px; }}
p {{ margin: 0; }}
p[role=alert] {{ color: var(--bad); }}
</style>
</head>
<body>
<form method="post" action="/login">
<h1>Echoscope</h1>
{advice}<label for="password">{label}</label>
<input id="password" name="password" type="password" autocomplete="{autocomplete}" required
 autofocus>
<input type="hidden" name="next" value="{target}">
<button type="submit">Open</button>
{words}
</form>
</body>
</html>
"""
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
    page = _PAGE.format(
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
