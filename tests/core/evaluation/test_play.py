"""An evaluation plays every episode once, whatever interrupts it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from echoscope.core.config.loading import ConfigError, load_config
from echoscope.core.evaluation.plan import Budget, settings_for
from echoscope.core.evaluation.play import Evaluation
from echoscope.core.evaluation.who import resolve
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.diagnostics.tools.stored_outcomes import stored_outcomes
from echoscope.store.errors import RunExistsError
from echoscope.store.reader import open_run

Evaluate = Callable[..., Evaluation]


def test_an_evaluation_stores_what_it_counts(evaluate: Evaluate, tmp_path: Path) -> None:
    evaluation = evaluate("tiny", "e", tasks=5, siblings=2)
    reader = open_run(tmp_path / "e")
    stored = stored_outcomes(reader, 0, reader.info().last_step)
    assert evaluation.status == reader.info().status == "finished"
    assert list(stored) == list(range(10))
    assert tuple(stored.values()) == evaluation.outcomes
    assert reader.info().tags == ("evaluation",)
    _, rates = reader.metrics("eval/frozen_lake/success_rate", phase="eval")
    assert rates[-1] == pytest.approx(evaluation.tables[0].success.value)


@pytest.mark.long
def test_it_plays_the_tasks_of_the_trainings_own_evaluation(tmp_path: Path) -> None:
    """At temperature 1 with the same seed: task for task the same outcomes as at step 0."""
    config = load_config("frozen_lake", overrides=["steps=1", "probe.every=0"])
    worlds = [config.envs.eval[0].model_copy(update={"groups": 6})]
    envs = config.envs.model_copy(update={"eval": worlds})
    config = config.model_copy(update={"envs": envs})
    start(config, tmp_path / "run", SilentEvents())
    reader = open_run(tmp_path / "run")
    trained = list(stored_outcomes(reader, 0, 0).values())
    who = resolve("tiny")
    settings = settings_for(who, recipe="frozen_lake", tasks=6, siblings=1, seed=config.seed)
    from echoscope.core.evaluation import play

    evaluation = play.start(
        who,
        settings,
        tmp_path / "eval",
        budget=Budget(),
        on_progress=lambda done, of: None,
        should_stop=lambda: False,
    )
    assert list(evaluation.outcomes) == trained
    best = resolve(str(tmp_path / "run"))
    assert best.step == 1
    assert best.name == "run step 1"


def test_a_budget_ends_it_and_a_larger_one_goes_on(evaluate: Evaluate, go_on: Evaluate) -> None:
    whole = evaluate("tiny", "whole", tasks=6, siblings=2)
    cut = evaluate("tiny", "cut", tasks=6, siblings=2, budget=Budget(episodes=5))
    assert (cut.status, len(cut.outcomes)) == ("stopped", 4)
    assert cut.reason == "8 of 12 episodes were not played: the budget of 5 episodes is used up"
    assert not cut.is_biased
    again = go_on("cut")
    assert len(again.outcomes) == 4
    rest = go_on("cut", Budget(episodes=100))
    assert rest.outcomes == whole.outcomes
    assert rest.status == "finished"


@pytest.mark.long
def test_a_budget_holds_for_the_attempt_that_goes_on(evaluate: Evaluate, go_on: Evaluate) -> None:
    asked = iter(range(1000))
    one_by_one = ("collection.mode=async", "collection.max_in_flight=1")
    cut = evaluate(
        "tiny",
        "cut",
        tasks=20,
        budget=Budget(tokens=300),
        words=one_by_one,
        should_stop=lambda: next(asked) > 60,
    )
    assert 0 < cut.spent.num_tokens < 300
    rest = go_on("cut")
    assert rest.is_used_up
    assert 300 <= rest.spent.num_tokens < 300 + 90  # one episode of six turns more


def test_a_budget_of_tokens_counts_what_was_sampled(evaluate: Evaluate) -> None:
    cut = evaluate(
        "tiny",
        "cut",
        tasks=20,
        budget=Budget(tokens=100),
        words=("collection.mode=async", "collection.max_in_flight=1"),
    )
    tokens = [outcome.num_tokens for outcome in cut.outcomes]
    assert sum(tokens) >= 100 > sum(tokens[:-1])


def test_a_stop_keeps_what_was_played(evaluate: Evaluate, go_on: Evaluate) -> None:
    asked = iter(range(1000))
    cut = evaluate("tiny", "cut", tasks=20, should_stop=lambda: next(asked) > 4)
    assert cut.status == "stopped"
    assert cut.is_biased
    keys = open_run(cut.path).metric_keys()
    assert keys == ["eval/frozen_lake/num_tasks"]
    assert all(outcome.is_success is not None for outcome in cut.outcomes)
    assert go_on("cut").outcomes == evaluate("tiny", "whole", tasks=20).outcomes


def test_a_folder_that_holds_something_is_left_alone(evaluate: Evaluate) -> None:
    evaluate("tiny", "e", tasks=1)
    with pytest.raises(RunExistsError, match="echoscope eval --resume"):
        evaluate("tiny", "e", tasks=1)


def test_a_training_is_no_evaluation_to_go_on_with(
    tmp_path: Path, go_on: Evaluate, evaluate: Evaluate
) -> None:
    config = load_config("bandit", overrides=["steps=1", "eval.every=0", "eval.before=false"])
    start(config, tmp_path / "run", SilentEvents())
    with pytest.raises(ConfigError, match="run is no evaluation; `echoscope train --resume`"):
        go_on("run")


@pytest.mark.parametrize(
    ("who", "sentence"),
    [
        ("http://127.0.0.1:1/v1", "is an address without a model: add its name"),
        ("no-such-model", "no model folder 'no-such-model'"),
    ],
)
def test_who_cannot_play_is_said(who: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        resolve(who)


def test_a_checkpoint_that_is_not_there_is_said(tmp_path: Path) -> None:
    config = load_config("bandit", overrides=["steps=1", "eval.every=0", "eval.before=false"])
    start(config, tmp_path / "run", SilentEvents())
    with pytest.raises(ConfigError, match="no checkpoint of step 7; it has 0, 1"):
        resolve(str(tmp_path / "run"), 7)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_kills_play_nothing_twice(evaluate: Evaluate, tmp_path: Path) -> None:
    whole = evaluate("tiny", "whole", tasks=150)
    begin = [
        *(sys.executable, "-m", "echoscope", "eval"),
        *("tiny", "collection.mode=async", "collection.max_in_flight=2", "--recipe", "frozen_lake"),
        *("--tasks", "150", "--temperature", "0", "--seed", "0", "-o", str(tmp_path / "killed")),
    ]
    go_on = [*begin[:4], "--resume", str(tmp_path / "killed")]
    seen: dict[int, object] = {}
    num_kills = 0
    for kill in range(10):
        child = subprocess.Popen(
            begin if not (tmp_path / "killed").exists() else go_on,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.3)
            if len(_stored(tmp_path / "killed")) > len(seen):
                break
        num_kills += child.poll() is None
        child.kill()
        child.wait()
        now = _stored(tmp_path / "killed")
        assert seen.items() <= now.items(), f"kill {kill} lost or replayed an episode"
        seen = now
    assert num_kills == 10
    subprocess.run(go_on, check=True, stdout=subprocess.DEVNULL)
    end = _stored(tmp_path / "killed")
    assert seen.items() <= end.items()
    reader = open_run(tmp_path / "killed")
    outcomes = stored_outcomes(reader, 0, reader.info().last_step)
    assert tuple(outcomes.values()) == whole.outcomes


def _stored(path: Path) -> dict[str, object]:
    """Every episode on the disk with the seconds it took: two plays of one would differ."""
    if not (path / "run.json").exists():
        return {}
    rows = open_run(path).sql("SELECT substr(id, 11) AS place, duration_s FROM trajectories")
    return {row["place"]: row["duration_s"] for row in rows.to_pylist()}
