"""Turn an executed notebook into a Markdown page and the pictures that it shows."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat

_STYLE = re.compile(r"<style scoped>.*?</style>\s*", re.DOTALL)
_FRAME = re.compile(r'<table border="1" class="dataframe">')
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return the page of a notebook, and its pictures (PNG) by the name that the page shows them under."""
    notebook = nbformat.read(path, as_version=4)
    pictures: dict[str, bytes] = {}
    parts: list[str] = []
    heading = path.stem
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            heading = (_HEADING.findall(cell.source) or [heading])[-1]
        elif cell.cell_type == "code":
            parts.append(f"```python\n{cell.source}\n```")
            for output in cell.outputs:
                parts += _shown(output, f"{path.stem}_", heading, pictures)
    parts.insert(1, f"[Download this notebook]({path.name}?download){{ .md-button .notebook-download }}")
    return "\n\n".join(parts) + "\n", pictures


def _shown(output: nbformat.NotebookNode, prefix: str, heading: str, pictures: dict[str, bytes]) -> Iterator[str]:
    """Yield the Markdown of one output; add its picture to ``pictures``."""
    if output.output_type == "stream":
        yield _plain(output.text)
        return
    data = output.get("data", {})
    if "image/png" in data:
        name = f"{prefix}{len(pictures) + 1}.png"
        pictures[name] = base64.b64decode(data["image/png"])
        yield f"![{heading.replace('[', '(').replace(']', ')')}: picture {len(pictures)}]({name})"
    elif "text/markdown" in data:
        yield re.sub(r"^#+ (.*)$", r"**\1**", data["text/markdown"], flags=re.MULTILINE)
    elif "text/html" in data:
        yield _FRAME.sub("<table>", _STYLE.sub("", data["text/html"]))
    else:
        yield _plain(data.get("text/plain", ""))


def _plain(text: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text.rstrip()}\n{fence}"
