"""A world played in Inspect: its log, imported, is the store of `echoscope eval`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click import ClickException

pytest.importorskip("inspect_ai", reason="make test-eval installs it")

import inspect_ai
from inspect_ai.log import EvalLog, EvalSample, write_eval_log
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    Model,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.tool import ToolCall, ToolChoice, ToolInfo
from rollout_import import import_run

from echoscope.core.evaluation import play, providers
from echoscope.core.evaluation.inspect_tasks import world_task
from echoscope.core.evaluation.plan import Budget, settings_for
from echoscope.core.evaluation.play import Evaluation
from echoscope.core.evaluation.who import resolve
from echoscope.store.exporters.exporting import export_run
from echoscope.store.reader import open_run
from echoscope.store.records import Split, StopReason, Trajectory

from .chat_server import ChatServer, serving

Evaluate = Callable[..., Evaluation]
Answer = Callable[[list[ChatMessage], list[ToolInfo]], ChatMessageAssistant]
RECIPE: dict[str, Any] = {
    **{"size": 4, "holes": 2, "slip": 0.0, "min_distance": 2, "max_distance": 5},
    **{"observation": "relative", "max_turns": 6, "max_actions_per_turn": 1},
    **{"system": "", "instructions": False, "format_hint": False, "max_response_tokens": 40},
}
"""What the recipe frozen_lake says."""


def says(*answers: str) -> Answer:
    """Answers in turn, by how many replies there are."""

    def answer(messages: list[ChatMessage], tools: list[ToolInfo]) -> ChatMessageAssistant:
        number = sum(message.role == "assistant" for message in messages)
        text = answers[number % len(answers)]
        return ChatMessageAssistant(content=f"<think>turn {number}</think><answer>{text}</answer>")

    return answer


def calls(*actions: tuple[str, dict[str, Any]]) -> Answer:
    """Calls tools in turn, and then answers 7."""

    def answer(messages: list[ChatMessage], tools: list[ToolInfo]) -> ChatMessageAssistant:
        number = sum(message.role == "assistant" for message in messages)
        if number >= len(actions):
            return ChatMessageAssistant(content="<think>so</think>7")
        name, arguments = actions[number]
        call = ToolCall(id=f"c{number}", function=name, arguments=arguments)
        return ChatMessageAssistant(content="<think>ask</think>", tool_calls=[call])

    return answer


def mock(answer: Answer) -> Model:
    def output(
        messages: list[ChatMessage], tools: list[ToolInfo], choice: ToolChoice, config: Any
    ) -> ModelOutput:
        return ModelOutput(
            model="mock",
            choices=[ChatCompletionChoice(message=answer(messages, tools), stop_reason="stop")],
            usage=ModelUsage(input_tokens=len(messages), output_tokens=3, total_tokens=3),
        )

    return get_model("mockllm/model", custom_outputs=output, memoize=False)


def run(path: Path, model: Model, env: str, /, **more: Any) -> EvalLog:
    """Inspect's log of a world; what begins with `of_eval_` goes to `inspect_ai.eval`."""
    of_eval = {k.removeprefix("of_eval_"): more.pop(k) for k in [*more] if k.startswith("of_eval_")}
    (log,) = inspect_ai.eval(
        world_task(env, **({"seed": 0} | more)),
        model=model,
        display="none",
        log_dir=str(path),
        **of_eval,
    )
    return log


def episodes(path: Path) -> list[Trajectory]:
    return open_run(path).trajectories_of_step(0)


def imported(log: EvalLog, path: Path) -> list[Trajectory]:
    import_run(Path(log.location), path)
    return episodes(path)


def samples(log: EvalLog) -> Sequence[EvalSample]:
    assert log.samples
    return log.samples


def facts(trajectory: Trajectory) -> dict[str, Any]:
    """Everything that an evaluation stores of an episode, but for the seconds."""
    episode = {
        name: getattr(trajectory, name)
        for name in Trajectory.__dataclass_fields__
        if name not in ("turns", "duration_s", "source", "extra")
    }
    turns = [
        {name: getattr(turn, name) for name in type(turn).__dataclass_fields__}
        for turn in trajectory.turns
    ]
    return {**episode, "turns": turns}


def evaluated(path: Path, env: str, tasks: int, siblings: int) -> list[Trajectory]:
    """What `echoscope eval` stores of the world for a mock model."""
    who = resolve("mockllm/model")
    play.start(
        who,
        settings_for(who, envs=[env], tasks=tasks, siblings=siblings, seed=0),
        path,
        budget=Budget(),
        on_progress=lambda done, of: None,
        should_stop=lambda: False,
    )
    return episodes(path)


