"""What to say when the Hugging Face hub, or a local folder, does not give what was asked for."""

from __future__ import annotations

import os
from pathlib import Path

_LONGEST_CAUSE = 200


def offline() -> bool:
    """Whether the user switched the hub off (``HF_HUB_OFFLINE`` or ``TRANSFORMERS_OFFLINE``)."""
    truthy = {"1", "true", "yes", "on"}
    return any(
        os.environ.get(key, "").lower() in truthy for key in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def describe_failure(name: str, error: Exception) -> str:
    """One line: where was looked, and the first line of the cause."""
    if Path(name).is_dir():
        tried = f"tried the local folder {Path(name).resolve()}"
    elif offline():
        tried = "no such local folder, and not in the local cache; the hub is switched off (HF_HUB_OFFLINE)"
    else:
        tried = "no such local folder; tried the Hugging Face hub"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = lines[0] if lines else type(error).__name__
    return f"{tried} ({cause[:_LONGEST_CAUSE]})"
