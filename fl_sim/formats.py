"""Figures as text, for every screen, message and document: each is rounded to its safe side.

A bound that holds from above (ε, δ, a number of users at risk) is rounded up, so that none is ever understated; so is a
noise multiplier, which protects better if it is larger. A lower bound and a sampling rate are rounded down.

>>> format_epsilon(2.6701), format_epsilon(float("inf")), format_number(14041)
('2.68', '∞', '14,041')
>>> format_delta(1e-5), format_delta(1.2345644e-5)
('1e-5', '1.23457e-5')
>>> format_figure("noise_multiplier", 1.23456701), format_figure("q_u", 0.0499999999), format_figure("rounds", 30)
('1.23457', '0.0499999', '30')
>>> format_at_risk(1e-5, 14041)
'0.15'
>>> printable("ann\\x1b[31m")
'ann\\\\u001b[31m'
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


def format_epsilon(value: float | None) -> str:
    """Return ε rounded up: three decimals below 1, two below 100, none above; "∞", or "–" if there is no figure."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    return _with_decimals(value, ROUND_CEILING)


def format_lower_bound(value: float | None) -> str:
    """Return a lower bound on ε rounded down, with as many decimals as :func:`format_epsilon` shows."""
    if value is None or not math.isfinite(value):
        return format_epsilon(value)
    shown = _with_decimals(value, ROUND_FLOOR)
    return shown if value <= 0 or _shows_digits(shown) else round_down(value, 2)


def nonzero(value: float, form: str) -> str:
    """Return ``format(value, form)``; two significant digits where a value that is not zero would read as zero.

    >>> nonzero(0.25, ".1%"), nonzero(0.0002, ".1%"), nonzero(0.004, ".1f"), nonzero(0.0, ".1f")
    ('25.0%', '0.02%', '0.004', '0.0')
    """
    text = format(value, form)
    if value == 0 or not math.isfinite(value) or _shows_digits(text):
        return text
    return f"{100 * value:.2g}%" if form.endswith("%") else f"{value:.2g}"


def percent_down(share: float) -> str:
    """Return a share in percent, rounded down to tenths, or to one digit below a tenth: a promise is not overstated.

    >>> percent_down(0.99999), percent_down(0.0004), percent_down(0.0)
    ('99.9', '0.04', '0.0')
    """
    tenths = f"{math.floor(1000 * share + 1e-9) / 10:.1f}"
    return tenths if share <= 0 or _shows_digits(tenths) else round_down(100 * share, 1)


def percent_up(share: float) -> str:
    """Return a share in percent, rounded up to tenths: a risk is not understated.

    >>> percent_up(0.00001), percent_up(0.0)
    ('0.1', '0.0')
    """
    return f"{math.ceil(1000 * share - 1e-9) / 10:.1f}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as lines: the first column to the left, the others to the right, two spaces apart; nothing is cut.

    >>> aligned([["", "ε"], ["any user", "1.25"]])
    ['             ε', 'any user  1.25']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        right = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        lines.append("  ".join([f"{first:<{widths[0]}}", *right]).rstrip())
    return lines


def hanging(label: str, text: str, indent: int | None = None, width: int = 80) -> list[str]:
    """Return a text beside its label as lines, the further ones indented by as much as the label is long, or else.

    >>> hanging("Run  ", "one two three", width=12), hanging("Notes: ", "one two", 2, width=10)
    (['Run  one two', '     three'], ['Notes: one', '  two'])
    """
    further = " " * (len(label) if indent is None else indent)
    wrap = textwrap.TextWrapper(width, initial_indent=label, subsequent_indent=further, break_on_hyphens=False)
    return wrap.wrap(text) or [label]


