"""The options of all attacks on finished runs.

>>> Options(max_users=5).sentences_per_user
20
>>> Options(max_users=0)
Traceback (most recent call last):
fl_sim.config.ConfigError: max_users is 0; allowed: an integer of at least 1
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fl_sim.config import ConfigError

_LEAST = {
    "seed": 0, "max_users": 1, "sentences_per_user": 1, "secrets": 2, "entities": 1, "candidates": 2, "texts": 1
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """What all attacks are given.

    Attributes:
        seed: of the units that are attacked; equal for all runs, so that they compare.
        max_users: at most so many users of each side, a seeded sample.
        sentences_per_user: at most so many sentences of a user, a seeded sample.
        references: run folders whose models are the reference; none for the model with which the run began.
        secrets: secrets that are drawn beside each canary's.
        entities: at most so many entities are attacked, a seeded sample.
        candidates: names that are ranked for each.
        texts: that are sampled from a model to find names in them.
        entity: the name of one entity that is attacked; None for none.
        user: one user that is attacked; None for none.
        without: run folders whose models stand beside, trained on the same text without that entity or user.
        failure: the probability that an attack says ``beyond`` of a run whose proof holds.
        show_names: whether records name entities and users, and quote text.

    Raises:
        ConfigError: a value is out of range.
    """

    seed: int = 0
    max_users: int = 500
    sentences_per_user: int = 20
    references: tuple[str, ...] = ()
    secrets: int = 1000
    entities: int = 200
    candidates: int = 50
    texts: int = 1000
    entity: str | None = None
    user: str | None = None
    without: tuple[str, ...] = ()
    failure: float = 1e-3
    show_names: bool = False

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; allowed: an integer of at least {least}")
        if self.without and self.entity is None and self.user is None:
            raise ConfigError("without is given without entity or user; allowed: with one of them")
        if not 0 < self.failure < 1:
            raise ConfigError(f"failure is {self.failure:g}; allowed: a number between 0 and 1")

    def record(self) -> dict[str, Any]:
        """Return the options as a JSON object; names are left out unless they are shown."""
        hidden = {} if self.show_names else {name: "(hidden)" for name in ("entity", "user") if getattr(self, name)}
        return asdict(self) | hidden
