"""vLLM's server as a child that never outlives its parent, whichever way that ends."""

from __future__ import annotations

import echoscope_vllm_worker


def main() -> None:
    """Serve with the command line's flags (those of `vllm serve`)."""
    echoscope_vllm_worker.end_with_parent()
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    serve()


if __name__ == "__main__":
    main()