def numbered(names: Sequence[str], head: Sequence[str], rows: Sequence[Sequence[str]], width: int = 80) -> list[str]:
    """Return long names with a number each, wrapped, and under them a table whose rows begin with these numbers.

    >>> numbered(["a long name"], ["ε", "runs"], [["1.25", "3"]])
    ['1  a long name', '', '      ε  runs', '1  1.25     3']
    """
    digits = len(str(len(names)))
    lines = []
    for number, name in enumerate(names, start=1):
        lines += textwrap.wrap(f"{number:<{digits}}  {name}", width, subsequent_indent=" " * (digits + 2))
    return [*lines, "", *aligned([["", *head], *([str(n), *row] for n, row in enumerate(rows, start=1))])]


def _shows_digits(text: str) -> bool:
    return any(digit in text for digit in "123456789")


def round_up(value: float, digits: int = 6) -> str:
    """Return ``value`` rounded up to ``digits`` significant digits, as text."""
    return _significant(value, digits, ROUND_CEILING)


def round_down(value: float, digits: int = 6) -> str:
    """Return ``value`` rounded down to ``digits`` significant digits, as text."""
    return _significant(value, digits, ROUND_FLOOR)


def format_at_risk(delta: float | None, users: float | None) -> str:
    """Return δ·N rounded up to two digits; "?" if one of them is unknown.

    It is the expected number of users whose data an (0, δ) mechanism might publish: one that publishes each user's data
    with probability δ satisfies every (ε, δ) guarantee.
    """
    return "?" if delta is None or users is None else round_up(delta * users, 2)


