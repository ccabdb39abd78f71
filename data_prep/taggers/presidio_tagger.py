"""Tag with Presidio's recognisers of personal data, without Presidio's analyser, models or network.

>>> [mentions] = PresidioTagger().tag(["Pay to 4012 8888 8888 1881."])
>>> mentions
(Mention(start=7, end=26, label='CREDIT_CARD'),)
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Iterable, Iterator
from typing import Any

from fl_sim.data_prep.records import CorpusError, Mention
from fl_sim.data_prep.taggers.spans import keep_longest, replace_surrogates

_RECOGNISERS = {
    "CREDIT_CARD": "CreditCardRecognizer",
    "CRYPTO": "CryptoRecognizer",
    "IBAN_CODE": "IbanRecognizer",
    "IP_ADDRESS": "IpRecognizer",
    "MAC_ADDRESS": "MacAddressRecognizer",
    "PHONE_NUMBER": "PhoneRecognizer",
    "US_SSN": "UsSsnRecognizer",
}
_PACKAGES = {"presidio": "presidio-analyzer", "phonenumbers": "phonenumbers"}


class PresidioTagger:
    """Finds phone, card, account and US social security numbers, IP, MAC and bitcoin addresses.

    Of mentions that overlap the longest counts. E-mail addresses and URLs are left to ``structured``, because
    Presidio's expressions for them take minutes on a long text of dots, and its list of public suffixes wants the
    network.

    Raises:
        CorpusError: Presidio is not installed.
    """

    labels = frozenset(_RECOGNISERS)

    def __init__(self) -> None:
        if importlib.util.find_spec("presidio_analyzer") is None:
            raise CorpusError("tagger presidio needs Presidio's recognisers: pip install 'fl-sim[pii]'")

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """Yield the mentions of each text."""
        for text in map(replace_surrogates, texts):
            results = (
                result for recogniser in self._recognisers for result in recogniser.analyze(text, [*self.labels])
            )
            yield keep_longest(Mention(result.start, result.end, result.entity_type) for result in results)

    def describe(self) -> dict[str, str]:
        """Return the versions of the packages whose code decides the mentions."""
        versions = {name: importlib.metadata.version(package) for name, package in _PACKAGES.items()}
        return {"tagger": "presidio", **versions}

    @functools.cached_property
    def _recognisers(self) -> list[Any]:
        from presidio_analyzer import predefined_recognizers

        return [getattr(predefined_recognizers, name)() for name in _RECOGNISERS.values()]
