"""Tag by rules over a blank English spaCy pipeline, without a download.

The rules aim at recall. A word wrongly taken for an entity costs training data but no privacy; a missed name is not
sampled with its entity (its sentences are still protected each by itself, as extended entities).

Names are runs of capitalised words, without telling persons from places; a common word that begins a sentence is none.
Entities that have a form (e-mails, URLs, phone and card numbers, dates, times, sums of money) are found by spaCy's
Matcher where they consist of words, by regular expressions where a tokenizer would split them.

>>> [mentions] = RuleTagger().tag(["However, Ada Byron left on 12 March 2024 at 10:30."])
>>> [(mention.start, mention.end, mention.label) for mention in mentions]
[(9, 18, 'NAME'), (27, 40, 'DATE'), (44, 49, 'TIME')]
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fl_sim.data_prep.records import Mention
from fl_sim.data_prep.taggers.spacy_tagger import without_plugins
from fl_sim.data_prep.taggers.spans import keep_longest, replace_surrogates, shift, split_text
from fl_sim.data_prep.taggers.structured_data import EMAIL, US_SSN

if TYPE_CHECKING:
    from spacy.tokens import Doc

_OPENERS = """
accordingly actually additionally admittedly afterwards again ago ah all alright also alternatively
altogether amazing anyhow anyway apart apologies apparently approximately arguably ask assuming based
basically believe besides better bring briefly but buy by bye call can certainly check cheers choose
clearly click close come compare consequently consider considering contact conversely could currently
daily dear definitely depending despite did do does due during earlier early easily either especially
essentially eventually ever evidently exactly except excellent fair feel finally find fine first firstly
following for forget fortunately frankly from full fully funny further furthermore generally get give
given go goes going good goodbye got gradually great guess had hardly has have having hello hence here
hey hi honestly hopefully how however if imagine immediately in incidentally including increasingly
indeed initially instead interestingly is it its just keep kindly know lastly late lately later learn
leave less let lets likely likewise listen literally look looking lots luckily mainly make makes many
may maybe meanwhile merely might more moreover most mostly much must naturally nearly need nevertheless
never next nice no nobody none nonetheless nope normally not note nothing notice notwithstanding now
obviously occasionally of off often oh ok okay on once one only oops open or ordinarily originally
otherwise ought ouch over overall partly perhaps personally please plus possibly presumably previously
probably provided put quickly quite rather read really recently regarding regardless remember remind
respectively right sadly said same say says see seems seen seldom send seriously several shall she
should show similarly simply since so some somehow someone something sometimes somewhere soon sorry
specifically start started still stop strangely such suddenly suppose sure surely surprisingly take
taken talk tell thank thanks that then there thereafter therefore thereby these they think this those
though through thus to today together tomorrow tonight too top traditionally truly try trying turn turns
typically ultimately under understand understood undoubtedly unfortunately unless unlike until up upon
use used using usually very via visit wait want was watch we welcome well were what whatever when
whenever where whereas wherever whether which while whilst who whoever whole whom whose why will wish
with within without wonder wonderful would wow write yeah yes yesterday yet you monday tuesday wednesday
thursday friday saturday sunday mon tue tues wed thu thur thurs fri sat sun
"""
OPENERS = frozenset(_OPENERS.split())
"""Adverbs, function words, greetings, imperatives and weekdays: no part of a name at the start of a sentence."""

_NOUNS = """
access accidents accounts action advice age air amount analysts animals answer answers anything apples
applications appointments area army article artists attempts attendance aunt authorities average babies
back banks beds beer bills birds birthday blood boats body books boys bread breakfast brothers buildings
bus buses business cake cars cases cash cats chairs change changes chapter charges cheap cheese children
choice cities citizens classes clients clothes coffee cold colleagues colour comments companies
competition complaints computers concerns conditions construction consumers contracts cooking costs
councillors countries couples courts cows crime critics crops crowds customers damage dance darkness
data date daughter dealers death debt decisions defence delays delivery demand dentists design details
dinner directors discussions doctors documents dogs doors drinking drivers driving drugs early earnings
eating economists education effort eggs elections electricity emergency emissions employees employers
employment energy engineers entry equipment errors events evidence exams exercise experience experts
exports eyes factories failure families farmers fear feedback fees few fewer fields figures files films
finance fire fish flats flights floods flour flowers folk food football forecasts foreign forests four
five fresh friends fruit frost fuel funding funds furniture games gardens gas girls gold government
grandfather grandmother grass ground groups growth guests guidance guns half hands happiness happy
health heavy help high history holidays homes horses hospitals hotels hours house houses housing ice
images imports income inflation information injuries insects inspectors insurance interest investigators
investment investors issues items jobs journalists judges keys kids kitchen knowledge labour land
language large laws lawyers leaders leading leaves lessons letters life light lights line little living
loans local long love low lunch machines mail major management managers markets marriage maths matters
meals meat meetings members memories men messages middle milk million millions minutes missing mistakes
modern money months mornings mortgage mother mothers mountains movies mum music my names nations nature
neighbours network news newspapers nine noise notes number numbers nurses observers offers offices
officers officials oil old opinion opponents orders output owners pages pain paint paper papers parents
parking part parties partners parts passengers patience patients payment payments peace pensions people
performance permission personal photos pictures plans plants players police policy politicians politics
poor post power prayer preparations press pressure prices prisoners private problems producers
production products profit profits progress property protesters public pupils quality questions rain
rates reading reasons receipts recipes records red refunds regulators relations rent repairs reports
researchers residents results retailers revenue rice roads rooms rubbish rules running salaries sales
salt schools science scientists scores second security sellers senior services seven shares shareholders
ships shoes shops short sickness silence sister sisters six sleep slugs small smoke smoking snow
soldiers solicitors songs sources space speakers sport staff stations stocks stones stories storms
streets strong students studies sugar summer supplies support surveys swimming talks taxes tax tea
teachers teams technology temperatures ten tenants tension terms tests text textbooks thieves things
thousands three tickets time times tips tourists towns trade traders traffic training trains travel
travellers treatment trees troops trouble trust twelve twenty two uncle unemployment unions users
vegetables victims video views villagers villages violence visitors volunteers voters wages walking
walls war water weather weeks white winds wine winter witnesses wives women wood words work workers
working writers writing years young
"""
COMMON_NOUNS = frozenset(_NOUNS.split())
"""Words that are no name when they stand alone and capitalised at a sentence's start."""

