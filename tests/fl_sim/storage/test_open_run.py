"""What the releases of a run are computed from: read as it was written, and compared part by part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fl_sim.storage.open_run import Computation, noise_key
from fl_sim.storage.run_folder import ResultsError

PARTS: dict[str, Any] = {"settings": {"seed": 0, "server.learning_rate": 0.1}, "corpus": "0a1b", "initial_model": "ff"}


def test_equal_parts_are_accepted(tmp_path: Path) -> None:
    computation = Computation(PARTS)
    computation.write(tmp_path)
    again = Computation.read(tmp_path)
    assert again.digest == computation.digest != Computation(PARTS).digest  # each run has a salt of its own
    again.check(PARTS, tmp_path)


@pytest.mark.parametrize("change", [{"corpus": "0a1c"}, {"initial_model": "fe"}, {"settings": {"seed": 0}}])
def test_the_key_of_the_noise_holds_every_part(change: dict[str, Any]) -> None:
    assert noise_key(PARTS) == noise_key(dict(reversed(PARTS.items()))) != noise_key(PARTS | change)
    unset = {"settings": PARTS["settings"] | {"privacy.clip_quantile": None}}
    assert noise_key(PARTS | unset) == noise_key(PARTS)
    assert noise_key(PARTS | {"weights": "0a1b"}) == noise_key(PARTS), "a server that knows counts alone has none"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"settings": PARTS["settings"] | {"server.learning_rate": 3.0}},
            r"server\.learning_rate is 3\.0; allowed: 0\.1",
        ),
        ({"settings": {"seed": 0}}, r"server\.learning_rate is missing; allowed: 0\.1, as when the run began"),
        ({"settings": PARTS["settings"] | {"new": 1}}, "new is 1; allowed: missing"),
        ({"corpus": "0a1c"}, "corpus is not that of the run's beginning"),
        ({"initial_model": None}, "initial model is not that of the run's beginning"),
        ({"more": 1}, "more is not that of the run's beginning"),
    ],
)
def test_another_part_or_setting_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=message) as caught:
        Computation(PARTS).check(PARTS | changes, tmp_path)
    assert "\n" not in str(caught.value)
