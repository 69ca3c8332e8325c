"""Settings: recipes, files, overrides, what may change live, one clear line for every mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from echoscope.core.config.loading import (
    ConfigError,
    apply_settings,
    live_fields,
    live_schema,
    load_config,
    merge,
    parse_override,
    recipe_description,
    recipe_names,
    validate,
)
from echoscope.core.config.loss import GspoLossConfig, ModelCriticConfig
from echoscope.core.config.settings import RunConfig
from echoscope.diagnostics.tools.setting_errors import field_names

BANDIT = "envs.train=[{env: bandit}]"


def bandit(*overrides: str) -> RunConfig:
    return load_config(overrides=[BANDIT, *overrides])


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# -- recipes and files ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_resolves_and_says_what_it_is(name: str) -> None:
    assert load_config(name).envs.train
    assert len(recipe_description(name)) > 10


def test_a_file_extends_a_recipe(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.yaml", "extends: frozen_lake\nsteps: 3\noptim: {lr: 0.5}\n")
    mine, recipe = load_config(file=file), load_config("frozen_lake")
    assert (mine.steps, mine.optim.lr) == (3, 0.5)
    assert mine.envs == recipe.envs
    assert mine.eval == recipe.eval


def test_overrides_come_last(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.yaml", "extends: frozen_lake\nsteps: 3\n")
    assert load_config(file=file, overrides=["steps=4", "steps=5"]).steps == 5


def test_a_resolved_configuration_loads_again_unchanged() -> None:
    config = bandit("critic.kind=head", "loss.kind=gspo", "model.lora.rank=8")
    assert validate(config.model_dump(mode="json")) == config


def test_a_configuration_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValidationError):
        bandit().steps = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not valid YAML: while parsing a flow node"),
        ("- 1", "holds a list, but must hold a mapping"),
        ("", "holds a NoneType, but must hold a mapping"),
        ("\x00", "is not valid YAML: unacceptable character"),
        ("extends: frozen_lak", "unknown recipe 'frozen_lak'; did you mean 'frozen_lake'?"),
        ("extends: [a]", "unknown recipe \"['a']\"; known: "),
        ("extends: frozen_lake\n7: 8", "7 is 7, but keys must be strings"),
        ("extends: frozen_lake\nenv: 8", "unknown key 'env'; did you mean 'envs'?"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path / "bad.yaml", text)
    with pytest.raises(ConfigError) as caught:
        load_config(file=file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere\.yaml: No such file"):
        load_config(file=tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(file=tmp_path)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load_config(file=tmp_path / "bad.yaml")


def test_a_tag_in_a_file_runs_nothing(tmp_path: Path) -> None:
    file = write(tmp_path / "bad.yaml", f"name: !!python/object/apply:os.mkdir ['{tmp_path}/x']")
    with pytest.raises(ConfigError, match="could not determine a constructor"):
        load_config(file=file)
    assert not (tmp_path / "x").exists()


def test_unknown_recipe_suggests_one() -> None:
    with pytest.raises(
        ConfigError, match="unknown recipe 'frozenlake'; did you mean 'frozen_lake'"
    ):
        load_config("frozenlake")
    with pytest.raises(ConfigError, match=r"unknown recipe '\.\./recipes/demo'"):
        load_config("../recipes/demo")


# -- overrides -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("steps=3", "steps", 3),
        ("optim.lr=1e-4", "optim.lr", 1e-4),  # YAML 1.1 reads this as text
        ("optim.lr=0.5", "optim.lr", 0.5),
        ("a.b.c=true", "a.b.c", True),
        ("model.lora=null", "model.lora", None),
        ("name='3'", "name", "3"),
        ("context.system=a=b", "context.system", "a=b"),
        ("context.system=", "context.system", None),
        ("optim.betas=[0.9, 0.95]", "optim.betas", [0.9, 0.95]),
        (" steps =3", "steps", 3),
        ("name=inf", "name", "inf"),  # a name, not a number that no setting can be
        ("name=nan", "name", "nan"),
    ],
)
def test_an_override_is_a_dotted_key_and_a_yaml_value(word: str, key: str, value: Any) -> None:
    override = parse_override(word)
    assert override == (key, value)
    assert type(override[1]) is type(value)


@pytest.mark.parametrize("word", ["steps", "=3", ".a=3", "a.=3", "a..b=3", ""])
def test_a_word_without_key_or_value_says_how_to_write_it(word: str) -> None:
    with pytest.raises(ConfigError, match=r"is not KEY=VALUE; write for example optim\.lr=1e-4"):
        parse_override(word)


@pytest.mark.parametrize("word", ["a=[", "a='b", "a={b"])
def test_a_value_that_is_not_yaml_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="is not valid YAML; quote it"):
        parse_override(word)


def test_a_number_addresses_an_item_of_a_list() -> None:
    config = load_config("frozen_lake", overrides=["envs.train.0.params.size=3"])
    assert config.envs.train[0].params["size"] == 3
    assert config.envs.train[0].params["holes"] == 2


def test_an_override_switches_something_on() -> None:
    assert bandit().model.lora is None
    lora = bandit("model.lora.rank=8").model.lora
    assert lora is not None
    assert (lora.rank, lora.alpha) == (8, 64.0)
    assert bandit("model.lora.rank=8", "model.lora=null").model.lora is None


def test_another_kind_replaces_the_settings_of_the_one_before() -> None:
    config = bandit("loss.dual_clip=2", "loss.clip_low=0.1", "loss.kind=gspo", "loss.clip_high=0.4")
    assert config.loss == GspoLossConfig(clip_high=0.4)  # not 0.1: that was another loss's
    assert bandit("loss.clip_low=0.1", "loss.kind=clip").loss.clip_low == 0.1


def test_kinds_replace_each_other_between_file_and_override(tmp_path: Path) -> None:
    text = yaml.safe_dump(
        {"envs": {"train": [{"env": "bandit"}]}, "critic": {"kind": "head", "detach": True}}
    )
    file = write(tmp_path / "head.yaml", text)
    config = load_config(file=file, overrides=["critic.kind=model", "critic.lr=0.5"])
    assert config.critic == ModelCriticConfig(lr=0.5)


def test_merge_leaves_both_sides_as_they_were() -> None:
    base = {"a": {"b": 1}, "list": [{"c": 2}]}
    over = {"a": {"d": 3}, "list": {"0": {"c": 4}}}
    assert merge(base, over) == {"a": {"b": 1, "d": 3}, "list": [{"c": 4}]}
    assert base == {"a": {"b": 1}, "list": [{"c": 2}]}
    assert over == {"a": {"d": 3}, "list": {"0": {"c": 4}}}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optim.lrr=1"], "unknown key 'optim.lrr'; did you mean 'lr'?"),
        (["selection.stategy=top_p"], "unknown key 'selection.stategy'; did you mean 'strategy'?"),
        (["envs.train.0.group=3"], "unknown key 'envs.train.0.group'; did you mean 'groups'?"),
        (
            ["critic.lr=1"],
            "unknown key 'critic.lr'; known: kind; for this key set critic.kind=head or "
            "critic.kind=model",
        ),
        (
            ["advantage.function=m:f"],
            "unknown key 'advantage.function'; known: kind; for this key set advantage.kind=custom",
        ),
        (["loss.kind=gspo", "loss.clip_hgh=1"], "unknown key 'loss.clip_hgh'; did you mean"),
        (
            ["nonsense=1"],
            "unknown key 'nonsense'; known: advantage, branched_from, checkpoint",
        ),
        (["envs.train.3.groups=3"], "envs.train.3: envs.train is a list of 1; use envs.train.0"),
        (["critic.kind=heads"], "critic.kind is 'heads', but must be one of none, head, model"),
        (["optim.lr=-1"], "optim.lr is -1, but must be more than 0"),
        (["optim.lr=fast"], "optim.lr is 'fast', but must be a valid number"),
        (["optim.lr=.nan"], "optim.lr is nan, but must be a finite number"),
        (["optim.lr=.inf"], "optim.lr is inf, but must be a finite number"),
        (["steps=1.5"], "steps is 1.5, but must be a valid integer"),
        (["threads=0"], "threads is 0, but must be at least 1"),
        (["model.dtype=float16"], "model.dtype is 'float16', but must be 'auto', "),
        (["model.lora.rank=0"], "model.lora.rank is 0, but must be at least"),
        (["envs=3"], "envs is 3, but must be a mapping"),
        (["envs.train=[]"], "envs.train is [], but must have at least 1 item"),
        (
            ["trainer.copy_checkpoints=true"],
            "trainer.copy_checkpoints is true, but trainer.copy_to names no place for them",
        ),
        (
            ["engine={kind: openai, weights_folder: /mnt/weights}"],
            "engine.weights_folder is /mnt/weights, but only engine.weights=vllm goes through",
        ),
        (
            ["trainer.copy_to=/mnt/runs"],
            "trainer.copy_to is '/mnt/runs', but must be the address of a root, such as",
        ),
        (["name=../x"], "name is '../x', but must match pattern"),
        (["loss.clip_low.x=3"], "loss.clip_low is {'x': 3}, but must be a valid number"),
        (["reward.shaping=[{name: a}]"], "reward.shaping.0.function is missing; give it in the"),
    ],
)
def test_a_bad_setting_names_key_value_and_rule(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bandit(*overrides)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_environments_have_no_default() -> None:
    with pytest.raises(
        ConfigError, match="envs is missing; give it in the recipe or as envs=VALUE"
    ):
        load_config()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["advantage.kind=gae"], "needs values: set critic.kind to head or model"),
        (
            ["reward.credit=turn", "reward.normalization=grpo"],
            "reward.normalization must be arpo, not grpo",
        ),
        (["envs.group_size=1"], "envs.group_size must be at least 2, not 1"),
        (["envs.eval=[{env: a}, {env: a}]"], "has the tags ['a', 'a'], but each must be unique"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        bandit(*overrides)
    assert message in str(caught.value)


def test_without_reasoning_no_reasoning_tag_is_forced() -> None:
    assert bandit().context.force_think
    assert not bandit("context.reasoning=false").context.force_think


def test_field_names_of_a_union_are_those_of_all_its_kinds() -> None:
    of_both = ["kind", "lr", "warmup_steps"]
    assert field_names(["critic"], RunConfig) == sorted(["detach", "path", *of_both])
    assert field_names(["critic", "none"], RunConfig) == ["kind"]


# -- live settings -------------------------------------------------------------------------------


def test_live_settings_change_together() -> None:
    settings = {"selection.strategy": "top_p", "selection.value": 0.5, "optim.lr": 1e-3}
    changed = apply_settings(bandit(), settings)
    assert (changed.selection.strategy, changed.selection.value) == ("top_p", 0.5)
    assert changed.optim.lr == 1e-3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "nothing to set; write for example selection.value=0.5"),
        ({"optim.lrr": 1}, "unknown key 'optim.lrr'; did you mean 'optim.lr'?"),
        ({"optim.lr.x": 1}, "unknown key 'optim.lr.x'; did you mean 'optim.lr'?"),
        ({"": 1}, "unknown key ''"),
        ({"seed": 1}, "seed cannot change while the run is going; live settings: checkpoint.every"),
        ({"optim": {"lr": 1}}, "optim cannot change while the run is going"),
        ({"optim.lr": 1e-3, "seed": 1}, "seed cannot change while the run is going"),
        ({"optim.lr": 1e-3, "steps": 0}, "steps is 0, but must be at least"),
        ({"selection.strategy": "top_q"}, "selection.strategy is 'top_q', but must be"),
        ({"selection.value": None}, "selection.value is None, but must be a valid number"),
        ({"optim.lr": {"a": 1}}, "optim.lr is {'a': 1}, but must be a valid number"),
    ],
)
def test_one_bad_setting_refuses_them_all(settings: dict[str, Any], message: str) -> None:
    config = bandit()
    with pytest.raises(ConfigError) as caught:
        apply_settings(config, settings)
    assert str(caught.value).startswith(message)
    assert config == bandit()


def test_what_may_change_live() -> None:
    assert set(live_fields()) >= {
        "steps",
        "optim.lr",
        "selection.strategy",
        "selection.value",
        "loss.clip_high",
        "loss.kl_coef",
        "loss.entropy_coef",
        "sampling.temperature",
        "eval.every",
        "checkpoint.every",
    }
    assert not {"seed", "optim.betas", "model.path", "loss.kind"} & set(live_fields())


@pytest.mark.parametrize("kind", ["clip", "gspo", "cispo"])
def test_the_live_schema_tells_a_form_all_it_needs(kind: str) -> None:
    config = bandit(f"loss.kind={kind}", "optim.lr=0.25")
    schema = live_schema(config)
    assert set(schema) == set(live_fields())
    assert schema["optim.lr"] == {
        "description": "Learning rate of the policy.",
        "exclusiveMinimum": 0,
        "maximum": 10.0,
        "type": "number",
        "value": 0.25,
    }
    assert schema["selection.strategy"]["enum"] == ["none", "top_p", "top_k", "top_k_abs", "min_p"]
    present = {key: entry["value"] for key, entry in schema.items()}
    assert apply_settings(config, present) == config


def test_an_override_turns_a_sink_on() -> None:
    config = load_config("bandit", overrides=["sinks.tensorboard=true", "sinks.episodes=3"])
    assert config.sinks.active() == ("tensorboard",)
    assert load_config("bandit", overrides=["sinks.episodes=3"]).sinks.active() == ()


@pytest.mark.parametrize(
    ("recipe", "overrides", "name", "values"),
    [
        ("frozen_lake", (), None, {}),
        ("frozen_lake", ("steps=7", "seed=3", "eval.every=5"), None, {}),
        ("frozen_lake", ("optim.lr=0.004",), "frozen_lake", {"optim.lr": 1.5e-4}),
        # The nearest recipe from which the run differs.
        ("collapse-entropy", (), "healthy-frozen-lake", {"loss.entropy_coef": 0.0}),
        (
            "collapse-entropy",
            ("optim.lr=0.001",),
            "collapse-entropy",
            {"optim.lr": 3e-4},
        ),
    ],
)
def test_newcomer_h1_a_run_knows_its_recipe_and_where_it_differs(
    recipe: str, overrides: tuple[str, ...], name: str | None, values: dict[str, object]
) -> None:
    origin = load_config(recipe, overrides=overrides).recipe
    assert (origin and origin.name, dict(origin.values) if origin else {}) == (name, values)


def test_newcomer_h1_a_file_knows_the_recipe_that_it_extends(tmp_path: Path) -> None:
    shaping = "reward: {shaping: [{name: a, function: length}]}"
    text = f"extends: frozen_lake\noptim: {{lr: 0.004}}\n{shaping}"
    origin = load_config(file=write(tmp_path / "mine.yaml", text)).recipe
    assert origin is not None
    assert (origin.name, origin.values) == (
        "frozen_lake",
        {"reward.shaping": [], "optim.lr": 1.5e-4},
    )