NAME = "NAME"
"""The label of a run of capitalised words."""

_PARTICLES = "of de la le du van von der den di da del al el bin ibn y"
_LINK_WORDS = frozenset(_PARTICLES.split())
_LINK_MARKS = frozenset("&-–'’./")
_OPENING_MARKS = frozenset('.!?:;"“”‘([-–—*•')
_DAYS = frozenset(f"{day}day" for day in ("mon", "tues", "wednes", "thurs", "fri", "satur", "sun"))
_TITLES = frozenset({"i'm", "i've", "mr", "mrs", "ms", "dr"})


@dataclass(frozen=True, slots=True)
class Word:
    """The properties of a token that the rules use; all are functions of its characters."""

    text: str
    capitalised: bool
    acronym: bool
    links: bool  # a particle in lower case ("of") links names
    marks: bool  # a hyphen and the like links names if no space is before it
    opens: bool  # a capital letter after it means little
    stop_word: bool  # never a name by itself
    opener: bool  # no name at the start of a sentence
    noun: bool  # no name at the start of a sentence if no name follows


def make_word(text: str) -> Word:
    """Return the properties of the token ``text``."""
    lower = text.lower()
    return Word(
        text=text,
        capitalised=any(map(str.isupper, text)) and any(map(str.isalpha, text)),
        acronym=len(text) > 1 and text.isupper(),
        links=lower in _LINK_WORDS and not text.istitle(),
        marks=text in _LINK_MARKS,
        opens=text in _OPENING_MARKS or text.isspace(),
        stop_word=lower in _never_names(),
        opener=lower in OPENERS,
        noun=lower in COMMON_NOUNS,
    )


def find_names(text: str, words: Sequence[Word], starts: Sequence[int], spaced: Sequence[int]) -> Iterator[Mention]:
    """Yield maximal runs of capitalised words, linked by particles ("Bank of England"), without common first words.

    Args:
        text: any text.
        words: its tokens.
        starts: the place of each token in the text.
        spaced: whether a space follows each token.
    """
    shouted = text.isupper()
    position = 0
    while position < len(words):
        if not words[position].capitalised:
            position += 1
            continue
        end = _run_end(words, spaced, position)
        start = _run_start(words, spaced, position, end, shouted)
        if start < end:
            yield Mention(starts[start], starts[end - 1] + len(words[end - 1].text), NAME)
        position = end


