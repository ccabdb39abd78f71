"""Input without end is refused in one line; ``benchmarks/hostile_input.py`` measures what each of these takes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from benchmarks.hostile_input import ATTACKS, Attack, run
from fl_sim.cli.main import main

SIZE = 128  # MiB that a bomb unfolds to here
GIVE_UP = 60  # seconds; most attacks would go on for ever
MEMORY_BOMBS = ("a line of zeros in gz", "30 million equal rows", "a text of a megabyte")


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """End a test that blocks on a pipe or reads for ever."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still going on after {GIVE_UP} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(GIVE_UP)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.system
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_input_without_end_is_refused_in_one_line(
    attack: Attack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = attack.prepare(tmp_path, SIZE)
    capsys.readouterr()
    try:
        code = main(words)
    except SystemExit as exit:  # argparse's
        code = int(exit.code or 0)
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert attack.says in printed.err
    assert printed.err.count("\n") == 1
    assert printed.err[:-1].isprintable()
    assert not any((tmp_path / name).exists() for name in ("corpus", "run", "r", "out"))


@pytest.mark.nightly
@pytest.mark.parametrize("name", MEMORY_BOMBS)
def test_a_bomb_takes_less_than_a_gigabyte(name: str, tmp_path: Path) -> None:
    (attack,) = (attack for attack in ATTACKS if attack.name.startswith(name))
    outcome = run(attack, tmp_path, 1024)
    assert outcome.code == 2
    assert outcome.megabytes < 1000
