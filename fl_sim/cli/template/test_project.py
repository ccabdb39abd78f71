"""Tests of the project's own parts: `pytest` in this folder. They run in seconds, on text of their own."""

from pathlib import Path
from typing import Any

import fl_sim
import numpy as np
import pytest

from length_weighted import LengthWeighted, WeightedByLength
from mailbox_reader import SIGNATURE, written_by_hand

BOUNDS: dict[str, Any] = {"known": "counts", "user_sentences": 8, "entity_bound": 5}
PRIVACY: dict[str, Any] = {"q_s": 0.5, "q_e": 0.5, "user_cap": 2.0, "noise_multiplier": 2.0}
LETTER = """\
From {who}@mail.example Mon Jan  1 00:00:00 2024
From: {who} <{who}@mail.example>
Message-ID: <{number}@mail.example>

>From me: I met Ada Lovelace in York on day {number}.

Bob wrote:
> secret quotation
{dashes}
{who}

"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> fl_sim.Corpus:
    """A corpus of 24 letters by 6 writers, read by the project's reader."""
    folder = tmp_path_factory.mktemp("letters")
    letters = [LETTER.format(who=f"writer{n % 6}", number=n, dashes=SIGNATURE) for n in range(24)]
    (folder / "letters.mbox").write_text("".join([*letters, letters[0]]), encoding="utf-8")
    return fl_sim.prepare(
        "mailbox_reader:MailboxReader", folder / "letters.mbox", folder / "corpus", tagger="rules", test_fraction=0.3
    )


def test_the_reader_keeps_what_writers_wrote(corpus: fl_sim.Corpus) -> None:
    train, test = corpus.sentences("train"), corpus.sentences("test")
    assert len(train) + len(test) == 24, "one sentence a letter; the letter that came twice counts once"
    writers = {split: set(corpus.users(split)["user"]) for split in ("train", "test")}
    assert writers["train"].isdisjoint(writers["test"]), "all letters of a writer are in one split"
    assert writers["train"] | writers["test"] == {f"writer{n}@mail.example" for n in range(6)}
    assert train["text"].str.fullmatch(r"From me: I met Ada Lovelace in York on day \d+\.").all()
    assert fl_sim.corpus_stats(corpus)["bad_text"] == {"repeated_ids": 1}


def test_quotations_and_signatures_are_left_out() -> None:
    assert written_by_hand("Yes.\n\nAda wrote:\n> no\n\nBye\n-- \nBob") == ["Yes.", "Bye"]


def test_a_bad_flag_is_told_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--source is .*; allowed: an mbox file"):
        fl_sim.prepare("mailbox_reader:MailboxReader", tmp_path / "absent.mbox", tmp_path / "corpus")


def test_no_sentence_weighs_more_than_one() -> None:
    rule = WeightedByLength(q_e=1.0, q_s=1.0, user_clip=2.0, sentence_clip=1.0, full_length=12)
    weights = rule.weights(np.array([2, 6, 12, 500]))
    assert weights.tolist() == [pytest.approx(1 / 6), 0.5, 1.0, 1.0]


def test_a_round_is_accounted_as_one_of_uedp() -> None:
    values: dict[str, Any] = {"clip_norm": 1.0, "q_u": 1.0, "population": 100, **PRIVACY}
    event = LengthWeighted(strategy="length_weighted:LengthWeighted", **values).event()
    assert (event.strategy, event.clips_sentences, event.noise_multiplier) == ("uedp", True, 2.0)


def test_a_tiny_run_states_a_finite_epsilon(
    corpus: fl_sim.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent)  # where fl_sim looks for modules that are not installed
    run = fl_sim.run(
        rounds=2, engine={"name": "inline"}, corpus={"path": str(corpus.path)}, out=tmp_path / "run",
        model={"hidden": 16, "layers": 1, "heads": 2, "max_tokens": 32},
        privacy={"strategy": "length_weighted:LengthWeighted", "full_length": 10, "delta": 1e-5}
        | {"population": 100} | PRIVACY | BOUNDS,
    )  # fmt: skip
    assert run.finished
    assert (run.metrics["failed_nodes"][1:] == 0).all()
    expected = fl_sim.account(rounds=2, delta=1e-5, **PRIVACY, **BOUNDS)
    assert run.epsilon["epsilon_any"] == pytest.approx(expected["epsilon_any"], rel=1e-3)
    assert run.epsilon["epsilon_user"] == pytest.approx(expected["epsilon_user"], rel=1e-3)