def _run_end(words: Sequence[Word], spaced: Sequence[int], start: int) -> int:
    """Return the end (exclusive) of the run of words that begins at ``start``."""
    end = start + 1
    while end < len(words):
        if words[end].capitalised:
            end += 1
        elif end + 1 < len(words) and words[end + 1].capitalised and _links(words, spaced, end):
            end += 2
        else:
            break
    return end


def _run_start(words: Sequence[Word], spaced: Sequence[int], start: int, end: int, shouted: bool) -> int:
    """Return ``start``, moved past words that are capitalised for another reason than being a name."""
    opening = start == 0 or words[start - 1].opens
    if opening and end - start == 1 and words[start].noun:
        return end
    while start < end:
        word = words[start]
        common = word.stop_word or (opening and word.opener) or _links(words, spaced, start)
        if not common or (word.acronym and not shouted):
            break
        start += 1
    return start


def _links(words: Sequence[Word], spaced: Sequence[int], position: int) -> bool:
    word = words[position]
    if word.marks:
        return word.text == "&" or not (position and spaced[position - 1])
    return word.links


@functools.cache
def _never_names() -> frozenset[str]:
    from spacy.lang.en.stop_words import STOP_WORDS

    return frozenset(itertools.chain(STOP_WORDS, _TITLES, _DAYS))


_MONTH_NAMES = """
january february march april may june july august september october november december
jan feb mar apr jun jul aug sep sept oct nov dec
"""
_MONTHS = frozenset(f"{month}{dot}" for month in _MONTH_NAMES.split() for dot in ("", "."))
_HALVES = frozenset({"am", "pm", "a.m.", "p.m.", "a.m", "p.m"})
_UNITS = ["thousand", "million", "billion", "bn", "m", "k"]
_CURRENCY_NAMES = "dollars euros pounds pence cents yen francs usd eur gbp chf jpy quid bucks dollar euro pound"
_CURRENCIES = frozenset(_CURRENCY_NAMES.split())

_ORDINAL = {"LOWER": {"REGEX": r"^(0?[1-9]|[12]\d|3[01])(st|nd|rd|th)?$"}}
_MONTH_TOKEN = {"LOWER": {"IN": sorted(_MONTHS)}}
_YEAR = {"TEXT": {"REGEX": r"^(1[5-9]|20|21)\d\d$"}}
_COMMA = {"TEXT": ",", "OP": "?"}
_OF = {"LOWER": "of", "OP": "?"}
_CURRENCY_TOKEN = {"LOWER": {"IN": sorted(_CURRENCIES)}}
_UNIT = {"LOWER": {"IN": _UNITS}, "OP": "?"}
_TOKENS: Mapping[str, Sequence[Sequence[Mapping[str, object]]]] = {
    "EMAIL": [[{"LIKE_EMAIL": True}]],
    "URL": [[{"LIKE_URL": True, "LIKE_EMAIL": False}]],
    "DATE": [
        [_ORDINAL, _OF, _MONTH_TOKEN, _COMMA, _YEAR],
        [_ORDINAL, _OF, _MONTH_TOKEN],
        [_MONTH_TOKEN, _ORDINAL, _COMMA, _YEAR],
        [_MONTH_TOKEN, _ORDINAL],
        [_MONTH_TOKEN, _COMMA, _YEAR],
    ],
    "TIME": [[{"TEXT": {"REGEX": r"^\d{1,2}([.:]\d\d){0,2}$"}}, {"LOWER": {"IN": sorted(_HALVES)}}]],
    "MONEY": [
        [{"IS_CURRENCY": True}, {"LIKE_NUM": True}, _UNIT],
        [{"LIKE_NUM": True}, _UNIT, _CURRENCY_TOKEN],
        [{"LIKE_NUM": True}, _UNIT, {"IS_CURRENCY": True}],
    ],
}
"""Label → patterns over tokens, for spaCy's Matcher. Each needs a token for which :func:`may_match` is true."""

