"""The settings of a run as Python gives them: names, values, and mistakes by the names that were given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_sim
from fl_sim.api.settings import configuration, named_as_given
from fl_sim.cli.flags import KEYS
from fl_sim.config import ConfigError, run_keys
from fl_sim.config_keys import SHORT_NAMES


def test_a_short_name_is_that_of_the_flag() -> None:
    assert set(SHORT_NAMES.values()) <= set(run_keys())
    flags = {name: KEYS[key][0].removeprefix("--").replace("-", "_") for name, key in SHORT_NAMES.items()}
    assert {name for name, flag in flags.items() if name != flag} == {"noise_multiplier"}, "which is --z"


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({"corpus": "irc"}, "corpus.path", "irc"),
        ({"corpus": Path("mine")}, "corpus.path", "mine"),
        ({"corpus": {"path": "irc"}}, "corpus.path", "irc"),
        ({"target_epsilon": 4}, "privacy.target_epsilon", 4.0),
        ({"q_s": np.float32(0.5)}, "privacy.q_s", 0.5),
        ({"rounds": np.int64(3)}, "rounds", 3),
        ({"model": "small-gpt2", "model__hidden": 64}, "model.hidden", 64),
        ({"model": {"hidden": 64}, "engine": "inline"}, "model.hidden", 64),
        ({"checkpoint_every": 2}, "checkpoint_every", 2),
    ],
)
def test_names_and_values(settings: dict[str, Any], key: str, value: Any) -> None:
    for chosen in (configuration(None, settings), configuration(settings, {})):
        for part in key.split("."):
            chosen = getattr(chosen, part)
        assert (chosen, type(chosen)) == (value, type(value))


def test_an_open_corpus_stands_for_its_name_or_folder(corpus: Path) -> None:
    assert configuration(None, {"corpus": fl_sim.open_corpus("irc")}).corpus.path == "irc"
    assert configuration(None, {"corpus": fl_sim.open_corpus(corpus)}).corpus.path == str(corpus)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"target_epsilo": 4},
            r"^'target_epsilo' is not .*; did you mean 'target_epsilon'\? allowed: corpus, strategy,",
        ),
        ({"z": 4}, "^'z' is not a configuration key; did you mean 'noise_multiplier'"),
        ({"hidden": 4}, "did you mean 'model__hidden'.* and any other key with its section, such as model__hidden$"),
        ({"privacy__q_z": 4}, r"^'privacy__q_z' is not a configuration key; .*known in privacy: strategy,"),
        (
            {"target_epsilon": -1, "q_s": "a"},
            r"^q_s is 'a'; allowed: .*; target_epsilon is -1; allowed: a number above 0$",
        ),
        ({"privacy": {"q_s": "a"}}, r"^privacy\.q_s is 'a'; allowed: "),
        ({"engine": "rey"}, "^engine is 'rey'; allowed: ray, inline$"),
        ({"q_s": 0.5, "privacy__q_s": 0.5}, "^privacy__q_s is given twice; allowed: one value$"),
    ],
)
def test_a_mistake_is_told_by_the_name_that_was_given(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configuration(None, settings)


def test_what_is_no_configuration() -> None:
    with pytest.raises(ConfigError, match="config is 5; allowed: the path of a TOML file, a mapping"):
        configuration(5, {})  # type: ignore[arg-type]


def test_only_whole_keys_are_renamed() -> None:
    message = "privacy.q_s, privacy.q_s_more and privacy.q_s.a. See privacy.q_s."
    told = pytest.raises(ConfigError, match=r"^q_s, privacy\.q_s_more and privacy\.q_s\.a\. See q_s\.$")
    with told, named_as_given({"q_s": 0.5}):
        raise ConfigError(message)


def test_observers_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="observer is 'csw'; allowed: tensorboard, wandb, mlflow, csv, or an import path"
    ):
        fl_sim.run(observers="csw", out=tmp_path / "run", engine="inline")
