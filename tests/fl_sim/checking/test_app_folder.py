"""A folder that is no Flower app is told in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

import fl_sim
from fl_sim.checking.app_folder import AppFolder, CheckError

EXAMPLES = Path(__file__).parents[3] / "examples"
COMPONENTS = '[tool.flwr.app.components]\nserverapp = "app:server"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "has no pyproject.toml; allowed: the folder of a Flower app"),
        ("[tool", "is no TOML"),
        ("", "names no serverapp"),
        (COMPONENTS, "names no clientapp"),
        (COMPONENTS + "clientapp = 3\n", "names no clientapp"),
    ],
)
def test_a_folder_without_an_app_is_refused(text: str | None, words: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(CheckError, match=words):
        AppFolder.read(tmp_path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"run_config": "rounds=2"}, "has 'rounds', which the app does not; allowed: learning-rate, num-server-rounds"),
        ({"run_config": "num-server-rounds=two"}, "allowed: numbers, true, false, texts in quotes"),
        ({"run_config": "much"}, "allowed: pairs such as"),
        ({"nodes": 1}, "is 1; allowed: at least 2, so that one of them may be away"),
        ({"time_limit": 0.0}, "is 0; allowed: a number above 0"),
    ],
)
def test_impossible_settings_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(CheckError, match=words):
        fl_sim.check(EXAMPLES / "quickstart", **given)


def test_the_digest_sees_a_changed_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(COMPONENTS + 'clientapp = "app:client"\n')
    app = AppFolder.read(tmp_path)
    before = app.digest()
    assert app.digest() == before
    (tmp_path / "new.txt").write_text("a")
    assert app.digest() != before