_SHAPES = {
    "EMAIL": EMAIL,
    "URL": r"(?:https?://|www\.)\S+[\w/]",
    "IBAN": r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b",
    "CARD": r"(?<![\d-])\d(?:[ -]?\d){12,18}(?![\d-])",
    "US_SSN": US_SSN,
    "DATE": r"\b(?:\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[/.]\d{1,2}[/.]\d{2,4})\b",
    "PHONE": r"(?<![\w.,-])(?=[+(\d])(?:\+|\(?0\)?|\()?\d?(?:[ ().-]{0,2}\d){6,14}(?: ?x\d+)?(?!\w|[.,]\d)",
    "TIME": r"\b\d{1,2}:\d{2}(?::\d{2})?(?: ?[ap]\.?m\b\.?)?",
    "MONEY": r"[$€£¥] ?\d+(?:[.,]\d+)*(?: ?(?:thousand|million|billion|bn|[mkMK])\b)?",
    "ID": r"\b(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Z0-9]{5,}(?:-[A-Z0-9]+)*\b",
}
"""Label → regular expression over characters; earlier ones win a tie.

Repetitions are bounded, so a long text without spaces takes linear time.
"""

_SHAPE = re.compile("|".join(f"(?P<{label}>{pattern})" for label, pattern in _SHAPES.items()))
_SHAPED = re.compile(r"\d|@|://|www\.")


def may_match(token: str) -> bool:
    """Return whether a pattern over tokens may match a text with ``token``; none matches without such a token."""
    from spacy.lang.lex_attrs import is_currency, like_email, like_url

    lower = token.lower()
    return (
        lower in _MONTHS
        or lower in _HALVES
        or lower in _CURRENCIES
        or is_currency(token)
        or like_email(token)
        or like_url(token)
    )


def find_shapes(text: str) -> Iterator[Mention]:
    """Yield the matches of the regular expressions, without overlaps."""
    if _SHAPED.search(text) is None:  # every expression needs one of these
        return
    for match in _SHAPE.finditer(text):
        yield Mention(match.start(), match.end(), str(match.lastgroup))


RULES_VERSION = "2"
_MOST_WORDS = 500_000
"""The vocabulary is cleared after so many words (0.4 kB each), so that memory does not grow with the corpus."""


class RuleTagger:
    """Finds capitalised names, and entities with a form; of candidates that overlap the longest, then the first.

    The pipeline is made at the first text, because spaCy takes seconds to import.
    """

    labels = frozenset({*_TOKENS, *_SHAPES, NAME})

    def __init__(self) -> None:
        self._pipeline: Any = None
        self._words: dict[int, tuple[Word, bool]] = {}

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """Yield the mentions of each text, in the order of their places."""
        for text in texts:
            yield self._mentions(replace_surrogates(text))

    def describe(self) -> dict[str, str]:
        """Return the version of the rules, and that of the package below."""
        return {"tagger": "rules", "rules_version": RULES_VERSION, "spacy": importlib.metadata.version("spacy")}

    def _mentions(self, text: str) -> tuple[Mention, ...]:
        if self._pipeline is None or len(self._words) > _MOST_WORDS:
            self._start_vocabulary()
        candidates = list(find_shapes(text))
        for offset, piece in split_text(text):
            document = self._pipeline.make_doc(piece)
            rows = document.to_array(["ORTH", "IDX", "SPACY"]).tolist() if len(document) else []
            read = [self._read(row[0]) for row in rows]
            if any(may_match for _, may_match in read):
                candidates += shift(self._token_patterns(document), offset)
            words, starts, spaced = [word for word, _ in read], [row[1] for row in rows], [row[2] for row in rows]
            candidates += shift(find_names(piece, words, starts, spaced), offset)
        return keep_longest(candidates)

    def _token_patterns(self, document: Doc) -> Iterator[Mention]:
        """Yield every match of the patterns over tokens, with overlaps."""
        for match, start, end in self._matcher(document):
            span = document[start:end]
            yield Mention(span.start_char, span.end_char, self._pipeline.vocab.strings[match])

    def _start_vocabulary(self) -> None:
        import spacy
        from spacy.matcher import Matcher

        with without_plugins():
            self._pipeline = spacy.blank("en")
        self._matcher = Matcher(self._pipeline.vocab)
        for label, patterns in _TOKENS.items():
            self._matcher.add(label, patterns)
        self._words = {}

    def _read(self, orth: int) -> tuple[Word, bool]:
        """Return the properties of the token with this hash, and cache them."""
        if orth not in self._words:
            text = self._pipeline.vocab.strings[orth]
            self._words[orth] = make_word(text), may_match(text)
        return self._words[orth]
