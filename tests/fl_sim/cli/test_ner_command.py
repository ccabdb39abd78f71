"""``fl-sim corpus ner``: figures on a corpus with gold marks, kept with a corpus, and told by a run's report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fl_sim.cli.main import main
from fl_sim.data_prep.corpus_writer import append_corpus, write_corpus
from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.tagger_evaluation import COVERAGE_FILE, read_coverage
from fl_sim.data_prep.taggers.tagger_registry import make_tagger
from fl_sim.reporting.report import full_report_text
from fl_sim.reporting.run_facts import read_facts
from tests.fl_sim.conftest import Capture, MakeRun, Printed, Refusal

TEXTS = (("ann", "She met Ruth Okoye", 8, 18), ("ann", "He lives in oslo", 12, 16), ("bob", "He left Leeds", 8, 13))
"""The rules find the first and the last; "oslo" has no capital."""


def corpus_at(folder: Path, **manifest: Any) -> Corpus:
    sentences = [
        Sentence(split, f"{user}-{split}", text, (Mention(start, end, "PER"),))
        for split in ("train", "test")
        for user, text, start, end in TEXTS
    ]
    return write_corpus(sentences, folder, name="tiny", **manifest)


@pytest.fixture
def gold(tmp_path: Path) -> Corpus:
    return corpus_at(tmp_path / "gold")


@pytest.fixture
def marked_by_rules(tmp_path: Path) -> Corpus:
    return corpus_at(tmp_path / "rules", tagger=make_tagger("rules", structured=True).describe())


@pytest.mark.system
def test_the_figures_that_matter_come_as_text_and_as_json(
    gold: Corpus, printed: Printed, capsys: Capture, tmp_path: Path
) -> None:
    assert main(["corpus", "ner", "rules", "--gold", str(gold.path)]) == 0
    text = capsys.readouterr().out
    assert "rules on tiny, test: 3 sentences, 3 with an entity, 3 mentions of 3 entities, 2 users" in text
    assert "mentions sampled with their entity                0.667" in text
    out = tmp_path / "figures.json"
    record = printed("corpus", "ner", "rules", "--gold", gold.path, "--out", out)
    assert record == json.loads(out.read_text(encoding="utf-8"))
    assert record["gold"]["fingerprint"] == gold.fingerprint
    assert record["gold"]["clusters"] == 2
    assert record["tagger"]["tagger"] == "rules"
    assert record["hiding"]["sensitive_sentences"]["value"] == pytest.approx(2 / 3)
    assert record["matching"]["exact_any_label"]["any"]["precision"]["value"] == 1.0
    assert record["matching"]["exact"]["PER"]["recall"]["value"] == 0.0  # the rules know no persons


def test_tagged_files_are_gold_too(tmp_path: Path, printed: Printed) -> None:
    file = tmp_path / "some.iob"
    file.write_text("She O\nmet O\nRuth B-PER\nOkoye I-PER\n\nin O\nOslo B-LOC\n", encoding="utf-8")
    record = printed("corpus", "ner", "rules", "--gold", file)
    assert record["gold"]["mentions"] == 2
    assert record["gold"]["split"] == "all"
    assert record["hiding"]["mentions_with_coin"]["value"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rules", "--gold", "nowhere"], "nowhere: no such file or folder"),
        (["rules", "--gold", "bundled", "--split", "dev"], "no split dev, only train, validation, public"),
        (["nobody", "--gold", "bundled"], "tagger 'nobody' must be"),
        (["rules", "--gold", "bundled", "--resamples", "0"], "resamples 0 must be at least 1"),
        (["rules", "--gold", "bundled", "--out", "no/where.json"], "--out must be a file in a folder that exists"),
        (["rules", "--gold", "bundled", "--attach", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], message: str, refusal: Refusal) -> None:
    assert message in refusal("corpus", "ner", *arguments)


def test_a_corpus_that_a_tagger_marked_is_no_gold(marked_by_rules: Corpus, refusal: Refusal) -> None:
    said = refusal("corpus", "ner", "rules", "--gold", marked_by_rules.path)
    assert "its entities were found by tagger 'rules'; --gold needs gold marks" in said


def test_a_part_that_a_tagger_marked_is_no_gold(gold: Corpus, refusal: Refusal) -> None:
    append_corpus(gold, [Sentence("test", "cy", "Bo left.", ())], joined_at=1, name="more", tagger={"tagger": "rules"})
    assert "its entities were found by tagger 'rules'" in refusal("corpus", "ner", "rules", "--gold", gold.path)


@pytest.mark.parametrize("done", ["lower_case", "strip_punctuation"])
def test_text_that_no_tagger_ever_sees_is_no_gold(done: str, tmp_path: Path, refusal: Refusal) -> None:
    gold = corpus_at(tmp_path / "gold", settings={"lower_case": False, "strip_punctuation": False, done: True})
    said = refusal("corpus", "ner", "rules", "--gold", gold.path)
    assert "its text was preprocessed; a tagger sees text as it was written" in said


def test_a_corpus_carries_the_coverage_of_its_tagger_outside_of_its_fingerprint(
    gold: Corpus, marked_by_rules: Corpus
) -> None:
    folder = marked_by_rules.path
    assert read_coverage(marked_by_rules) is None
    assert main(["corpus", "ner", "rules", "--gold", str(gold.path), "--attach", str(folder)]) == 0
    again = Corpus.open(folder, verify=True)
    assert again.manifest == marked_by_rules.manifest
    coverage = read_coverage(again)
    assert coverage.summary()["mentions_with_coin"]["value"] == pytest.approx(2 / 3)


def test_the_coverage_of_another_tagger_is_refused_and_a_damaged_one_named(
    gold: Corpus, marked_by_rules: Corpus, refusal: Refusal
) -> None:
    folder = marked_by_rules.path
    said = refusal("corpus", "ner", "structured", "--gold", gold.path, "--attach", folder)
    assert "another tagger was measured than marked this corpus; its 'tagger' is 'structured'" in said
    assert not (folder / COVERAGE_FILE).exists()
    (folder / COVERAGE_FILE).write_text("{}", encoding="utf-8")
    with pytest.raises(CorpusError, match="not a coverage record of this version: tagger: field required"):
        read_coverage(marked_by_rules)


def test_figures_are_of_every_part_and_of_the_identity(gold: Corpus, tmp_path: Path, refusal: Refusal) -> None:
    rules = make_tagger("rules", structured=True).describe()
    grown = corpus_at(tmp_path / "grown", tagger=rules)
    append_corpus(grown, [Sentence("train", "cy", "Hello.", ())], joined_at=1, name="more")
    said = refusal("corpus", "ner", "rules", "--gold", gold.path, "--attach", grown.path)
    assert "another tagger was measured than marked this corpus" in said
    for number, other in enumerate([Identity(("case",)), Identity(family_names=True)]):
        named_otherwise = corpus_at(tmp_path / str(number), tagger=rules, identity=other)
        said = refusal("corpus", "ner", "rules", "--gold", gold.path, "--attach", named_otherwise.path)
        assert "the corpus has another --identity than figures; allowed: the default one" in said


COVERAGE = {
    "tagger": {"tagger": "rules"},
    "gold": "conll2003",
    "split": "test",
    "sensitive_sentences": {"value": 0.94195, "low": 0.9301, "high": 0.9529},
    "mentions_with_coin": {"value": 0.9, "low": None, "high": None},
}


def test_the_report_tells_coverage_beside_the_robust_epsilon(make_run: MakeRun) -> None:
    corpus = {"name": "x", "users": 946, "sentences": 14041}
    run = make_run("uedp", result={"corpus": corpus | {"coverage": COVERAGE}})
    text = " ".join(full_report_text(read_facts(run)).split())
    words = (
        "Coverage, measured on conll2003 (test): the tagger flags 94.1 % (93.0 to 95.2) of the sentences with an "
        "entity; 90.0 % of the mentions are sampled together with their entity. A bound on entities holds for mentions "
        "that the tagger found."
    )
    assert words in text
    assert text.index("Robust:") < text.index("Coverage, measured on")
    assert read_facts(run).record()["corpus"]["coverage"] == COVERAGE
    assert len(full_report_text(read_facts(run)).splitlines()) <= 45  # of 80 columns
