"""Presidio's recognisers of personal data, called one by one, without its analyser, models or network."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator
from typing import Any

from data_prep.records import CorpusError, Mention
from data_prep.spans import longest

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
_LONGEST_WORD = 2048
"""Characters; the expressions for URLs take time that grows with the square of a word's length."""

# What a text must hold for a recogniser to find anything in it; each follows from the recogniser's own expressions,
# and tests compare both ways on text that is made to come close.
_AT = re.compile("@")
_DOMAIN = re.compile(r"\.\w[\w-]")
_DIGITS_3 = re.compile(r"\d{3}")
_DIGITS_4 = re.compile(r"\d{4}")
_IBAN_HEAD = re.compile(r"[A-Z]{2}[0-9]{2}")
_IP = re.compile(r"\d\.\d|:[0-9A-Fa-f]{0,4}:")
_CODE = re.compile(r"\w{26}")
_MAC = re.compile(r"[0-9A-Fa-f]{2}[:-][0-9A-Fa-f]{2}[:-]|[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}\.")

_CHUNK = re.compile(r"[^ \t\r\n]+")


def require_presidio() -> None:
    """Raise :class:`CorpusError` unless Presidio is installed."""
    if importlib.util.find_spec("presidio_analyzer") is None:
        raise CorpusError("patterns need Presidio's recognisers: pip install 'fl-sim[pii]'")


def presidio_versions() -> dict[str, str]:
    """Name → version of the packages whose code decides what is found."""
    return {name: importlib.metadata.version(package) for name, package in _PACKAGES.items()}


class Recognisers:
    """E-mails, URLs, phone, card, IBAN and US social security numbers, IP, MAC and bitcoin addresses.

    A recogniser is asked only about text in which it could find something. E-mails and URLs hold no white space and
    are looked for word by word; a word of more than 2,048 characters is skipped, because their expressions would take
    minutes over it and then be cut off by a clock, which would make the result depend on the machine.
    """

    def __init__(self) -> None:
        from presidio_analyzer import predefined_recognizers as presidio

        self._whole: list[tuple[re.Pattern[str], Any]] = [
            (_phone_digits(), presidio.PhoneRecognizer()),
            (_DIGITS_4, presidio.CreditCardRecognizer()),
            (_IBAN_HEAD, presidio.IbanRecognizer()),
            (_DIGITS_3, presidio.UsSsnRecognizer()),
            (_IP, presidio.IpRecognizer()),
            (_CODE, presidio.CryptoRecognizer()),
            (_MAC, presidio.MacAddressRecognizer()),
        ]
        self._by_word: list[tuple[re.Pattern[str], Any]] = [
            (_AT, _offline_email_recogniser()),
            (_DOMAIN, presidio.UrlRecognizer()),
        ]

    def find(self, text: str) -> tuple[Mention, ...]:
        """What they find in ``text``; of spans that overlap the longest, then the first."""
        found: list[Mention] = []
        for needed, recogniser in self._whole:
            if needed.search(text):
                found += _asked(recogniser, text, 0)
        for needed, recogniser in self._by_word:
            if needed.search(text):
                for word in _CHUNK.finditer(text):
                    if len(word.group()) <= _LONGEST_WORD and needed.search(word.group()):
                        found += _asked(recogniser, word.group(), word.start())
        return longest(found) if found else ()


def _asked(recogniser: Any, text: str, offset: int) -> Iterator[Mention]:
    for result in recogniser.analyze(text, recogniser.supported_entities):
        yield Mention(result.start + offset, result.end + offset, result.entity_type)


def _offline_email_recogniser() -> Any:
    """Presidio's, which would fetch the list of public suffixes, with the list that comes with tldextract."""
    import tldextract
    from presidio_analyzer.predefined_recognizers import EmailRecognizer

    extract = tldextract.TLDExtract(cache_dir=None, suffix_list_urls=())

    class OfflineEmailRecognizer(EmailRecognizer):
        def validate_result(self, pattern_text: str) -> bool:
            return extract(pattern_text).fqdn != ""

    return OfflineEmailRecognizer()


def _phone_digits() -> re.Pattern[str]:
    """As many digits as the shortest number of any country has, each at most four other characters from the next."""
    import phonenumbers

    countries: Any = map(phonenumbers.PhoneMetadata.metadata_for_region, phonenumbers.SUPPORTED_REGIONS)
    shortest = min(min(country.general_desc.possible_length) for country in countries)
    return re.compile(rf"\d(?:\D{{0,4}}\d){{{shortest - 1}}}")
