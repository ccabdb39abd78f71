"""The settings of a run as Python gives them: by short names, as sections, or by keys with ``__`` for the dot.

>>> config = configuration(None, {"corpus": "irc", "target_epsilon": 4, "model__hidden": 64})
>>> config.corpus.path, config.privacy.target_epsilon, config.model.hidden
('irc', 4.0, 64)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fl_sim.config import ConfigError, RunConfig, run_keys
from fl_sim.config_keys import SHORT_NAMES, nearest, sections_of
from fl_sim.data_prep.store.corpus import Corpus


def configuration(
    config: RunConfig | str | Path | Mapping[str, object] | None, settings: Mapping[str, object]
) -> RunConfig:
    """Return the configuration that the arguments of :func:`fl_sim.run` describe.

    Raises:
        ConfigError: names every mistake in one line, by the names that were given.
    """
    with named_as_given(settings):
        keys = _keys(settings)
        if config is None or isinstance(config, str | Path):
            return RunConfig.load(config, keys)
        if isinstance(config, Mapping):
            config = RunConfig.from_mapping(_keys(config))
        if not isinstance(config, RunConfig):
            raise ConfigError(
                f"config is {config!r:.100}; allowed: the path of a TOML file, a mapping of settings, or a RunConfig"
            )
        return config.changed(keys) if keys else config


@contextmanager
def named_as_given(settings: Mapping[str, object]) -> Iterator[None]:
    """Name the keys of ``settings`` in an error of the project as its caller did: ``q_s`` and not ``privacy.q_s``."""
    try:
        yield
    except ValueError as error:
        for name, value in settings.items() if len(error.args) == 1 else ():
            parts = re.split(rf"(?<![\w.]){re.escape(_key(name, value))}(?!\w|\.\w)", str(error.args[0]))
            error.args = (name.join(parts),)
        raise


def _keys(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings by the full names of their keys, or of sections; an open corpus stands for its name or folder.

    Raises:
        ConfigError: a name is unknown, or two names mean one key.
    """
    keys: dict[str, object] = {}
    for name, value in settings.items():
        key = _key(name, value)
        if "." not in key and key not in run_keys() and key not in sections_of(run_keys()):
            raise ConfigError(_unknown(name))
        if key in keys:
            raise ConfigError(f"{name} is given twice; allowed: one value")
        keys[key] = value.shipped_name or value.path if isinstance(value, Corpus) else value
    return keys


def _key(name: str, value: object) -> str:
    """Return the full name of a key; ``corpus``, ``model`` and ``engine`` are sections if the value is a mapping."""
    if name in SHORT_NAMES and not isinstance(value, Mapping):
        return SHORT_NAMES[name]
    return name.replace("__", ".")


def _unknown(name: str) -> str:
    guess = nearest(name, run_keys())
    names = {key: short for short, key in SHORT_NAMES.items()}
    hint = f"did you mean '{names.get(guess, guess.replace('.', '__'))}'? " if guess else ""
    others = [key for key in run_keys() if "." not in key and key not in names]
    return (
        f"'{name}' is not a configuration key; {hint}allowed: {', '.join([*SHORT_NAMES, *others])}, and any other key "
        "with its section, such as model__hidden"
    )
