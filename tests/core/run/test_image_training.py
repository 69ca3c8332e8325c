"""A vision-language policy trains end to end: it sees boards, samples, learns, is written down."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from listening import Listener
from pydantic import ValidationError
from tiny_vision import PLACES, make_vision_model
from transformers import AutoModelForImageTextToText, AutoProcessor

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig
from echoscope.core.pretrained.vision import FIRST_IMAGE_ID
from echoscope.core.rollout.chat import load_chat
from echoscope.core.run.launch import resume, start
from echoscope.core.run.scored_by import by_checkpoint
from echoscope.diagnostics.read.table import table_of_run
from echoscope.diagnostics.tools.rescoring import RescoringError, with_information
from echoscope.envs.frames import to_png
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.records import Trajectory
from echoscope.text.png import open_picture, picture_key

Make = Callable[..., RunConfig]
GROUP = {
    "env": "frozen_lake",
    "groups": 2,
    "max_turns": 2,
    "max_actions_per_turn": 1,
    "render": "rgb",
    "params": {"size": [3, 3]},
}


@pytest.fixture(scope="module", params=["idefics3", "smolvlm"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_vision_model(tmp_path_factory.mktemp("vision"), kind=request.param)


@pytest.fixture(scope="module")
def one_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_vision_model(tmp_path_factory.mktemp("vision"))


def seeing(make_config: Make, folder: str, *overrides: str, **group: Any) -> RunConfig:
    entry = yaml.safe_dump([{**GROUP, **group}], default_flow_style=True, width=10_000).strip()
    return make_config(
        f"model.path={folder}",
        "context.images=all",
        "steps=1",
        "eval.every=0",
        "checkpoint.every=0",
        "envs.eval=[]",
        f"envs.train={entry}",
        *overrides,
    )


def weights(path: Path | str) -> dict[str, torch.Tensor]:
    return dict(AutoModelForImageTextToText.from_pretrained(path).state_dict())


def library_logprobs(folder: str, trajectory: Trajectory, turn: int) -> np.ndarray:
    """Of a stored reply, by the library's own pass over stored tokens and stored pictures."""
    stored = trajectory.turns[turn]
    assert stored.prompt_tokens is not None
    assert stored.response_tokens is not None
    by_key = {picture_key(t.image): t.image for t in trajectory.turns if t.image is not None}
    pictures = [open_picture(by_key[shown.key]) for shown in stored.prompt_images]
    made = AutoProcessor.from_pretrained(folder)(
        text=["<image>" * len(pictures)], images=[pictures], return_tensors="pt"
    )
    whole = np.concatenate([stored.prompt_tokens, stored.response_tokens]).astype(np.int64)
    with torch.no_grad():
        logits = AutoModelForImageTextToText.from_pretrained(folder)(
            input_ids=torch.from_numpy(whole)[None],
            pixel_values=made["pixel_values"],
            pixel_attention_mask=made["pixel_attention_mask"],
        ).logits[0, len(stored.prompt_tokens) - 1 : -1]
    own = logits.log_softmax(-1)[range(len(logits)), stored.response_tokens.tolist()]
    return own.numpy()


