"""Configurations: what is read, what is refused and in which words, what the documentation says of them."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import pytest

from fl_sim import config_keys
from fl_sim.config import ConfigError, RunConfig, parse_assignments, parse_value, read_by, run_keys
from fl_sim.experiments.plan.run_plan import idle_settings
from fl_sim.strategies.registry import load_strategy

REPOSITORY = Path(__file__).resolve().parents[2]


def test_a_configuration_survives_being_recorded() -> None:
    privacy = {"q_u": 1, "user-sentences": 40}
    given = {"model.lora_targets": ["c_attn", "c_fc"], "privacy": privacy, "engine.gpus_per_node": 0.5}
    config = RunConfig.from_mapping(given)
    assert config.model.lora_targets == ("c_attn", "c_fc")
    assert RunConfig.from_mapping(config.model_dump(mode="json")) == config


def test_keys_are_nested_dotted_or_with_dashes_and_both_forms_of_a_section_join() -> None:
    for form in ({"privacy.q_u": 0.5}, {"privacy": {"q_u": 0.5}}, {"privacy.q-u": 0.5}):
        assert RunConfig.from_mapping(form).privacy.q_u == 0.5
    config = RunConfig.from_mapping({"privacy.q_u": 0.5, "privacy": {"q_s": 0.25}})
    assert (config.privacy.q_u, config.privacy.q_s) == (0.5, 0.25)


def test_whole_numbers_are_numbers_and_nothing_else_is() -> None:
    assert RunConfig.from_mapping({"privacy.q_u": 1}).privacy.q_u == 1.0
    for wrong in ("1", True, [1], {"x": 1}):
        with pytest.raises(ConfigError, match=r"privacy\.q_u is .*; allowed: a number in \[1e-15, 1\]"):
            RunConfig.from_mapping({"privacy.q_u": wrong})


def test_every_mistake_is_named_once() -> None:
    wrong = {"rounds": 0, "privacy": {"q_u": 2.0, "user_sentences": "x", "sigma": 1}, "engine": 3}
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_mapping(wrong)
    message = str(caught.value)
    for key in ("rounds is 0", "privacy.q_u is 2.0", "privacy.user_sentences is 'x'", "'privacy.sigma'", "engine is 3"):
        assert message.count(key) == 1
    assert "\n" not in message


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_no_number_is_infinite(value: float) -> None:
    for key in run_keys():
        with pytest.raises(ConfigError, match=rf"^{key} is "):
            RunConfig.from_mapping({key: value})


def test_a_local_step_at_which_a_node_fails_for_users_of_many_sentences_is_refused() -> None:
    """Whether a node fails must depend on nothing private (docs/privacy.md, section 2)."""
    with pytest.raises(ConfigError, match=r"^local\.learning_rate is 4e\+38; allowed: a number in \(0, 1e\+06\]$"):
        RunConfig.from_mapping({"local.learning_rate": 4e38})


def test_every_key_refuses_a_table_and_says_what_it_takes() -> None:
    for name, key in run_keys().items():
        if key.allowed == "a table":
            continue
        strategy = read_by(name)[0] if name.startswith("privacy.") else "uedp"
        with pytest.raises(ConfigError) as caught:
            RunConfig.from_mapping({"privacy.strategy": strategy, name: {"x": 1}})
        assert str(caught.value) == f"{name} is a section; allowed: {key.allowed}"


# Files and overrides


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "run.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "\ufeffseed = 3\n[privacy]\nq_u = 0.5\nq_s = 0.5")
    config = RunConfig.load(file, {"privacy.q_u": 0.25})
    assert (config.seed, config.privacy.q_u, config.privacy.q_s) == (3, 0.25, 0.5)


def test_a_target_takes_the_place_of_the_files_noise_and_vice_versa(tmp_path: Path) -> None:
    by_noise = write(tmp_path, "[privacy]\nnoise_multiplier = 2.0\nq_u = 0.5")
    config = RunConfig.load(by_noise, {"privacy.target_epsilon": 1.5})
    assert (config.privacy.noise_multiplier, config.privacy.target_epsilon) == (None, 1.5)
    assert config.privacy.q_u == 0.5
    by_target = write(tmp_path, "privacy.target_epsilon = 2.0")
    config = RunConfig.load(by_target, {"privacy": {"noise_multiplier": 3.0}})
    assert (config.privacy.noise_multiplier, config.privacy.target_epsilon) == (3.0, None)
    privacy = config.changed({"privacy.target_epsilon": 1.5}).privacy
    assert (privacy.noise_multiplier, privacy.target_epsilon) == (None, 1.5)


def test_two_sources_of_noise_in_one_place_are_refused(tmp_path: Path) -> None:
    both = {"privacy.noise_multiplier": 2.0, "privacy.target_epsilon": 1.5}
    with pytest.raises(ConfigError, match="not both"):
        RunConfig.load(None, both)
    with pytest.raises(ConfigError, match="not both"):
        RunConfig.load(write(tmp_path, "[privacy]\nnoise_multiplier = 2.0\ntarget_epsilon = 1.5"))


def test_mistakes_of_a_file_name_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "rounds = 0")
    with pytest.raises(ConfigError) as caught:
        RunConfig.load(file, {"rounds": 3})
    assert str(caught.value).startswith(f"{file}: rounds is 0")


def test_a_bare_name_is_a_configuration_that_ships_unless_it_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bundled").mkdir()
    assert RunConfig.load("irc") == RunConfig.load(REPOSITORY / "conf" / "irc.toml")
    assert RunConfig.load("bundled") == RunConfig.load(REPOSITORY / "conf" / "bundled.toml")
    with pytest.raises(ConfigError, match=r"^icr: there is no such file; allowed: a TOML file, or bundled, .*irc, "):
        RunConfig.load("icr")
    (tmp_path / "irc").write_text("rounds = 7")
    assert RunConfig.load("irc").rounds == 7


@pytest.mark.parametrize("file", sorted((REPOSITORY / "conf").glob("*.toml")), ids=lambda file: file.name)
def test_the_configurations_that_ship(file: Path) -> None:
    config = RunConfig.load(file)
    assert idle_settings(config) == []
    assert (
        file.name in ("bundled.toml", "irc.toml")
        or file.name.startswith("irc_")
        or file.stem.replace("_deidentified", "").startswith(f"conll2003_{config.privacy.strategy}")
    )


def test_bundled_toml_is_what_happens_without_any_configuration() -> None:
    stated, default = RunConfig.load(REPOSITORY / "conf" / "bundled.toml"), RunConfig()
    numbers = load_strategy("uedp").numbers
    assert numbers(stated.privacy) == numbers(default.privacy)
    left_out = dict.fromkeys(numbers(default.privacy))
    assert stated.model_copy(update={"privacy": stated.privacy.model_copy(update=left_out)}) == default


def test_the_documentation_is_up_to_date() -> None:
    script = runpy.run_path(str(REPOSITORY / "scripts" / "update_configuration_docs.py"))
    documented = (REPOSITORY / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert script["updated"](documented) == documented, "run: python scripts/update_configuration_docs.py"


# What is written on the command line


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("rounds", "30", 30),
        ("privacy.q_u", "1", 1),
        ("privacy.q_u", ".5", 0.5),
        ("privacy.delta", "1e-5", 1e-5),
        ("privacy.user_sentences", "40", 40),
        ("privacy.user_sentences", "unbounded", "unbounded"),
        ("privacy.user_sentences", "'corpus'", "corpus"),
        ("model.lora_targets", "['q', 'v']", ["q", "v"]),
        ("out", "2024", "2024"),
        ("out", "2024-11-20", "2024-11-20"),
        ("out", "true", "true"),
        ("out", "'quoted # twice'", "quoted # twice"),
        ("out", "runs/a b", "runs/a b"),
        ("corpus.path", "[x]", "[x]"),
        ("model.name", "1e5", "1e5"),
        ("rounds", "3\nseed = 4", "3\nseed = 4"),
        ("unknown", "3", 3),
    ],
)
def test_values_on_the_command_line(key: str, text: str, value: Any) -> None:
    assert parse_value(key, text) == value
    assert type(parse_value(key, text)) is type(value)


def test_assignments() -> None:
    given = parse_assignments(["privacy.q-u=0.5", " rounds = 3 ", "out=a=b"])
    assert given == {"privacy.q_u": 0.5, "rounds": 3, "out": "a=b"}
    assert parse_assignments(["rounds=3", "rounds=3"]) == {"rounds": 3}
    for wrong in ("rounds", "=3", ""):
        with pytest.raises(ConfigError, match=r"section\.key=value"):
            parse_assignments([wrong])
    with pytest.raises(ConfigError, match="rounds is 3 and 4; allowed: one value"):
        parse_assignments(["rounds=3", "rounds=4"])


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("z", "privacy.noise_multiplier"),
        ("privacy.w", "privacy.user_cap"),
        ("epsilon", "privacy.target_epsilon"),
        ("noise_multiplier", "privacy.noise_multiplier"),
        ("privacy.seed", "seed"),
        ("privacy.epsilon-budget", "privacy.epsilon_budget"),
        ("privacy.epsilonbudget", "privacy.epsilon_budget"),
        ("Privacy", "privacy"),
        ("evalution", "evaluation"),
        ("round", "rounds"),
        ("xyzzy", None),
    ],
)
def test_the_nearest_key(wrong: str, meant: str | None) -> None:
    assert config_keys.nearest(wrong.replace("-", "_"), run_keys()) == meant


def test_every_key_is_described() -> None:
    assert [name for name, key in run_keys().items() if not key.allowed or not key.meaning] == []


# Settings that nothing reads


@pytest.mark.parametrize(
    ("settings", "idle"),
    [
        ({}, []),
        ({"local.epochs": 2}, ["local.epochs"]),
        ({"local.epochs": 2, "privacy.strategy": "user_level"}, []),
        ({"local.epochs": 2, "privacy.strategy": "user_level", "local.update": "gradients"}, ["local.epochs"]),
        ({"local.optimizer": "adam"}, ["local.optimizer"]),
        ({"local.optimizer": "adam", "privacy.strategy": "user_level"}, []),
        ({"local.update": "gradients", "privacy.strategy": "user_level"}, []),
        ({"local.batch_size": 4, "privacy.strategy": "published"}, ["local.batch_size"]),
        ({"local.update": "steps", "local.epochs": 2, "privacy.strategy": "published"}, ["local.epochs"]),
        ({"local.update": "steps"}, ["local.update"]),
        ({"local.update": "steps", "local.batch_size": 4, "privacy.strategy": "noiseless"}, []),
        ({"local.batch_size": 4, "privacy.strategy": "noiseless"}, ["local.batch_size"]),
        ({"server.momentum": 0.9}, ["server.momentum"]),
        ({"server.momentum": 0.9, "server.optimizer": "sgd"}, []),
        ({"server.beta_1": 0.5, "server.optimizer": "sgd"}, ["server.beta_1"]),
        ({"model.hidden": 64, "model.name": "gpt2"}, ["model.hidden"]),
        ({"model.hidden": 64, "model.name": "awd-lstm"}, []),
        ({"model.heads": 2, "model.name": "awd-lstm"}, ["model.heads"]),
        ({"model.embedding": 64, "model.name": "small-gpt2"}, ["model.embedding"]),
        ({"model.drop_input": 0.1, "model.name": "awd-lstm"}, ["model.drop_input"]),
        ({"model.drop_input": 0.1, "model.name": "awd-lstm", "model.dropout": 1}, []),
        ({"model.pooling": "cls"}, ["model.pooling"]),
        ({"model.pooling": "cls", "task": "classification"}, []),
        ({"corpus.feature_cache": "f", "task": "classification"}, ["corpus.feature_cache"]),
        ({"corpus.feature_cache": "f", "task": "classification", "model.tune": "head"}, []),
        ({"model.lora_alpha": 4}, ["model.lora_alpha"]),
        ({"model.lora_alpha": 4, "model.lora_rank": 2}, []),
        ({"engine.gpus_per_node": 0.5}, []),
        ({"engine.gpus_per_node": 0.5, "engine.name": "inline"}, ["engine.gpus_per_node"]),
        ({"engine.gpus_per_node": 0.0, "engine.name": "inline"}, []),
        ({"privacy.target_unit": "user"}, ["privacy.target_unit"]),
        ({"privacy.target_unit": "user", "privacy.epsilon_budget": 3.0}, []),
        ({"privacy.clip_count_noise": 3.0}, ["privacy.clip_count_noise"]),
        ({"privacy.clip_count_noise": 3.0, "privacy.clip_quantile": 0.5}, []),
    ],
)
def test_settings_without_effect_are_named(settings: dict[str, Any], idle: list[str]) -> None:
    said = idle_settings(RunConfig.from_mapping(settings))
    assert [sentence.partition(" ha")[0] for sentence in said] == idle
