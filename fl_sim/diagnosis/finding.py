"""What one check found, with a verdict.

>>> worst([Finding("memory", "24 GiB", "ok"), Finding("disk", "0.1 GiB free", "warning")])
'warning'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "warning", "failed"]
_SEVERITY: tuple[Verdict, ...] = ("ok", "note", "warning", "failed")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        name: what was checked.
        value: what was found.
        verdict: ``ok``; ``note`` for something optional that is absent; ``warning`` for something that may surprise;
            ``failed`` for something that makes results wrong or impossible.
        advice: what to do about it, empty if nothing.
    """

    name: str
    value: str
    verdict: Verdict
    advice: str = ""


def worst(findings: Sequence[Finding]) -> Verdict:
    """Return the most severe verdict; ``ok`` if there is no finding."""
    return max((finding.verdict for finding in findings), key=_SEVERITY.index, default="ok")