@pytest.mark.parametrize(
    ("env", "answer"),
    [
        ("frozen_lake", says("right", "down || right", "fly")),
        ("bandit", says("Postman")),
        ("countdown", says("1+1", "no", "5*8-8-8")),
        (
            "price_list",
            calls(("lookup", {"item": "milk"}), ("fly", {}), ("calculate", {"expression": "3+4"})),
        ),
    ],
)
def test_its_log_imported_is_what_eval_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str, answer: Answer
) -> None:
    monkeypatch.setattr(providers, "_model", lambda who, config: mock(answer))
    stored = evaluated(tmp_path / "eval", env, tasks=6, siblings=2)
    log = run(tmp_path / "logs", mock(answer), env, tasks=6, siblings=2)
    back = imported(log, tmp_path / "back")
    assert [facts(episode) for episode in back] == [facts(episode) for episode in stored]
    assert log.status == "success"
    assert log.results is not None
    means = {score.name: next(iter(score.metrics.values())).value for score in log.results.scores}
    wins = [float(bool(episode.is_success)) for episode in stored]
    assert means["success"] == pytest.approx(sum(wins) / len(wins))
    returns = [episode.episode_return for episode in stored]
    assert means["return"] == pytest.approx(sum(returns) / len(returns))
    assert {*means} == {"success", "return", "turns", "valid_actions", "effective_actions"}
    assert all({*score.metrics} >= {"stderr"} for score in log.results.scores)


def served_model(server: ChatServer, protocol: str, monkeypatch: pytest.MonkeyPatch) -> Model:
    """The shipped policy behind the server, as Inspect's command line names it."""
    config = GenerateConfig(temperature=0.0)
    if protocol == "openai":
        monkeypatch.setenv("LOCAL_API_KEY", "none")
        return get_model(
            "openai-api/local/tiny", base_url=f"{server.url}/v1", config=config, memoize=False
        )
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    return get_model("anthropic/claude-tiny", config=config, memoize=False)


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_a_served_policy_plays_in_inspect_as_in_eval(
    evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    with serving() as server:
        model = served_model(server, protocol, monkeypatch)
        log = run(tmp_path / "logs", model, "frozen_lake", tasks=5, siblings=2, **RECIPE)
        who = f"{server.url}/v1#tiny" if protocol == "openai" else "anthropic/claude-tiny"
        evaluate(who, "served", tasks=5, siblings=2)
    back, stored = imported(log, tmp_path / "back"), episodes(tmp_path / "served")
    assert [facts(episode) for episode in back] == [facts(episode) for episode in stored]
    assert len(back) == 10
    assert {episode.split for episode in back} == {Split.EVAL}
    assert all(episode.env_seed is not None and episode.task_key for episode in back)


def test_the_command_plays_a_world(evaluate: Evaluate, tmp_path: Path) -> None:
    """By the entry point of the package, as an installation has it."""
    info = tmp_path / "site" / "echoscope-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echoscope\nVersion: 0.1.0\n")
    (info / "direct_url.json").write_text('{"dir_info": {"editable": true}, "url": "file:///x"}')
    (info / "entry_points.txt").write_text(
        "[inspect_ai]\nechoscope = echoscope.core.evaluation.inspect_tasks\n"
    )
    parameters = [f"-T{name}={_yaml(value)}" for name, value in RECIPE.items()]
    with serving() as server:
        subprocess.run(
            [
                *(str(Path(sys.executable).with_name("inspect")), "eval", "echoscope/frozen_lake"),
                *("--model", "openai-api/local/tiny", "--model-base-url", f"{server.url}/v1"),
                *("--temperature", "0", "--display", "none", "--log-dir", str(tmp_path / "logs")),
                *("-T", "tasks=3", "-T", "seed=0", *parameters),
            ],
            check=True,
            env={
                **os.environ,
                "LOCAL_API_KEY": "none",
                "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *sys.path]),
            },
        )
        evaluate(f"{server.url}/v1#tiny", "served", tasks=3)
    (path,) = (tmp_path / "logs").glob("*.eval")
    import_run(path, tmp_path / "back")
    stored = episodes(tmp_path / "served")
    assert [facts(episode) for episode in episodes(tmp_path / "back")] == [
        facts(episode) for episode in stored
    ]


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_a_world_that_fails_is_an_error_and_no_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, answer = "falling_lake:FallingLake", says("right")
    log = run(tmp_path / "logs", mock(answer), env, tasks=8)
    failed = [sample for sample in samples(log) if sample.error]
    messages = [str(sample.error and sample.error.message) for sample in failed]
    assert log.status == "success"
    assert 0 < len(failed) < 8
    assert any("there is no lake" in message for message in messages)
    assert any("the ice broke" in message for message in messages)
    assert all(not sample.scores for sample in failed)
    monkeypatch.setattr(providers, "_model", lambda who, config: mock(answer))
    stored = evaluated(tmp_path / "eval", env, tasks=8, siblings=1)
    assert [facts(o) for o in imported(log, tmp_path / "back")] == [facts(o) for o in stored]
    assert sum(episode.stop_reason is StopReason.ENV_ERROR for episode in stored) == len(failed)
    assert log.results is not None
    wins = [float(episode.is_success) for episode in stored if episode.is_success is not None]
    (success,) = (score for score in log.results.scores if score.name == "success")
    assert success.metrics["accuracy"].value == pytest.approx(sum(wins) / len(wins))