def test_one_step_moves_language_and_vision_and_stores_what_was_seen(
    folder: str, make_config: Make, tmp_path: Path
) -> None:
    config = seeing(make_config, folder, "checkpoint.every=1", "loss.kl_coef=0.1")
    assert start(config, tmp_path / "run", Listener()) == "finished"
    run = open_run(tmp_path / "run")
    metrics = {
        row["key"]: row["value"]
        for row in run.sql("SELECT key, value FROM metrics WHERE step = 1").to_pylist()
    }
    # The update sees the pictures that sampling saw: the first ratio is 1, and so the KL is 0.
    assert abs(metrics["policy/mismatch_kl"]) < 1e-6
    assert abs(metrics["policy/ref_kl"]) < 1e-6
    # I(X;Z) scores replies under the prompt and the picture that sampled them, and under others.
    assert abs(metrics["info/first_turn/sampling_gap"]) < 1e-4
    assert np.isfinite(metrics["info/first_turn/mutual_information"])

    trajectories = run.trajectories_of_step(1)
    assert len(trajectories) == 8
    for trajectory in trajectories:
        for turn in trajectory.turns:
            assert turn.frame is not None
            assert turn.image == to_png(turn.frame)
            keys = [picture_key(t.image or b"") for t in trajectory.turns[: turn.index + 1]]
            assert [shown.key for shown in turn.prompt_images] == keys
            assert turn.prompt_tokens is not None
            assert turn.prompt_tokens.max() < FIRST_IMAGE_ID
    for turn in range(trajectories[0].num_turns):
        recorded = trajectories[0].turns[turn].logprobs
        assert recorded is not None
        wanted = library_logprobs(folder, trajectories[0], turn)
        assert np.abs(recorded - wanted).max() < 1e-4
    assert len({t.prompt_key for t in trajectories}) == 2
    assert verify(tmp_path / "run").problems == ()

    saved = tmp_path / "run" / "checkpoints" / "step_000001" / "model"
    before, after = weights(folder), weights(saved)
    assert before.keys() == after.keys()
    for part in ("vision_model", "connector", "text_model", "lm_head"):
        names = [name for name in before if part in name and before[name].ndim == 2]
        assert any(not torch.equal(before[name], after[name]) for name in names), part
    assert load_chat(saved, shows_images=True).images is not None  # with its processor


def test_only_tokens_of_replies_train(one_folder: str, make_config: Make, tmp_path: Path) -> None:
    """A place of a picture is prompt: it has no loss, no log-prob and no advantage."""
    from echoscope.core.update.batch import credit_rewards, pack

    config = seeing(make_config, one_folder)
    start(config, tmp_path / "run", Listener())
    trajectories = open_run(tmp_path / "run").trajectories_of_step(1)
    image_token = load_chat(one_folder, shows_images=True).images
    assert image_token is not None
    batch = pack(trajectories, [credit_rewards(t, 1.0, "trajectory") for t in trajectories])
    is_place = (batch.input_ids == image_token.token_id) & (batch.turn_index < 0)
    assert int(is_place.sum()) == PLACES * sum(t.num_turns for t in trajectories)
    assert not (batch.loss_mask & is_place).any()
    assert int(batch.loss_mask.sum()) == sum(t.num_sampled_tokens for t in trajectories)


