"""Import a program of ``scripts/`` as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import REPOSITORY


def imported_script(name: str, folder: Path = REPOSITORY / "scripts") -> ModuleType:
    """Return ``NAME.py`` of ``scripts/`` or another folder, imported; fail the test if it is absent."""
    path = folder / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        pytest.fail(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
