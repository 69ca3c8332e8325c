"""A run whose sampling server breaks: what was learned is on the disk, and the run can go on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded import metric
from scripted_server import Body, Script, honest, serving, status

from echoscope.core.config.settings import RunConfig
from echoscope.core.engines import replicas
from echoscope.core.engines.base import EngineError
from echoscope.core.run.checkpoint import list_checkpoints
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import SilentEvents
from echoscope.store.checkpoints import checkpoint_step
from echoscope.store.reader import open_run


@pytest.mark.long
def test_of_two_servers_one_may_break(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """The run samples what it would have sampled with both."""
    quick = ("eval.every=0", "eval.before=false", "checkpoint.every=0", "steps=2")
    replies = []
    for breaks_after in (10**9, 5):
        path, num_asked = tmp_path / str(breaks_after), itertools.count()

        def breaks(body: Body) -> Any:
            is_well = next(num_asked) < breaks_after  # noqa: B023
            return honest(body) if is_well else status(500, "out of memory")(body)

        first, second = Script(answers=[breaks]), Script()
        with serving(first) as url, serving(second) as other:
            engine = f"engine={{kind: openai, url: '{url},{other}'}}"
            config = make_config(engine, *quick, "diagnostics.enabled=false")
            assert start(config, path, SilentEvents()) == "finished"
        turns = open_run(path).sql("select step, turn, response from turns order by all")
        replies.append(turns.to_pylist())
        asked = [sum(where == "/v1/completions" for where, _ in s.asked) for s in (first, second)]
        assert min(asked) > 5, "both sample"
    assert replies[0] == replies[1]
    assert sum(metric(path, "engine/num_lost").values()) >= 1


def test_a_server_that_breaks_costs_the_step_under_way_and_no_other(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, path = Script(), tmp_path / "run"
    with serving(script) as url:
        engine = f"engine={{kind: openai, url: '{url}'}}"
        quick = ("eval.every=0", "eval.before=false", "checkpoint.every=0", "steps=3")
        config = make_config(engine, *quick, "diagnostics.enabled=false")
        num_asked = 0

        def breaks(body: Body) -> Any:
            nonlocal num_asked
            num_asked += 1
            return honest(body) if num_asked <= 20 else status(500, "out of memory")(body)

        script.answers = [breaks]
        monkeypatch.setattr(replicas, "MAX_LOSSES", 2)
        with pytest.raises(EngineError, match=r"all replicas .* answered 500: out of memory"):
            start(config, path, SilentEvents())
        last_step = open_run(path).info().last_step
        assert (open_run(path).info().status, last_step >= 1) == ("failed", True)
        assert [checkpoint_step(saved) for saved in list_checkpoints(path)] == [last_step]
        script.answers = [honest]
        assert resume(path, SilentEvents()) == "finished"
    staleness = metric(path, "rollout/staleness_mean")
    assert [staleness[step] for step in (1, 2, 3)] == [0, 1, 2], "the server's weights never change"


def test_episodes_at_their_own_pace_are_those_of_lockstep(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """The server answers each request as it comes; one of them needs a second attempt."""
    quick = ("eval.every=0", "eval.before=false", "checkpoint.every=0", "steps=1")
    replies, retries = [], []
    for mode in ("lockstep", "async"):
        script, path = Script(), tmp_path / mode
        script.answers = [status(503), honest]
        with serving(script) as url:
            engine = f"engine={{kind: openai, url: '{url}'}}"
            other = (f"collection.mode={mode}", "diagnostics.enabled=false")
            assert start(make_config(engine, *quick, *other), path, SilentEvents()) == "finished"
        turns = open_run(path).sql("select turn, response from turns order by all")
        replies.append(turns.to_pylist())
        retries.append(metric(path, "engine/num_retries")[1])
    assert replies[0] == replies[1]
    assert len(replies[0]) > 8
    assert retries == [1, 1]
