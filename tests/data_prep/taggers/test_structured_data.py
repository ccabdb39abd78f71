"""Structured personal data: what the expressions find, and that they join every tagger unless switched off."""

from __future__ import annotations

import json
import lzma
import time
from collections import Counter
from pathlib import Path

import pytest

from fl_sim.cli.main import main
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.taggers.structured_data import LABELS, find_structured
from fl_sim.data_prep.taggers.tagger_registry import make_marking, make_tagger

EMAIL = "ada@byron.example"
Pairs = list[tuple[str, str]]


def found(text: str) -> Pairs:
    return [(text[mention.start : mention.end], mention.label) for mention in find_structured(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MAILTO=nook84@example.org.", [("nook84@example.org", "EMAIL")]),
        ("mailto:a.b+c@x-y.co.uk>", [("a.b+c@x-y.co.uk", "EMAIL")]),
        ("ssh ada@10.0.0.7", [("ada@10.0.0.7", "EMAIL"), ("10.0.0.7", "IP")]),
        ("(see http://10.0.0.7:80/x).", [("http://10.0.0.7:80/x", "URL"), ("10.0.0.7", "IP")]),
        ("go to www.irssi.org, or paste.ubuntu.com/123", [("www.irssi.org", "URL"), ("paste.ubuntu.com/123", "URL")]),
        ("192.168.0.100-200 or 10.0.0.0/24", [("192.168.0.100", "IP"), ("10.0.0.0", "IP")]),
        ("inet6 addr: fe80::202:6fff:fe36:9011/64", [("fe80::202:6fff:fe36:9011", "IP")]),
        ("pay DE89 3704 0044 0532 0130 00 BIC COBADEFF", [("DE89 3704 0044 0532 0130 00", "IBAN")]),
        ("gb82west12345698765432", [("gb82west12345698765432", "IBAN")]),
        ("card 4111 1111 1111 1112, 378282246310005", [("4111 1111 1111 1112", "CARD"), ("378282246310005", "CARD")]),
        ("my SSN is 078-05-1120", [("078-05-1120", "US_SSN")]),
        ("Tel+44 (0)20 7946 0958", [("+44 (0)20 7946 0958", "PHONE")]),
        ("(212) 555-0123 ext. 45 or 555-0199", [("(212) 555-0123 ext. 45", "PHONE"), ("555-0199", "PHONE")]),
        ("06 12 34 56 78, 01.23.45.67.89", [("06 12 34 56 78", "PHONE"), ("01.23.45.67.89", "PHONE")]),
    ],
)
def test_what_is_found(text: str, expected: Pairs) -> None:
    assert found(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "on 2004-11-15, 01.02.2024 or 1/2/2024 at 10:30",
        "linux-image-2.6.8.1-3-686 and 2.6.8.1-amd64",
        "256.1.1.1 or 1.2.3",
        "6-3 7-6 (7-4) 6-3",
        "England 10 7 3 0 25 9 24 11 12 13 14 15 16",
        "1024 1072 1176 1328 and 1234567890123456",
        "std::vector, ::, main.py, sources.list, e.g. this",
        "event=video DD02 00000086 00000000",
        "user@host",
        "Otobüs TK19 aynı kapı bazı",
        "T\u013012 3456 789a b0ab, DE89 \u212aA04 ab44 ab32 ab30 ab, gb82 we\u017ft abcd efgh ijkl",
        "€ 1,234,567.89",
        "",
    ],
)
def test_what_is_none(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    "unit", ["a", "1:", ";:", "a@", "a.", "1.", "+1", "(1", "1 ", "0", "ab12 ", "a://", "a.com/", "é"]
)
def test_a_long_text_takes_linear_time(unit: str) -> None:
    text = (unit * 100_000)[:100_000]
    began = time.process_time()
    find_structured(text)
    assert time.process_time() - began < 5