def test_a_model_that_cannot_be_asked_leaves_no_episode(tmp_path: Path) -> None:
    def answer(messages: list[ChatMessage], tools: list[ToolInfo]) -> ChatMessageAssistant:
        if "task 1" in messages[0].text or len(messages) > 4:
            raise OSError("nobody is there")
        return says("left")(messages, tools)

    log = run(tmp_path / "logs", mock(answer), "frozen_lake", tasks=2, slip=0.0)
    report = import_run(Path(log.location), tmp_path / "back")
    told = sum(sample.error is not None for sample in samples(log))
    assert told
    assert report.survey.refused_rows.total == told
    assert all("nobody is there" in reason for reason in report.survey.refused_rows.counts)


def test_a_limit_of_inspect_counts_as_not_solved(tmp_path: Path) -> None:
    log = run(tmp_path / "logs", mock(says("fly")), "frozen_lake", tasks=2, of_eval_message_limit=4)
    assert [sample.limit and sample.limit.type for sample in samples(log)] == ["message", "message"]
    assert [sample.scores and sample.scores["success"].value for sample in samples(log)] == [0, 0]
    for episode in imported(log, tmp_path / "back"):
        assert (episode.stop_reason, episode.is_success, episode.num_turns) == (
            StopReason.MAX_TURNS,
            False,
            1,
        )


def test_calls_of_tools_that_nobody_declared_are_words(tmp_path: Path) -> None:
    answer = calls(("move", {"to": "right"}), ("move", {"to": "down"}))
    log = run(tmp_path / "logs", mock(answer), "frozen_lake", tasks=2, max_turns=3)
    for episode in imported(log, tmp_path / "back"):
        assert episode.num_turns == 3
        assert '{"name": "move", "arguments": {"to": "right"}}' in episode.turns[0].response
        assert episode.turns[0].is_valid is False
    assert all(sample.error is None for sample in samples(log))


def test_more_epochs_than_siblings_are_played(tmp_path: Path) -> None:
    few = run(tmp_path / "few", mock(says("right")), "frozen_lake", tasks=2, of_eval_epochs=3)
    many = run(tmp_path / "many", mock(says("right")), "frozen_lake", tasks=2, siblings=3)
    first, second = (imported(log, tmp_path / f"back{n}") for n, log in enumerate((few, many)))
    assert [facts(episode) for episode in first] == [facts(episode) for episode in second]


def test_an_export_of_what_was_imported_gives_it_back(tmp_path: Path) -> None:
    log = run(tmp_path / "logs", mock(says("right", "down")), "frozen_lake", tasks=3)
    once = imported(log, tmp_path / "once")
    export_run(tmp_path / "once", "inspect", tmp_path / "out.eval")
    import_run(tmp_path / "out.eval", tmp_path / "twice")
    for before, after in zip(once, episodes(tmp_path / "twice"), strict=True):
        assert (after.episode_return, after.is_success) == (
            pytest.approx(before.episode_return),
            before.is_success,
        )
        assert [t.response for t in after.turns] == [t.response for t in before.turns]


def test_a_log_as_json_is_imported_alike(tmp_path: Path) -> None:
    log = run(tmp_path / "logs", mock(says("right")), "frozen_lake", tasks=3, siblings=2)
    write_eval_log(log, str(tmp_path / "log.json"), format="json")
    import_run(tmp_path / "log.json", tmp_path / "json")
    back = imported(log, tmp_path / "back")
    assert [facts(episode) for episode in episodes(tmp_path / "json")] == [
        facts(episode) for episode in back
    ]


@pytest.mark.parametrize(
    ("env", "settings", "sentence"),
    [
        ("frozen_lake", {"sizes": 4}, "frozen_lake has no parameter 'sizes'; did you mean 'size'"),
        ("frozen_lake", {"sibling": 4}, "no parameter 'sibling'; did you mean 'siblings'"),
        ("frozen_lake", {"size": "big"}, "frozen_lake: size is 'big', but must be an integer"),
        ("frozen_lake", {"tasks": 0}, "tasks is 0, but must be a whole number from 1 on"),
        ("frozen_lake", {"reasoning": 3}, "reasoning is 3, but must be a valid boolean"),
        ("frozen_lake", {"max_turns": 0}, "max_turns is 0, but must be"),
        ("frozen_like", {}, "no environment 'frozen_like'; did you mean 'frozen_lake'"),
        ("bandit", {"tasks": 60_000, "siblings": 2}, "an evaluation holds at most 99999"),
    ],
)
def test_what_is_wrong_is_one_sentence(env: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ClickException) as raised:
        world_task(env, **settings)
    assert sentence in raised.value.message
    assert "\n" not in raised.value.message


def test_every_world_has_a_task_of_its_name() -> None:
    from inspect_ai._util.registry import registry_lookup

    from echoscope.envs.registry import BUILTIN

    names = ["world", *BUILTIN]
    assert [n for n in names if not registry_lookup("task", f"echoscope/{n}")] == []


def test_inspect_imports_little_for_it() -> None:
    code = (
        "import sys, echoscope.core.evaluation.inspect_tasks as tasks; "
        "print([n for n in ('torch', 'transformers', 'duckdb', 'pyarrow') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.strip() == "[]"
