"""Presidio's recognisers of personal data, called one by one, without Presidio's analyser, models or network.

>>> require_presidio()
>>> Recognisers().find("Write to ada@example.org.")
(Mention(start=9, end=24, label='EMAIL_ADDRESS'),)
"""

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


# What a text needs for a recogniser to find anything in it. Each follows from the recogniser's own expressions; tests
# compare with and without it on adversarial text.
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
    """Check that Presidio is installed, else raise :class:`CorpusError`."""
    if importlib.util.find_spec("presidio_analyzer") is None:
        raise CorpusError("patterns need Presidio's recognisers: pip install 'fl-sim[pii]'")


def presidio_versions() -> dict[str, str]:
    """Return the versions of the packages whose code decides the mentions."""
    return {name: importlib.metadata.version(package) for name, package in _PACKAGES.items()}


class Recognisers:
    """Finds e-mails, URLs, phone, card, IBAN and US social security numbers, IP, MAC and bitcoin addresses.

    A recogniser is called only on text in which it could find something.
    """

    def __init__(self) -> None:
        from presidio_analyzer import predefined_recognizers as presidio

        self._recognisers: list[tuple[re.Pattern[str], Callable[[str], Iterable[Mention]]]] = [
            (_DIGIT, _PhoneRecogniser().find),
            (_DIGITS_4, functools.partial(_mentions_by, presidio.CreditCardRecognizer())),
            (_IBAN_HEAD, functools.partial(_mentions_by, presidio.IbanRecognizer())),
            (_DIGITS_3, functools.partial(_mentions_by, presidio.UsSsnRecognizer())),
            (_IP, functools.partial(_mentions_by, presidio.IpRecognizer())),
            (_CODE, functools.partial(_mentions_by, presidio.CryptoRecognizer())),
            (_MAC, functools.partial(_mentions_by, presidio.MacAddressRecognizer())),
            (_AT, _EmailRecogniser().find),
            (_DOMAIN, _UrlRecogniser().find),
        ]

    def find(self, text: str) -> tuple[Mention, ...]:
        """Return the mentions in ``text``; of overlapping mentions the longest, then the first."""
        mentions: list[Mention] = []
        for needed, find in self._recognisers:
            if needed.search(text):
                mentions += find(text)
        return keep_longest(mentions) if mentions else ()


def _mentions_by(recogniser: Any, text: str, offset: int = 0) -> Iterator[Mention]:
    for result in recogniser.analyze(text, recogniser.supported_entities):
        yield Mention(result.start + offset, result.end + offset, result.entity_type)


class _EmailRecogniser:
    """Finds e-mails with Presidio's recogniser and the public suffixes of tldextract; Presidio would download them.

    It is called on one word at a time, and on none of more than 2,048 characters, because its time is quadratic in the
    length, up to a timeout.
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
                yield from _mentions_by(self._recogniser, word.group(), word.start())


class _UrlRecogniser:
    """Finds URLs with Presidio's recogniser, called on the surroundings of every top-level domain that it knows.

    Its expressions try each place of a text as the beginning of a host of up to 253 characters, and hundreds of
    top-level domains at every dot: minutes for a long text of dots. No match begins further before a top-level domain
    than scheme, www and host take, or ends further behind it than a path.
    """

    def __init__(self) -> None:
        import regex
        from presidio_analyzer.predefined_recognizers import UrlRecognizer

        domains = re.findall(r"\(\?:([a-z0-9-]+)\)", UrlRecognizer.BASE_URL_REGEX)
        self._domain = regex.compile(rf"\.(?:{'|'.join(domains)})", regex.IGNORECASE)
        self._recogniser = UrlRecognizer()

    def find(self, text: str) -> Iterator[Mention]:
        for start, end in self._windows(text):
            yield from _mentions_by(self._recogniser, text[start:end], start)

    def _windows(self, text: str) -> Iterator[tuple[int, int]]:
        start = end = 0
        for domain in self._domain.finditer(text):
            if domain.start() < end:  # in the path of the domain before, and covered with it
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
    """Finds phone numbers with Presidio's recogniser, for the countries whose shortest number fits the text.

    A number fits if the text has as many digits in a row, with up to four other characters between two digits. A number
    with a country code is found whichever country is asked for. The country with the shortest numbers is therefore
    asked for if the shortest number of any country fits.
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
        most_digits = max((len(_DIGIT.findall(row)) for row in _DIGIT_ROW.findall(text)), default=0)
        for digits, recogniser in self._recognisers.items():
            if digits <= most_digits:
                return _mentions_by(recogniser, text)
        return ()
