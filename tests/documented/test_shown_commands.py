"""Every command that README.md and docs/ show stands in a ``bash`` block, is valid shell, and has flags that exist."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click
import pytest

from fl_sim.cli.verbs import fl_sim
from tests.documented.shown_commands import Block, blocks_of, commands_outside_of_blocks, name_of, pages

PAGES = pytest.mark.parametrize("page", pages(), ids=name_of)


@PAGES
def test_commands_stand_in_bash_blocks(page: Path) -> None:
    assert commands_outside_of_blocks(page) == []


@PAGES
def test_blocks_are_valid_shell(page: Path) -> None:
    for block in blocks_of(page):
        check = subprocess.run(["bash", "-n"], input=block.body, text=True, capture_output=True, check=False)
        assert check.returncode == 0, f"{name_of(page)}:{block.line}: {check.stderr}"


@PAGES
def test_no_placeholder_stands_in_a_block_that_is_run(page: Path) -> None:
    shown = [block for block in blocks_of(page) if not block.not_run]
    assert [block.body for block in shown if "…" in "".join(word for words in block.words() for word in words)] == []


@PAGES
def test_the_parser_takes_every_command(page: Path) -> None:
    for block in blocks_of(page):
        for words in block.words():
            if words[0] == "fl-sim" and len(words) > 1 and not _asks_a_plug_in(words):
                _parse(words[1:], f"{name_of(page)}:{block.line}")


def test_most_commands_are_run() -> None:
    """Blocks that no test runs are few, and each says why."""
    blocks = [block for page in pages() for block in blocks_of(page)]
    left_out = [block for block in blocks if block.not_run]
    run = [words for block in blocks if not block.not_run for words in block.words()]
    assert len(run) > 100
    assert sum(len(list(block.words())) for block in left_out) < len(run)
    assert all(len(block.not_run) > 10 for block in left_out)


def test_a_page_is_read_as_it_is_shown(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "    fl-sim corpus stats here\n\n"
        "<!-- not run: needs two machines -->\n```bash\nfl-sim run \\\n  --rounds 2 2> log\n"
        "for s in 1 2; do fl-sim run --seed $s; done  # two\n```\n\n```\nfl-sim run: out is full\n```\n",
        encoding="utf-8",
    )
    (block,) = blocks_of(page)
    assert (block.line, block.not_run) == (5, "needs two machines")
    assert list(block.words()) == [
        ["fl-sim", "run", "--rounds", "2"],
        ["s", "in", "1", "2"],
        ["fl-sim", "run", "--seed", "$s"],
    ]
    assert commands_outside_of_blocks(page) == ["    fl-sim corpus stats here"]


@pytest.mark.parametrize("kind", ["needs", "full size", "not run"])
def test_a_comment_before_a_block_says_when_it_runs(kind: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"<!-- {kind}: module its_module -->\n```bash\nfl-sim corpus stats here\n```\n", encoding="utf-8")
    (block,) = blocks_of(page)
    assert block == Block(3, "fl-sim corpus stats here", **{kind.replace(" ", "_"): "module its_module"})


@pytest.mark.parametrize("command", ["run --roundz 3", "corpus stats", "plan formula --rounds 3", "corpus"])
def test_a_wrong_command_is_noticed(command: str) -> None:
    with pytest.raises(AssertionError, match="here: fl-sim"):
        _parse(Block(1, command).body.split(), "here")


def _asks_a_plug_in(words: list[str]) -> bool:
    """Return whether the flags are those of a reader that the page shows or makes, or the command prints its help."""
    return "--help" in words or (words[1] == "prepare" and ":" in words[2])


def _parse(words: list[str], where: str) -> None:
    """Parse the words after ``fl-sim``, of which one with a variable of the shell stands for a number."""
    rest = ["1" if word.startswith("$") else word for word in words]
    command: click.Command = fl_sim
    context, name = None, "fl-sim"
    try:
        while isinstance(command, click.Group):
            context = click.Context(command, info_name=name, parent=context)
            name, command, rest = command.resolve_command(context, rest)
        command.make_context(name, rest, parent=context)
    except (click.ClickException, IndexError) as error:
        raise AssertionError(f"{where}: fl-sim {' '.join(words)}: {error}") from None
