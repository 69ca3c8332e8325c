"""The check finds worlds with one fault each, and says which; their sound models pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
from broken_worlds import FAULTS, LATER_FAULTS, AnswerInPrompt, Sum, Walk

from echoscope.envs.base import TextEnv
from echoscope.envs.checks.check_env import check_env

FOUND_BY = {
    "AnswerInPrompt": "prompt",
    "PaysForNoise": "invalid",
    "PaysAfterTheEnd": "end",
    "OneKeyForMaps": "tasks",
    "ConstantKey": "tasks",
    "KeyOfTheSeed": "tasks",
    "AlwaysSuccess": "success",
    "NeverSuccess": "expert",
    "TooManyPromised": "tasks",
    "TooFewPromised": "tasks",
    "HugeObservation": "types",
    "SharedState": "steps",
    "LeftOver": "steps",
    "GlobalRandom": "steps",
    "ReadsTheClock": "seeds",
    "HashesText": "processes",
    "NoiseIsTask": "seeds",
    "InvalidMoves": "invalid",
    "SolvingMoves": "steps",
    "FalseExpert": "expert",
    "EchoPays": "cheats",
    "IdlePays": "cheats",
    "JunkIsValid": "hostile",
    "Endless": "end",
    "NotANumber": "types",
    "Raises": "hostile",
    "AnswerShown": "prompt",
    "FewOfMany": "tasks",
    "ListRight": "cheats",
    "EmptyRight": "cheats",
    "FiveMaps": "tasks",
    "HiddenAndKeyless": "tasks",
    "KeyOfTheNoise": "tasks",
    "WaveringExpert": "expert",
    "LookingMoves": "steps",
    "Counts": "seeds",
}
"""Fault to the check whose sentence names it; other checks may find it, too."""


@pytest.mark.parametrize("world", [Walk, Sum])
def test_the_sound_models_pass(world: type[TextEnv]) -> None:
    report = check_env(f"broken_worlds:{world.__name__}")
    assert report.failed == {}
    assert report.scores["expert"].success == 1


def test_every_fault_is_listed() -> None:
    assert [*FOUND_BY] == [world.__name__ for world in FAULTS + LATER_FAULTS]


class Quotes(AnswerInPrompt):
    """Its questions hold their answers, as those of reading do."""

    spec = replace(Walk.spec, quotes_answers=True)


def test_where_questions_quote_their_answers_the_prompt_is_not_searched() -> None:
    report = check_env(f"{__name__}:Quotes")
    assert dict(report.failed) == {}
    assert report.skipped["prompt"] == "a question may quote its answer among other words"


@pytest.mark.long
@pytest.mark.parametrize("name", FOUND_BY)
def test_the_check_finds(name: str) -> None:
    assert FOUND_BY[name] in check_env(f"broken_worlds:{name}").failed
