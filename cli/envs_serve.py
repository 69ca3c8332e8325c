"""echoscope envs serve: play environments over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echoscope.text.user_code import search_working_folder

from .envs import parse_params

if TYPE_CHECKING:
    from echoscope.envs.worlds.remote.sessions import Served


def serve(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="ENV|KEY=VALUE",
            help="Environment ids or 'module:Class', then parameters, the values in YAML: "
            "KEY=VALUE, or ID.KEY=VALUE, which several ids need.",
        ),
    ],
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. Any address but loopback needs a token in "
            "ECHOSCOPE_ENV_TOKEN."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="From 1 to 65535; 0 takes a free one.")] = 8700,
    max_sessions: Annotated[
        int, typer.Option(min=1, help="Worlds at once; every episode that runs needs one.")
    ] = 1024,
    idle: Annotated[
        float, typer.Option(min=0.1, help="Seconds without a request after which a session ends.")
    ] = 1800.0,
    timeout: Annotated[
        float, typer.Option(min=0.01, help="Seconds that one call into a world may take.")
    ] = 60.0,
    client_params: Annotated[
        bool,
        typer.Option(
            "--client-params",
            help="Clients may set parameters, also those that name files of this machine or "
            "loosen a sandbox. Off: worlds have the parameters given here.",
        ),
    ] = False,
) -> None:
    """Serve environments to trainings elsewhere (`env: remote`), until Ctrl-C.

    Prints the address once it answers. docs/remote.md describes the protocol.
    """
    from echoscope.envs.base import EnvParamsError

    if not 0 <= port <= 65_535:
        raise EnvParamsError(f"--port is {port}, but must lie in [0, 65535]")
    env_ids = [word for word in words if "=" not in word]
    settings = [word for word in words if "=" in word]
    if not env_ids:
        raise EnvParamsError("name an environment first, such as `envs serve frozen_lake slip=0`")
    search_working_folder()

    from echoscope.envs.worlds.remote.server import serve as serve_worlds
    from echoscope.envs.worlds.remote.sessions import Limits

    served = _served(env_ids, settings)
    limits = Limits(
        max_sessions=max_sessions, idle_s=idle, call_s=timeout, has_client_params=client_params
    )

    def ready(url: str) -> None:
        typer.echo(f"serving {', '.join(env_ids)} at {url} (Ctrl-C ends it)")

    serve_worlds(served, limits, address=host, port=port, on_ready=ready)
    typer.echo("stopped")


def _served(env_ids: Sequence[str], words: Sequence[str]) -> list[Served]:
    """The environments with their parameters."""
    from echoscope.envs.base import EnvParamsError
    from echoscope.envs.worlds.remote.sessions import Served
    from echoscope.text.yaml_text import short

    params: dict[str, dict[str, Any]] = {env_id: {} for env_id in env_ids}
    for word in words:
        env_id, dot, _ = word.partition("=")[0].rpartition(".")
        is_named = bool(dot) and env_id in params
        if not is_named and len(env_ids) > 1:
            raise EnvParamsError(
                f"with several environments a parameter looks like {env_ids[0]}.KEY=VALUE, "
                f"not {short(word)!r}"
            )
        rest = word[len(env_id) + 1 :] if is_named else word
        env_id = env_id if is_named else env_ids[0]
        params[env_id] |= parse_params([rest])
    return [Served(id=env_id, params=params[env_id]) for env_id in env_ids]