def format_figure(name: str, value: Any) -> str:
    """Return a figure of a JSON report (number, text, list, mapping) as text, rounded to the safe side of ``name``."""
    if isinstance(value, list):
        return ", ".join(format_figure(name, item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {format_figure(key, item)}" for key, item in value.items())
    if not isinstance(value, float):
        return str(value)
    if name.startswith("epsilon"):
        return format_lower_bound(value) if "lower" in name else format_epsilon(value)
    if math.isfinite(value) and name.startswith(_ROUNDED_UP):
        return round_up(value)
    if math.isfinite(value) and name.startswith(_ROUNDED_DOWN):
        return round_down(value)
    return f"{value:.6g}"


_ROUNDED_UP = ("delta", "noise_", "user_cap", "tpr_")
_ROUNDED_DOWN = ("q_",)
_HUGE = 1e15  # the precision of decimals ends some digits later


def _with_decimals(value: float, rounding: str) -> str:
    if value >= _HUGE:
        return _significant(value, 3, rounding)
    digits = "0.001" if value < 1 else "0.01" if value < 100 else "1"
    return str(Decimal(repr(float(value))).quantize(Decimal(digits), rounding=rounding))


def _significant(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return format_epsilon(value)
    rounded = Context(prec=digits, rounding=rounding).create_decimal(Decimal(repr(float(value))))
    text = f"{rounded.normalize():f}" if 1e-4 <= abs(value) < 10**digits or value == 0 else f"{rounded.normalize():e}"
    return text.replace("e-0", "e-").replace("e+0", "e+")


def epsilon_in_words(row: Mapping[str, float]) -> str:
    """Return the ε that leads in the metrics of a round, and that of a user: "ε any 7.69, user 5.66".

    Without a bound on entities, the ε of a stated bound leads, or else that of the 95th percentile of contributions.
    """
    for name, words in {"any": "any", "stated": "stated", "user_entity_p95": "user+entity (p95)"}.items():
        value = row.get(f"epsilon_{name}")
        if value is not None and math.isfinite(value):
            return f"ε {words} {format_epsilon(value)}, user {format_epsilon(row['epsilon_user'])}"
    return f"ε user {format_epsilon(row['epsilon_user'])}"


def format_delta(value: float | None) -> str:
    """Return δ as people write it, 1e-5, rounded up to six digits."""
    return "?" if value is None else f"{float(round_up(value)):g}".replace("e-0", "e-")


def csv_cell(value: Any) -> Any:
    """Return a cell of CSV: before a text that a spreadsheet would compute stands an apostrophe; numbers stay numbers.

    >>> csv_cell("=1+1"), csv_cell("@name"), csv_cell("-1.5"), csv_cell(-1.5), csv_cell("a-b")
    ("'=1+1", "'@name", '-1.5', -1.5, 'a-b')
    """
    if not isinstance(value, str) or not value.startswith(_BEGIN_FORMULAS):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


_BEGIN_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def duration(seconds: float) -> str:
    """Return seconds as people write them.

    >>> duration(59), duration(600)
    ('59 s', '10 min')
    """
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def format_number(value: Any) -> str:
    """Return a count with thousands separators, another number with four digits, and "?" for None."""
    if value is None:
        return "?"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4g}"
    return "∞" if value == math.inf else f"{int(value):,}"


def counted(number: float | None, noun: str) -> str:
    """Return a number with its noun: "1 user", "2 users"."""
    return f"{format_number(number)} {noun}" + ("" if number == 1 else "s")


# Controls, separators of lines, marks that turn the direction of text, invisible tags, halves of surrogate pairs.
_OBEYED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable_lines(text: str) -> str:
    """Return text without what a terminal would obey or what hides or turns text, as JSON's escapes; lines stay."""
    return _OBEYED.sub(lambda match: json.dumps(match[0])[1:-1], text)


def printable(text: object) -> str:
    """Return a name for one line of a message, table or document: like :func:`printable_lines`, without line ends."""
    return printable_lines(str(text)).replace("\n", "\\n").replace("\t", "\\t")


def shortened(text: object, most: int = 200) -> str:
    """Return a message of a library in one line of at most so many characters, cut at the end of a word.

    >>> shortened("outgoing traffic has been disabled", 24), shortened("short")
    ('outgoing traffic has …', 'short')
    """
    words = " ".join(str(text).split())
    if len(words) <= most:
        return words
    return f"{words[: most - 1].rpartition(' ')[0] or words[: most - 2]} …"


def one_line(error: BaseException, *, named: bool = False) -> str:
    """Return the message of an error in one line, with the error's type before it if it is ``named`` or says nothing.

    >>> one_line(OSError("disk\\n full")), one_line(ValueError("no"), named=True), one_line(KeyError())
    ('disk full', 'ValueError: no', 'KeyError')
    """
    name, words = type(error).__name__, " ".join(str(error).split())
    return f"{name}: {words}" if named and words else words or name


def reason_of(error: Exception, quoted: tuple[type[Exception], ...], *, named: bool = True) -> str:
    """Return what a node tells the server of its failure: an error of a type in ``quoted`` in one line, another's type.

    The text of an error that is not among them may quote a user's data.

    >>> reason_of(ValueError("no"), (ValueError,)), reason_of(KeyError("Ada left."), (ValueError,))
    ('ValueError: no', "KeyError (the node's log has its text)")
    """
    if isinstance(error, quoted):
        return printable(one_line(error, named=named))
    return f"{type(error).__name__} (the node's log has its text)"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, and the next if it ends in a colon, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shortened(" ".join(lines[: 2 if lines[0].endswith(":") else 1])) if lines else type(error).__name__


def first_mistake(error: ValidationError, whole: str = "its content") -> str:
    """Return the key of the first mistake that pydantic found, or ``whole`` for that of no key, and what is wrong."""
    first = error.errors(include_url=False, include_input=False)[0]
    key, words = ".".join(map(str, first["loc"])) or whole, first["msg"].removeprefix("Value error, ")
    return f"{key}: {words[0].lower()}{words[1:]}".removeprefix(": ")


def table_cell(text: object) -> str:
    """Return a name for a table of rich, in which brackets would be markup.

    >>> table_cell("[bold]Ada")
    '\\\\[bold]Ada'
    """
    name = re.sub(r"(\\*)(\[[a-z#/@])", r"\1\1\\\2", printable(text), flags=re.IGNORECASE)
    return name + "\\" if name.endswith("\\") else name
