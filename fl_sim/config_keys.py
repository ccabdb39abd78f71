"""The keys of a configuration, from its pydantic models: allowed values, default and meaning.

Error messages, the command line and docs/configuration.md all use these keys, so they cannot differ.

>>> from pydantic import Field
>>> class Options(BaseModel):
...     clip: float = Field(1.0, gt=0, description="the L2 clip")
>>> keys_of(Options)["clip"].allowed
'a number above 0'
>>> nearest("privacy.clipp", {"privacy.clip": keys_of(Options)["clip"]})
'privacy.clip'
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

_SYMBOLS = {
    "z": "privacy.noise_multiplier",
    "c": "privacy.clip_norm",
    "w": "privacy.user_cap",
    "n": "privacy.population",
    "t": "rounds",
    "epsilon": "privacy.target_epsilon",
    "lr": "server.learning_rate",
    "eta": "server.learning_rate",
}
"""Other names of keys: the symbols of papers, and customary short names."""


SHORT_NAMES: Mapping[str, str] = {
    "corpus": "corpus.path",
    "strategy": "privacy.strategy",
    "rounds": "rounds",
    **{
        name: f"privacy.{name}"
        for name in (
            *("q_u", "q_e", "q_s", "noise_multiplier", "clip_norm", "user_cap", "clipping", "estimator", "noise"),
            *("delta", "target_epsilon", "target_unit", "epsilon_budget"),
            *("known", "entity_bound", "user_sentences", "secure_noise"),
        )
    },
    "model": "model.name",
    "engine": "engine.name",
    "nodes": "engine.nodes",
    "seed": "seed",
    "out": "out",
    "anchor": "anchor",
}
"""The keys that change most often, by the name that :func:`fl_sim.run` and, as a flag, ``fl-sim run`` know them by."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a configuration.

    Attributes:
        name: with its section, such as ``privacy.q_u``.
        default: in TOML; empty if there is none.
        meaning: its effect.
        is_text: whether any text is allowed, so that ``2024`` means the folder and not the number.
    """

    name: str
    allowed: str
    default: str
    meaning: str
    is_text: bool


def keys_of(model: type[BaseModel]) -> dict[str, Key]:
    """Return every key of ``model`` and its sections by full name, in the order of the fields."""
    schema = model.model_json_schema()
    keys: dict[str, Key] = {}
    for name, field in schema["properties"].items():
        if "$ref" not in field:
            keys[name] = _key(name, field, {})
            continue
        section = schema["$defs"][field["$ref"].rsplit("/", 1)[-1]]
        documented = _attributes(section.get("description", ""))
        keys |= {f"{name}.{key}": _key(f"{name}.{key}", f, documented) for key, f in section["properties"].items()}
    return keys


def sections_of(keys: Mapping[str, Key]) -> list[str]:
    """Return the names of the sections, in the order of their first key."""
    return list(dict.fromkeys(name.split(".")[0] for name in keys if "." in name))


def nearest(name: str, keys: Mapping[str, Key]) -> str | None:
    """Return the key or section most similar to ``name``; None if none is similar."""
    leaves: dict[str, str] = {}
    for key in keys:
        leaves.setdefault(key.rsplit(".", 1)[-1], key)
    leaf = name.rsplit(".", 1)[-1].lower()
    if leaf in leaves:
        return leaves[leaf]
    if leaf in _SYMBOLS:
        return _SYMBOLS[leaf]
    close = difflib.get_close_matches(name.lower(), [*keys, *sections_of(keys)], n=1, cutoff=0.75)
    if close:
        return close[0]
    close = difflib.get_close_matches(leaf, leaves, n=1)
    return leaves[close[0]] if close else None


def shown(value: Any) -> str:
    """Return a value in words, as in a configuration file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, tuple):
        return repr(list(value))
    return repr(value) if isinstance(value, str | int | float | None) else f"of type {type(value).__name__}"


def _key(name: str, field: Mapping[str, Any], documented: Mapping[str, str]) -> Key:
    kinds = [kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null"]
    return Key(
        name=name,
        allowed=" or ".join(_allowed(kind) for kind in kinds),
        default=_default(field.get("default")),
        meaning=field.get("description") or documented.get(name.rpartition(".")[2], ""),
        is_text=all(kind.get("type") == "string" for kind in kinds),
    )


def _attributes(docstring: str) -> dict[str, str]:
    """Return the entries of a docstring's ``Attributes:`` by name; ``a, b: text`` is an entry of both."""
    _, _, block = docstring.partition("Attributes:\n")
    entries = re.findall(r"^    (\w[\w, ]*): (.*(?:\n {5,}.*)*)", block, flags=re.MULTILINE)
    return {name: " ".join(text.replace("``", "`").split()) for names, text in entries for name in names.split(", ")}


def _allowed(kind: Mapping[str, Any]) -> str:
    if "enum" in kind:
        return ", ".join(kind["enum"])
    if "const" in kind:
        return str(kind["const"])
    if "pattern" in kind:
        return f"text that matches {kind['pattern']}"
    if "allowed" in kind:
        return str(kind["allowed"])
    names = {"integer": "an integer", "number": "a number", "string": "text", "array": "a list of texts"}
    names |= {"boolean": "true or false", "object": "a table"}
    return f"{names.get(str(kind.get('type')), 'a value')}{_bounds(kind)}"


def _bounds(kind: Mapping[str, Any]) -> str:
    low = f"[{_number(kind['minimum'])}" if "minimum" in kind else ""
    low = f"({_number(kind['exclusiveMinimum'])}" if "exclusiveMinimum" in kind else low
    high = f"{_number(kind['maximum'])}]" if "maximum" in kind else ""
    high = f"{_number(kind['exclusiveMaximum'])})" if "exclusiveMaximum" in kind else high
    if low and high:
        return f" in {low}, {high}"
    if low:
        return f" above {low[1:]}" if low.startswith("(") else f" of at least {low[1:]}"
    return ", not empty" if kind.get("minLength") else ""


def _default(value: Any) -> str:
    if value is None or value == {}:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | list) else _number(value)


def _number(value: float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else f"{value:g}"
