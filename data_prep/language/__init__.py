"""The English of the synthetic corpus: what its people talk about, and in which words."""

from data_prep.language.common import COMMON_RULES
from data_prep.language.daily_life import DAILY_LIFE
from data_prep.language.public_life import PUBLIC_LIFE

TOPICS: dict[str, dict[str, str]] = {**PUBLIC_LIFE, **DAILY_LIFE}
"""Topic → rule → its productions: one a line under ``sentence``, comma-separated in every other rule."""

__all__ = ["COMMON_RULES", "TOPICS"]