@pytest.mark.nightly
def test_gold_of_ubuntu_irc(shared_data: Path) -> None:
    """Every marked e-mail and IP address is found as marked; of the rest most are addresses that nobody marked."""
    gold, hits, marked = Counter[str](), Counter[str](), Counter[str]()
    with lzma.open(shared_data / "irc" / "irc.jsonl.xz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            ours = {(m.start, m.end, m.label) for m in find_structured(row["text"]) if m.label in ("EMAIL", "IP")}
            theirs = {(m["start"], m["end"], m["label"]) for m in row["marks"] if m["label"] in ("EMAIL", "IP")}
            gold.update(label for _, _, label in theirs)
            hits.update(label for _, _, label in theirs & ours)
            marked.update(label for _, _, label in ours)
    assert hits == gold == {"EMAIL": 90, "IP": 548}
    assert marked["EMAIL"] == 90
    assert marked["IP"] <= 722


def test_the_bundled_corpus_has_no_structured_data_without_a_mark() -> None:
    corpus = Corpus.open("bundled")
    for split in corpus.splits:
        marked = {(row["sentence"], row["start"], row["end"]) for row in corpus.mentions(split).to_pylist()}
        for number, text in enumerate(corpus.texts(split).to_pylist()):
            assert {(number, m.start, m.end) for m in find_structured(text)} <= marked


class Places:
    """Takes every e-mail address for a place, and a word beside it."""

    labels = frozenset({"LOC"})

    def tag(self, texts):  # type: ignore[no-untyped-def]
        for text in texts:
            start = text.find(EMAIL)
            yield (
                (Mention(start, start + len(EMAIL), "LOC"), Mention(start - 5, start + 3, "LOC")) if start >= 0 else ()
            )

    def describe(self) -> dict[str, str]:
        return {}


TEXT = f"Mail {EMAIL} from 10.0.0.7"
PLACES = f"{__name__}:Places"


def mentions(marking_settings: dict[str, object], gold: tuple[Mention, ...] = ()) -> Pairs:
    marking = make_marking(**marking_settings)  # type: ignore[arg-type]
    (sentence,) = marking.mark([Sentence("train", "u", TEXT, gold)])
    return [(sentence.surface(mention), mention.label) for mention in sentence.mentions]


@pytest.mark.parametrize("tagger", ["rules", "structured", PLACES, f"{PLACES}+rules"])
def test_it_joins_every_tagger(tagger: str) -> None:
    pairs = mentions({"names": tagger, "has_gold": False})
    assert {(EMAIL, "EMAIL"), ("10.0.0.7", "IP")} <= set(pairs)


def test_a_name_model_loses_no_span_and_takes_no_address() -> None:
    found_beside = [("Mail ada", "LOC"), (EMAIL, "EMAIL"), ("10.0.0.7", "IP")]
    assert mentions({"names": PLACES, "has_gold": False}) == found_beside
    assert mentions({"names": PLACES, "has_gold": False, "entities": "loc"}) == [("Mail ada", "LOC"), (EMAIL, "LOC")]


def test_gold_keeps_its_spans_and_labels() -> None:
    whole, part = Mention(5, 5 + len(EMAIL), "NICK"), Mention(5, 8, "NICK")
    assert mentions({"has_gold": True}, (whole,)) == [(EMAIL, "NICK"), ("10.0.0.7", "IP")]
    twice = (whole, Mention(5, 5 + len(EMAIL), "PER"))
    assert mentions({"has_gold": True}, twice) == [(EMAIL, "NICK"), (EMAIL, "PER"), ("10.0.0.7", "IP")]
    assert mentions({"has_gold": True}, (part,)) == [("ada", "NICK"), (EMAIL, "EMAIL"), ("10.0.0.7", "IP")]


@pytest.mark.parametrize("settings", [{"has_gold": True}, {"names": "rules", "has_gold": False}])
def test_it_is_recorded_on_and_off(settings: dict[str, object]) -> None:
    assert make_marking(**settings).describe()["structured"] == "1"  # type: ignore[arg-type]
    off = make_marking(**settings, structured=False)  # type: ignore[arg-type]
    assert off.describe()["structured"] == "off"
    assert not off.labels & LABELS - {"EMAIL", "URL", "IBAN", "CARD", "US_SSN", "PHONE"}


def test_it_can_be_switched_off() -> None:
    assert mentions({"names": PLACES, "has_gold": False, "structured": False}) == [("Mail ada", "LOC"), (EMAIL, "LOC")]
    assert mentions({"has_gold": True, "structured": False}) == []


def test_the_tagger_alone() -> None:
    tagger = make_tagger("structured")
    assert tagger.labels == LABELS
    assert tagger.describe() == {"tagger": "structured", "structured": "1", "entities": "all"}
    assert make_tagger("structured", structured=True).describe() == tagger.describe()
    assert list(tagger.tag(["\ud800 10.0.0.7", ""])) == [(Mention(2, 10, "IP"),), ()]


def prepared(folder: Path, *more: str) -> Corpus:
    rows = [{"user": user, "text": TEXT, "marks": [{"start": 0, "end": 4, "label": "NICK"}]} for user in "ab"]
    with lzma.open(folder / "posts.jsonl.xz", "wt", encoding="utf-8") as file:
        file.write("\n".join(map(json.dumps, rows)))
    columns = ["--text-column", "text", "--user-column", "user", "--entities-column", "marks", "--test-fraction", "0"]
    words = ["prepare", "jsonl", "--source", str(folder / "posts.jsonl.xz"), "--out", str(folder / "out")]
    assert main([*words, *columns, "--no-split-sentences", *more]) == 0
    return Corpus.open(folder / "out", verify=True)


def test_prepare_finds_it_beside_gold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = prepared(tmp_path)
    assert list(corpus.entities("train")["entity"]) == ["mail", EMAIL, "10.0.0.7"]
    assert corpus.manifest.tagger == {"tagger": "gold", "structured": "1", "entities": "all"}
    assert "nobody looked for: persons, organisations, places\n" in capsys.readouterr().out
