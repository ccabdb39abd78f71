"""Plug-ins for tests: the code of a page in docs/extending, and packages that seem to be installed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGES = Path(__file__).resolve().parents[2] / "docs" / "extending"


def write_page_code(page: str, folder: Path) -> Path:
    """Write the Python block of a page to the file that its first line names."""
    (block,) = re.findall(
        r"^```python\n(.*?)^```$", (PAGES / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
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
