"""Plug-ins for tests: the code of docs/extending.md, and packages that seem to be installed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"


def page_section(title: str) -> str:
    """Return the section of the page with this title, without its heading."""
    return re.split(r"^## ", PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2], flags=re.MULTILINE)[0]


def write_page_code(title: str, folder: Path) -> Path:
    """Write the one Python block of a section to the file that its first line names."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", page_section(title), re.MULTILINE | re.DOTALL)
    path = folder / block.splitlines()[0].removeprefix("# ")
    path.write_text(block, encoding="utf-8")
    return path


@contextmanager
def imports_restored(*modules: str) -> Iterator[None]:
    """Forget ``modules``, and the folders that the block adds to the path."""
    path = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in modules:
            sys.modules.pop(name, None)


def install(folder: Path, package: str, group: str, name: str, value: str) -> None:
    """Make a distribution in ``folder``, which is to be on the path, that has one entry point."""
    info = folder / f"{package}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n", encoding="utf-8")
