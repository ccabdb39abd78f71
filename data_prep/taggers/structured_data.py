"""Find personal data that has a form: e-mail, URL, IP address, IBAN, card, social security and phone numbers.

The expressions join every tagger unless they are switched off, so they favour precision where a corpus is full of
numbers: seven digits in a row are no phone number, sixteen only a card number if their checksum holds. ``rules``
(:mod:`fl_sim.data_prep.taggers.rule_tagger`) also take the doubtful ones.

>>> [mentions] = StructuredTagger().tag(["Mail ada@example.org or ring 020 7946 0958."])
>>> mentions
(Mention(start=5, end=20, label='EMAIL'), Mention(start=29, end=42, label='PHONE'))
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fl_sim.data_prep.records import Mention
from fl_sim.data_prep.store.manifest import STRUCTURED
from fl_sim.data_prep.taggers.spans import replace_surrogates

STRUCTURED_VERSION = "1"
_SHORTEST_IBAN = 15

EMAIL = r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"
US_SSN = r"(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])"

# Domains that are no English word, and no usual ending of a file's name.
_DOMAINS = "com|net|org|edu|gov|mil|info|biz"
_COUNTRIES = "uk|de|fr|nl|eu|ca|au|jp|ch|cz|dk|fi|hu|kr|ru|se|tw|ua|br|cn|pl|pt|ie|nz|ar|mx|za|il|gr"
_HOST = r"(?<![\w@.-])(?:[a-z0-9][a-z0-9-]{0,62}\.){1,8}"
_URL = rf"""(?xi:
    (?<![a-z0-9]) [a-z][a-z0-9+.-]{{1,15}} :// [^\s<>"]{{0,2048}} [\w/]
  | (?<![\w@.]) www \. [^\s<>"]{{0,2048}} [\w/]
  | {_HOST} (?: (?:{_DOMAINS}) | (?<=[a-z0-9-]{{3}}\.) (?-i:{_COUNTRIES}) ) (?![\w@-]|\.[a-z0-9])
    (?: :\d+ )? (?: /(?:[^\s<>"]{{0,2048}}[\w/])? )?
)"""

_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IP = rf"""(?x:
    (?<![\w.]) (?: {_OCTET} \. ){{3}} {_OCTET} (?! \w | \.\d | -\d*[A-Za-z] | -\d+- )
  | (?<![\w:.]) [0-9A-Fa-f]{{0,4}} : [0-9A-Fa-f:]{{1,40}} (?: (?<=:) {_OCTET} (?: \.{_OCTET} ){{3}} )? (?! [\w:] )
)"""

_IBAN = r"\b[A-Za-z]{2}\d{2}(?: ?[A-Za-z0-9]{4}){2,7}(?: ?[A-Za-z0-9]{1,4})?\b"  # (?i) takes ı, ſ and U+212A, too
_CARD = r"(?<![\w.,-])(?:\d{13,19}|\d{4}([ -])\d{4}\1\d{4}\1\d{1,7}|\d{4}([ -])\d{6}\2\d{4,5})(?![\w-]|[.,]\d)"

_YEAR = r"(?:19|20)\d\d(?!\d)"
_PHONE = rf"""(?x:
    (?: (?<!\d) \+ [ ]? \(? [1-9] (?: [ ().-]{{0,2}} \d ){{6,14}}
      | (?<![\w.,+-]) (?! \d{{1,2}}[./-]\d{{1,2}}[./-]{_YEAR} ) (?:
          00 [1-9] (?: [ ().-]{{0,2}} \d ){{7,14}}
        | (?: 1[ .-] )? (?: \(\d{{3}}\)[ .-]? | \d{{3}}[ .-] ) \d{{3}} [ .-] \d{{4}}
        | \d{{3}} - \d{{4}}
        | (?: \( 0\d{{1,4}} \) | 0\d{{1,5}} ) [ ./-]{{0,3}} \d{{2,8}} (?: [ .-] \d{{2,8}} ){{0,4}}
        | [1-9]\d{{9,10}}
    ) ) (?: [ ]?(?:x|ext\.?)[ ]?\d{{1,6}} )? (?! \w | [.,-]\d )
)"""


@dataclass(frozen=True)
class _Kind:
    """A kind of structured data.

    Attributes:
        needs: an expression without which a text has no mention.
        pattern: of a candidate; repetitions are bounded, so a long text without spaces takes linear time.
        length: how many characters of a candidate are a mention, from its first; 0 if none.
    """

    label: str
    needs: re.Pattern[str]
    pattern: re.Pattern[str]
    length: Callable[[str], int] = len

    def find(self, text: str) -> Iterator[Mention]:
        if self.needs.search(text) is None:
            return
        for match in self.pattern.finditer(text):
            if length := self.length(match.group()):
                yield Mention(match.start(), match.start() + length, self.label)


def _ip_length(text: str) -> int:
    """Return the length of an address of either version, else 0; "::" and "10:30" are none."""
    if ":" in text and (len(text) < 4 or not any(map(str.isdigit, text))):
        return 0
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return 0
    return len(text)


def _iban_length(text: str) -> int:
    """Return the length of the longest run of words whose check digits are right (ISO 7064, modulo 97), else 0.

    >>> _iban_length("DE89 3704 0044 0532 0130 00 BIC")
    27
    """
    while True:
        code = text.replace(" ", "")
        if len(code) < _SHORTEST_IBAN:
            return 0
        if int("".join(str(int(character, 36)) for character in code[4:] + code[:4])) % 97 == 1:
            return len(text)
        text, _, _ = text.rpartition(" ")


def _card_length(text: str) -> int:
    """Return the length of digits that are grouped as on a card or have the right check digit (Luhn's), else 0."""
    digits = [int(digit) for digit in reversed(text) if digit.isdecimal()]
    checked = sum(digits[::2]) + sum(sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    grouped = len(digits) < len(text)
    return len(text) if text[0] in "23456" and (grouped or checked % 10 == 0) else 0


def _phone_length(text: str) -> int:
    """Return the length of a text with 7, or 9 to 15 digits before its extension, else 0."""
    digits = sum(map(str.isdecimal, re.split("[xe]", text)[0]))
    return len(text) if digits == 7 or 9 <= digits <= 15 else 0


_ADDRESSES = (
    _Kind("EMAIL", re.compile("@"), re.compile(EMAIL)),
    _Kind("URL", re.compile(r"://|\.[A-Za-z]{2}"), re.compile(_URL)),
    _Kind("IP", re.compile(r"\d\.\d|:[0-9A-Fa-f]*:"), re.compile(_IP), _ip_length),
)
_NUMBERS = (
    _Kind("IBAN", re.compile(r"[A-Za-z]{2}\d{2}"), re.compile(_IBAN), _iban_length),
    _Kind("US_SSN", re.compile(r"\d-\d\d-\d"), re.compile(US_SSN)),
    _Kind("CARD", re.compile(r"\d{4}"), re.compile(_CARD), _card_length),
    _Kind("PHONE", re.compile(r"\d{2}"), re.compile(_PHONE), _phone_length),
)
LABELS = frozenset(kind.label for kind in (*_ADDRESSES, *_NUMBERS))
_SHAPED = re.compile(r"\d\d|@|://|\.[A-Za-z]{2}|:[0-9A-Fa-f]*:|\d\.\d")


def find_structured(text: str) -> tuple[Mention, ...]:
    """Return the structured personal data in ``text``, by place.

    Addresses in addresses are mentions of their own (the e-mail in ``mailto:ada@example.org``, the host's number in
    ``http://10.0.0.7/``); of numbers that overlap anything else the first kind counts.
    """
    if _SHAPED.search(text) is None:
        return ()
    mentions = [mention for kind in _ADDRESSES for mention in kind.find(text)]
    taken = bytearray(len(text))
    for mention in mentions:
        taken[mention.start : mention.end] = b"\1" * (mention.end - mention.start)
    for kind in _NUMBERS:
        for mention in kind.find(text):
            if not any(taken[mention.start : mention.end]):
                mentions.append(mention)
                taken[mention.start : mention.end] = b"\1" * (mention.end - mention.start)
    return tuple(sorted(mentions, key=lambda mention: (mention.start, mention.end)))


class StructuredTagger:
    """Finds e-mail addresses, URLs, IP addresses, IBANs, card, US social security and phone numbers by their form."""

    labels = LABELS

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """Yield the structured data of every text."""
        return (find_structured(replace_surrogates(text)) for text in texts)

    def describe(self) -> dict[str, str]:
        """Return the tagger's name; the version is recorded with every tagger."""
        return {"tagger": STRUCTURED}
