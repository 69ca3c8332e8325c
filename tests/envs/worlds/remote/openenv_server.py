"""An OpenEnv server made with openenv-core: guess a number, whose last digit is told.

python openenv_server.py PORT
"""

from __future__ import annotations

import random
import sys
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Guess(Action):
    number: str = Field(description="a number from 1 to 1000")


class Seen(Observation):
    text: str = ""


class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, **_: Any) -> Seen:
        self.number = random.Random(seed).randint(1, 1000)
        return Seen(text=f"Guess a number. It ends in {self.number % 10}.", done=False)

    def step(self, action: Guess, **_: Any) -> Seen:
        if not action.number.isdigit():
            return Seen(text="No number.", done=False, reward=0.0)
        guess = int(action.number)
        if guess == self.number:
            return Seen(text="Yes.", done=True, reward=1.0)
        return Seen(text="Higher." if guess < self.number else "Lower.", done=False, reward=0.0)

    @property
    def state(self) -> State:
        return State(episode_id="game", step_count=0)


if __name__ == "__main__":
    app = create_fastapi_app(Game, Guess, Seen, max_concurrent_envs=64)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
