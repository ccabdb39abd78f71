"""Presidio's recognisers of personal data, called one by one, without its analyser, models or network."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fl_sim.data_prep.records import CorpusError, Mention
from fl_sim.data_prep.taggers.spans import keep_longest

LABELS = frozenset(
    {
        "EMAIL_ADDRESS",
        "PHONE_NUMBER",
        "CREDIT_CARD",
        "IBAN_CODE",
        "US_SSN",
        "URL",
        "IP_ADDRESS",
        "CRYPTO",
        "MAC_ADDRESS",
    }
)
_PACKAGES = {"presidio": "presidio-analyzer", "phonenumbers": "phonenumbers", "tldextract": "tldextract"}


# What a text must hold for a recogniser to find anything in it; each follows from the recogniser's own expressions,
# and tests compare both ways on text that is made to come close.
_DIGIT = re.compile(r"\d")
_DIGITS_3 = re.compile(r"\d{3}")
_DIGITS_4 = re.compile(r"\d{4}")
_IBAN_HEAD = re.compile(r"[A-Z]{2}[0-9]{2}")
_IP = re.compile(r"\d\.\d|:[0-9A-Fa-f]{0,4}:")
_CODE = re.compile(r"\w{26}")
_MAC = re.compile(r"[0-9A-Fa-f]{2}[:-][0-9A-Fa-f]{2}[:-]|[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}\.")
_AT = re.compile("@")
_DOMAIN = re.compile(r"\.\w\w")

_DIGIT_ROW = re.compile(r"\d(?:\D{0,4}\d)*")
_WORD = re.compile(r"[^ \t\r\n]+")
_LONGEST_WORD = 2048
_URL_HEAD = 270
_URL_TAIL = re.compile(r"""\.\w{0,20}(?:/[^\s()<>"']*)?["']?""")


def require_presidio() -> None:
    """Raise :class:`CorpusError` unless Presidio is installed."""
    if importlib.util.find_spec("presidio_analyzer") is None:
        raise CorpusError("patterns need Presidio's recognisers: pip install 'fl-sim[pii]'")


def presidio_versions() -> dict[str, str]:
    """Name → version of the packages whose code decides what is found."""
    return {name: importlib.metadata.version(package) for name, package in _PACKAGES.items()}


class Recognisers:
    """E-mails, URLs, phone, card, IBAN and US social security numbers, IP, MAC and bitcoin addresses.

    A recogniser is asked only about text in which it could find something.
    """

    def __init__(self) -> None:
        from presidio_analyzer import predefined_recognizers as presidio

        self._asked: list[tuple[re.Pattern[str], Callable[[str], Iterable[Mention]]]] = [
            (_DIGIT, _PhoneRecogniser().find),
            (_DIGITS_4, functools.partial(_recognised, presidio.CreditCardRecognizer())),
            (_IBAN_HEAD, functools.partial(_recognised, presidio.IbanRecognizer())),
            (_DIGITS_3, functools.partial(_recognised, presidio.UsSsnRecognizer())),
            (_IP, functools.partial(_recognised, presidio.IpRecognizer())),
            (_CODE, functools.partial(_recognised, presidio.CryptoRecognizer())),
            (_MAC, functools.partial(_recognised, presidio.MacAddressRecognizer())),
            (_AT, _EmailRecogniser().find),
            (_DOMAIN, _UrlRecogniser().find),
        ]

    def find(self, text: str) -> tuple[Mention, ...]:
        """What they find in ``text``; of spans that overlap the longest, then the first."""
        found: list[Mention] = []
        for needed, find in self._asked:
            if needed.search(text):
                found += find(text)
        return keep_longest(found) if found else ()


def _recognised(recogniser: Any, text: str, offset: int = 0) -> Iterator[Mention]:
    for result in recogniser.analyze(text, recogniser.supported_entities):
        yield Mention(result.start + offset, result.end + offset, result.entity_type)


class _EmailRecogniser:
    """Presidio's, which would fetch the list of public suffixes, with the list that comes with tldextract.

    It is asked about one word at a time, and not about one of more than 2,048 characters: it takes time that grows with
    the square of that, and is cut off by a clock in the end.
    """

    def __init__(self) -> None:
        import tldextract
        from presidio_analyzer.predefined_recognizers import EmailRecognizer

        extract = tldextract.TLDExtract(cache_dir=None, suffix_list_urls=())

        class OfflineEmailRecognizer(EmailRecognizer):
            def validate_result(self, pattern_text: str) -> bool:
                return extract(pattern_text).fqdn != ""

        self._recogniser = OfflineEmailRecognizer()

    def find(self, text: str) -> Iterator[Mention]:
        for word in _WORD.finditer(text):
            if "@" in word.group() and len(word.group()) <= _LONGEST_WORD:
                yield from _recognised(self._recogniser, word.group(), word.start())


class _UrlRecogniser:
    """Presidio's, asked about the surroundings of every top-level domain that it knows.

    Its expressions try each place of a text as the beginning of a host of up to 253 characters, at every dot of which
    they try hundreds of top-level domains: minutes for a long text of dots. Nothing can match that begins further
    before a top-level domain than scheme, www and host have room, or reaches further behind it than a path.
    """

    def __init__(self) -> None:
        import regex
        from presidio_analyzer.predefined_recognizers import UrlRecognizer

        domains = re.findall(r"\(\?:([a-z0-9-]+)\)", UrlRecognizer.BASE_URL_REGEX)
        self._domain = regex.compile(rf"\.(?:{'|'.join(domains)})", regex.IGNORECASE)
        self._recogniser = UrlRecognizer()

    def find(self, text: str) -> Iterator[Mention]:
        for start, end in self._windows(text):
            yield from _recognised(self._recogniser, text[start:end], start)

    def _windows(self, text: str) -> Iterator[tuple[int, int]]:
        start = end = 0
        for domain in self._domain.finditer(text):
            if domain.start() < end:  # in the path of the one before, and covered with it
                continue
            tail = _URL_TAIL.match(text, domain.start())
            head = max(domain.start() - _URL_HEAD, 0)
            if head > end:
                if end:
                    yield start, end
                start = head
            end = tail.end() if tail else domain.end()
        if end:
            yield start, end


class _PhoneRecogniser:
    """Presidio's, asked for those of its countries alone whose shortest number has no more digits than the text has in
    a row, where up to four other characters may stand between two digits.

    A number with a country code is found whatever country is asked for, so that one of them, the one with the shortest
    numbers, is asked for wherever the shortest number of any country would fit.
    """

    def __init__(self) -> None:
        import phonenumbers
        from presidio_analyzer.predefined_recognizers import PhoneRecognizer

        def shortest(country: str) -> int:
            numbers: Any = phonenumbers.PhoneMetadata.metadata_for_region(country)
            return int(min(numbers.general_desc.possible_length))

        least = {country: shortest(country) for country in PhoneRecognizer.DEFAULT_SUPPORTED_REGIONS}
        least[min(least, key=lambda country: least[country])] = min(map(shortest, phonenumbers.SUPPORTED_REGIONS))
        self._recognisers = {
            digits: PhoneRecognizer(supported_regions=tuple(c for c in least if least[c] <= digits))
            for digits in sorted(set(least.values()), reverse=True)
        }

    def find(self, text: str) -> Iterable[Mention]:
        in_a_row = max((len(_DIGIT.findall(row)) for row in _DIGIT_ROW.findall(text)), default=0)
        for digits, recogniser in self._recognisers.items():
            if digits <= in_a_row:
                return _recognised(recogniser, text)
        return ()