@pytest.mark.long
@pytest.mark.parametrize(
    "overrides",
    [
        ("context.images=last",),
        ("context.history_turns=1",),
        ("model.packing=false",),
        ("model.gradient_checkpointing=true",),
        ("model.lora={rank: 2, target_modules: all-linear}", "loss.kl_coef=0.1"),
        ("advantage.kind=gae", "critic.kind=head"),
        ("advantage.kind=gae", "critic.kind=model"),
        (
            "collection={mode: async, max_staleness: 1}",
            "off_policy={old_logprobs: trainer, correction: tis}",
            "steps=2",
        ),
    ],
    ids=lambda overrides: overrides[0],
)
def test_with_every_kind_of_update_and_collection(
    one_folder: str, make_config: Make, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    config = seeing(make_config, one_folder, "diagnostics.gradient.every=1", *overrides)
    assert start(config, tmp_path / "run", Listener()) == "finished"
    run = open_run(tmp_path / "run")
    keys = ("policy/mismatch_kl", "info/first_turn/sampling_gap", "loss/total")
    found = run.sql(f"SELECT key, value FROM metrics WHERE step = 1 AND key IN {keys}").to_pylist()
    values = {row["key"]: row["value"] for row in found}
    assert np.isfinite(values["loss/total"])
    assert abs(values["policy/mismatch_kl"]) < 1e-6
    assert abs(values["info/first_turn/sampling_gap"]) < 1e-4
    shown = run.sql("SELECT len(prompt_images) AS n FROM tokens ORDER BY turn DESC").to_pylist()
    is_one = overrides[0] in ("context.images=last", "context.history_turns=1")
    assert shown[0]["n"] == (1 if is_one else 2)


def test_a_resumed_run_goes_on_seeing(one_folder: str, make_config: Make, tmp_path: Path) -> None:
    config = seeing(make_config, one_folder, "steps=2", "checkpoint.every=1")
    start(config, tmp_path / "whole", Listener())
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    resume(tmp_path / "parts", Listener(), checkpoint=1)
    whole, parts = (open_run(tmp_path / name) for name in ("whole", "parts"))
    for one, other in zip(
        whole.trajectories_of_step(2), parts.trajectories_of_step(2), strict=True
    ):
        assert [turn.response for turn in one.turns] == [turn.response for turn in other.turns]
        assert [turn.image for turn in one.turns] == [turn.image for turn in other.turns]
        assert one.prompt_key == other.prompt_key


def test_a_text_policy_stores_pictures_and_reads_text(
    tiny_model: Path, make_config: Make, tmp_path: Path
) -> None:
    """With `render: rgb` alone, nothing but the stored pictures is different."""
    drawn = seeing(make_config, str(tiny_model), "context.images=none")
    plain = seeing(make_config, str(tiny_model), "context.images=none", render="none")
    for name, config in (("drawn", drawn), ("plain", plain)):
        start(config, tmp_path / name, Listener())
    first, second = (open_run(tmp_path / name) for name in ("drawn", "plain"))
    for with_pictures, without in zip(
        first.trajectories_of_step(1), second.trajectories_of_step(1), strict=True
    ):
        assert with_pictures.prompt_key == without.prompt_key
        for one, other in zip(with_pictures.turns, without.turns, strict=True):
            assert (one.image is None, other.image is None) == (False, True)
            assert one.prompt_images == ()
            assert np.array_equal(one.logprobs, other.logprobs)
    metrics = "SELECT key, value FROM metrics WHERE key NOT LIKE 'time/%' ORDER BY ALL"
    assert repr(first.sql(metrics).to_pylist()) == repr(second.sql(metrics).to_pylist())


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "group", "message"),
    [
        (["engine.kind=vllm"], {}, "engine.kind is vllm, which samples from text alone"),
        (["engine.kind=ray"], {}, "engine.kind is ray, which samples from text alone"),
        ([], {"render": "none"}, "no entry of envs.train draws pictures: add render: rgb"),
        (["from_run=somewhere"], {}, "from_run has its prompts already"),
        ([], {"render": "ascii"}, "render"),
    ],
)
def test_settings_that_do_not_go_together(
    make_config: Make, overrides: list[str], group: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, ValidationError), match=message):
        seeing(make_config, "x", *overrides, **group)


def test_a_text_model_is_refused_before_anything_is_written(
    tiny_model: Path, make_config: Make, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="has no vision tower: use a model of the type"):
        start(seeing(make_config, str(tiny_model)), tmp_path / "run", Listener())
    assert not (tmp_path / "run").exists()


def test_a_world_with_tools_is_refused_before_anything_is_written(
    one_folder: str, make_config: Make, tmp_path: Path
) -> None:
    config = seeing(make_config, one_folder, env="price_list", params={})
    with pytest.raises(ConfigError, match="price_list has tools"):
        start(config, tmp_path / "run", Listener())
    assert not (tmp_path / "run").exists()


def test_stored_prompts_with_pictures_do_not_train_a_text_policy(
    one_folder: str, make_config: Make, tmp_path: Path
) -> None:
    start(seeing(make_config, one_folder), tmp_path / "run", Listener())
    offline = make_config(f"model.path={one_folder}", f"from_run={tmp_path / 'run'}", "steps=1")
    with pytest.raises(ConfigError, match="sampled from prompts with pictures"):
        start(offline, tmp_path / "again", Listener())


def test_a_stored_run_with_pictures_is_not_scored_again(
    one_folder: str, make_config: Make, tmp_path: Path
) -> None:
    """Its prompts hold the image token: a score without the picture would be wrong."""
    config = seeing(make_config, one_folder, "checkpoint.every=1")
    start(config, tmp_path / "run", Listener())
    reader = open_run(tmp_path / "run")
    with pytest.raises(RescoringError, match="sampled from prompts with pictures"):
        with_information(table_of_run(reader), reader, by_checkpoint(reader, 1))
