"""A model behind a provider's interface plays as it would here, whatever its server does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("inspect_ai", reason="make test-eval installs it")

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessageAssistant,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.tool import ToolCall

from echoscope.core.config.loading import ConfigError
from echoscope.core.evaluation import providers
from echoscope.core.evaluation.dialogue import reply_text, usage
from echoscope.core.evaluation.plan import Budget
from echoscope.core.evaluation.play import Evaluation
from echoscope.store.reader import open_run

from .chat_server import ChatServer, serving

Evaluate = Callable[..., Evaluation]
PRICE = (1.0, 2.0)


def cost(server: ChatServer) -> float:
    return (PRICE[0] * server.num_input_tokens + PRICE[1] * server.num_output_tokens) / 1e6


def who(server: ChatServer, protocol: str, monkeypatch: pytest.MonkeyPatch) -> str:
    if protocol == "openai":
        return f"{server.url}/v1#tiny"
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    return "anthropic/claude-tiny"


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_a_served_policy_plays_as_it_does_here(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    here = evaluate("tiny", "here", tasks=5, siblings=2)
    with serving() as server:
        served = evaluate(
            who(server, protocol, monkeypatch), "served", tasks=5, siblings=2, price=PRICE
        )
        assert served.spent.num_input_tokens == server.num_input_tokens
        assert served.spent.num_output_tokens == server.num_output_tokens
        assert served.spent.cost == pytest.approx(cost(server))
    for direct, asked in zip(here.outcomes, served.outcomes, strict=True):
        assert (asked.task, asked.is_success, asked.num_turns) == (
            direct.task,
            direct.is_success,
            direct.num_turns,
        )
        assert asked.num_tokens == direct.num_tokens


@pytest.mark.parametrize("fault", ["500", "429", "stall", "half"])
def test_a_server_that_fails_costs_nothing_twice(
    evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    if fault == "stall":
        monkeypatch.setattr(providers, "REQUEST_S", 5)
    here = evaluate("tiny", "here", tasks=4)
    with serving(lambda number: fault if number % 7 == 3 else "") as server:
        served = evaluate(f"{server.url}/v1#tiny", "served", tasks=4, price=PRICE)
    assert served.status == "finished"
    assert [o.is_success for o in served.outcomes] == [o.is_success for o in here.outcomes]
    rows = open_run(tmp_path / "served").sql(
        "SELECT count(*) n, count(DISTINCT id) d FROM trajectories"
    )
    assert rows.to_pylist() == [{"n": 4, "d": 4}]
    assert server.num_requests > sum(o.num_turns for o in served.outcomes)


def test_usage_that_cannot_be_is_not_counted(evaluate: Evaluate) -> None:
    with serving(lambda number: "usage") as server:
        served = evaluate(f"{server.url}/v1#tiny", "served", tasks=2, price=PRICE)
    assert (served.spent.num_input_tokens, served.spent.num_output_tokens) == (0, 0)
    assert served.status == "finished"


def test_a_server_that_is_gone_ends_it_and_another_attempt_plays_the_rest(
    evaluate: Evaluate, go_on: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "MAX_RETRIES", 1)
    here = evaluate("tiny", "here", tasks=12)
    is_down = True
    with serving(lambda number: "500" if is_down and number > 12 else "") as server:
        cut = evaluate(
            f"{server.url}/v1#tiny",
            "cut",
            tasks=12,
            price=PRICE,
            words=("collection.max_in_flight=2",),
        )
        assert cut.status == "stopped"
        assert "InternalServerError" in cut.reason
        played = len(cut.outcomes)
        assert 0 < played < 12
        is_down = False
        before = server.num_requests
        rest = go_on("cut")
        turns = [o.num_turns for o in rest.outcomes]
        assert server.num_requests - before <= sum(turns)
        assert [o.is_success for o in rest.outcomes] == [o.is_success for o in here.outcomes]
        assert rest.spent.num_input_tokens <= server.num_input_tokens


def test_a_budget_in_money_ends_it(evaluate: Evaluate) -> None:
    with serving() as server:
        cut = evaluate(
            f"{server.url}/v1#tiny",
            "cut",
            tasks=20,
            price=PRICE,
            budget=Budget(cost=0.002),
            words=("collection.max_in_flight=1",),
        )
    assert cut.reason.endswith("the budget of 0.002 $ is used up")
    assert cut.spent.cost is not None
    assert 0.002 <= cut.spent.cost < 0.004


def test_no_key_is_one_sentence(evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"openai/gpt-x cannot be asked: .*OPENAI_API_KEY"):
        evaluate("openai/gpt-x", "e")


def test_settings_that_a_provider_has_no_use_for_are_refused(evaluate: Evaluate) -> None:
    with pytest.raises(ConfigError, match=r"context.history_turns is set, but a provider's model"):
        evaluate("http://127.0.0.1:1/v1#x", "e", words=("context.history_turns=2",))


def output(
    *parts: ContentReasoning | ContentText, calls: list[ToolCall] | None = None
) -> ModelOutput:
    message = ChatMessageAssistant(content=list(parts), tool_calls=calls)
    return ModelOutput(model="m", choices=[ChatCompletionChoice(message=message)])


def test_reasoning_that_is_kept_apart_counts_as_written() -> None:
    reply = output(ContentReasoning(reasoning="go up"), ContentText(text="<answer>up</answer>"))
    assert reply_text(reply) == "<think>go up</think><answer>up</answer>"


def test_a_call_is_spelled_as_hermes_spells_it() -> None:
    call = ToolCall(id="1", function="look", arguments={"at": "door"})
    assert reply_text(output(ContentText(text="So:"), calls=[call])) == (
        'So:\n<tool_call>\n{"name": "look", "arguments": {"at": "door"}}\n</tool_call>'
    )


def test_cached_input_is_billed_input() -> None:
    reply = output(ContentText(text="x"))
    reply.usage = ModelUsage(input_tokens=3, output_tokens=2, input_tokens_cache_read=5)
    assert usage(reply) == {"usage/input_tokens": 8.0, "usage/output_tokens": 2.0}
