"""Write the patch that puts fl_sim's strategy and mod into an app.

The strategy that starts is replaced by :class:`~fl_sim.flower.UserLevelDifferentialPrivacy` around one of Flower's that
sees sums alone; the app's clipping mods are replaced by ours. The rest of the app stays as it is.

>>> print(patched_client("app = ClientApp()\\n"))
from fl_sim.flower import userlevelclipping_mod
app = ClientApp(mods=[userlevelclipping_mod])
<BLANKLINE>
"""

from __future__ import annotations

import ast
import difflib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from fl_sim.checking.app_folder import AppFolder, CheckError
from fl_sim.checking.measurements import CLIPS, Measured

_WRAPPED = ("FedAvg", "FedAvgM", "FedProx", "FedAdam", "FedAdagrad", "FedYogi")
_KEPT = ("eta", "eta_l", "beta_1", "beta_2", "tau", "server_learning_rate", "server_momentum", "proximal_mu")
EPSILON = 8.0
"""The target where an app states no ε."""


def settings_of(found: Measured) -> str:
    """Return the arguments nearest to what was seen: users, their share of a round, the clip, and the stated ε."""
    norms = sorted(reply["update norm"] for reply in found.seen.replies.values() if "update norm" in reply)
    clip = float(f"{(norms[len(norms) // 2] if norms else 1.0) or 1.0:.2g}")
    rate = 1.0 if found.sampling in ("all", "same") else round(max(found.rate, 0.01), 3)
    stated = found.stated.epsilon
    target = stated if stated and stated < 50 else EPSILON
    return (
        f"population={found.nodes}, sampling_rate={rate:g}, clip_norm={clip:g}, "
        f"target_epsilon={target:.3g}, delta={found.stated.delta:g}"
    )


def patch(app: AppFolder, settings: str) -> dict[Path, tuple[str, str]]:
    """Return the files that change, with their text before and after.

    Raises:
        CheckError: the app has no strategy that starts, or no ClientApp, where they are looked for.
    """
    changed: dict[Path, tuple[str, str]] = {}
    project = app.path / "pyproject.toml"
    parts = [(_file(app, app.server), lambda text: patched_server(text, settings)),
             (_file(app, app.client), patched_client),
             (project, _patched_project)]  # fmt: skip
    for file, change in parts:
        before, text = changed.get(file, (file.read_text(encoding="utf-8"),) * 2)
        changed[file] = (before, change(text))
    return {file: texts for file, texts in changed.items() if texts[0] != texts[1]}


def diff(app: AppFolder, changed: dict[Path, tuple[str, str]]) -> str:
    """Return the changes as a unified diff, for ``git apply`` or ``patch -p1`` in the app's folder."""
    lines = list[str]()
    for file, (before, after) in changed.items():
        name = file.relative_to(app.path)
        lines += difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{name}", f"b/{name}")
    return "".join(lines)


def copied(app: AppFolder, changed: dict[Path, tuple[str, str]], folder: Path) -> Path:
    """Write the changed app into a new folder, and return its path."""
    target = folder / app.path.name
    shutil.copytree(app.path, target, ignore=shutil.ignore_patterns("__pycache__", ".git", ".venv"))
    for file, (_, after) in changed.items():
        (target / file.relative_to(app.path)).write_text(after, encoding="utf-8")
    return target


def patched_server(text: str, settings: str) -> str:
    """Return a server's module with our strategy put in before the strategy starts.

    Raises:
        CheckError: no strategy starts there.
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for statement in getattr(node, "body", []) if not isinstance(node, ast.Lambda) else []:
            if isinstance(statement, ast.Assign | ast.Expr | ast.Return) and (name := _started(statement)):
                inner = _inner(tree, name, text)
                indent = " " * statement.col_offset
                call = f"UserLevelDifferentialPrivacy(\n{indent}    {inner}, {settings}\n{indent})"
                new = f"{indent}{name} = {call}\n"
                lines = text.splitlines(True)
                lines.insert(statement.lineno - 1, new)
                text = _with_import("".join(lines), "fl_sim.flower", "UserLevelDifferentialPrivacy")
                own = inner.partition("(")[0]
                known = re.search(rf"import[^\n]*\b{own}\b", text)
                return text if known else _with_import(text, "flwr.serverapp.strategy", own)
    raise CheckError("no patch: no strategy starts in the module of the ServerApp; docs/flower.md shows the lines")


def patched_client(text: str) -> str:
    """Return a client's module with our mod in the place of other clips.

    Raises:
        CheckError: no ClientApp is made there.
    """
    call = next((c for c in _calls(ast.parse(text)) if _name(c.func) == "ClientApp"), None)
    if call is None:
        raise CheckError("no patch: no ClientApp is made in the module of the client; docs/flower.md shows the lines")
    mods = next((word.value for word in call.keywords if word.arg == "mods"), None)
    others = mods.elts if isinstance(mods, ast.List) else []
    kept = [ast.unparse(mod) for mod in others if not any(clip in ast.unparse(mod) for clip in CLIPS)]
    wanted = ", ".join([*kept, "userlevelclipping_mod"])
    return _with_import(_put(text, call, f"ClientApp(mods=[{wanted}])"), "fl_sim.flower", "userlevelclipping_mod")


def _patched_project(text: str) -> str:
    listed = re.search(r"\ndependencies\s*=\s*\[.*?\]", text, re.DOTALL)
    if listed is None or re.search(r"""["']fl-sim\b""", listed[0]):
        return text
    return re.sub(r"(\ndependencies\s*=\s*\[)(\s*)", r'\1\2"fl-sim",\2', text, count=1)


def _file(app: AppFolder, component: str) -> Path:
    name = component.partition(":")[0].replace(".", "/")
    file = next((path for path in (app.path / f"{name}.py", app.path / name / "__init__.py") if path.is_file()), None)
    if file is None:
        raise CheckError(f"no patch: {component} is not in the app's folder")
    return file


def _started(statement: ast.stmt) -> str | None:
    """Return the name of the strategy that a statement starts."""
    for call in _calls(statement):
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr == "start" and isinstance(function.value, ast.Name):
            return function.value.id
    return None


def _inner(tree: ast.AST, name: str, text: str) -> str:
    """Return the strategy that ours shall wrap: that of Flower's which the app makes, without what ours refuses."""
    for call in _calls(tree):
        if _name(call.func) in _WRAPPED:
            words = [ast.unparse(word) for word in call.keywords if word.arg in _KEPT]
            return f"{_name(call.func)}({', '.join(words)})"
    return "FedAvg()"


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _put(text: str, node: ast.Call, new: str) -> str:
    """Return a text with something else in the place of a call; columns count bytes."""
    lines = text.encode().splitlines(True)
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: (node.end_lineno or 1) - 1])) + (node.end_col_offset or 0)
    content = b"".join(lines)
    return (content[:begin] + new.encode() + content[end:]).decode()


def _with_import(text: str, module: str, name: str) -> str:
    """Return a module with one more import, after its other imports at the top."""
    body = ast.parse(text).body
    imports = [statement for statement in body if isinstance(statement, ast.Import | ast.ImportFrom)]
    docstring = body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    line = (imports[-1].end_lineno or 0) if imports else (body[0].end_lineno or 0) if docstring else 0
    lines = text.splitlines(True)
    lines.insert(line, f"from {module} import {name}\n")
    return "".join(lines)
