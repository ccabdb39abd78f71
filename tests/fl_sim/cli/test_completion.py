"""fl-sim completion: the scripts know the parser, and really complete in the shells that are installed."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fl_sim.cli.main import VERBS, build_parser, main
from fl_sim.cli.project_commands.completion_command import SCRIPTS, commands_of

CASES = [
    ("fl-sim re", {"report", "resume", "represent", "reproduce"}),
    ("fl-sim run --eng", {"--engine"}),
    ("fl-sim run --engine ", {"ray", "inline"}),
    ("fl-sim run --set engine.num_", {"engine.num_cpus=", "engine.num_gpus="}),
    ("fl-sim run --strategy u", {"uedp", "user_level"}),
    ("fl-sim run ma", {"main.toml"}),
    ("fl-sim run --json ma", {"main.toml"}),
    ("fl-sim run --corpus b", {"bundled", "big"}),
    ("fl-sim prepare js", {"jsonl"}),
    ("fl-sim prepare jsonl --so", {"--source"}),
    ("fl-sim prepare jsonl --nested o", {"outermost"}),
    ("fl-sim report b", {"big"}),
    ("fl-sim ner ev", {"evaluate"}),
    ("fl-sim completion f", {"fish"}),
]

BASH = """
source {script}
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
compopt() {{ :; }}  # a builtin that works while a line is being edited
_fl_sim
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

ZSH = """
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "autoload -Uz compinit; compinit -u -D; source {script}"
zpty -w shell 'compadd() {{ builtin compadd -A found_ "$@"; print -rl -- $found_ >> {found}; builtin compadd "$@" }}'
zpty -w shell 'PS1=rea''dy:'
zpty -r -m shell seen '*ready:*'
zpty -w -n shell {line}$'\\t'$'\\C-u'
zpty -w shell ' print do''ne'
zpty -r -m shell seen '*done*'
zpty -d shell
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    commands = commands_of(build_parser())
    for shell, write in SCRIPTS.items():
        (folder / shell).write_text(write(commands), encoding="utf-8")
    (folder / "main.toml").touch()
    (folder / "big").mkdir()
    return folder


def flags_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for child in action._name_parser_map.values():
                yield from flags_of(child)


@pytest.mark.parametrize("shell", SCRIPTS)
def test_every_verb_and_flag_is_there(shell: str, scripts: Path) -> None:
    parser = build_parser()
    commands_of(parser)  # the verbs' modules add their flags
    text = (scripts / shell).read_text(encoding="utf-8")
    verbs = [verb for group in VERBS.values() for verb in group]
    flags = [flag.lstrip("-") if shell == "fish" else flag for flag in flags_of(parser)]
    assert len(set(flags)) > 150
    assert [word for word in (*verbs, *flags) if word not in text] == []


def run(program: list[str], folder: Path) -> set[str]:
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    assert not done.stderr, done.stderr
    return {line.partition("\t")[0].rstrip("/") for line in done.stdout.splitlines() if line}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(("line", "offered"), CASES)
def test_bash_completes(line: str, offered: set[str], scripts: Path) -> None:
    words = " ".join(shlex.quote(word) for word in line.split(" "))
    assert run(["bash", "-c", BASH.format(script=scripts / "bash", words=words)], scripts) == offered


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish here")
@pytest.mark.parametrize(("line", "offered"), CASES)
def test_fish_completes(line: str, offered: set[str], scripts: Path) -> None:
    command = f"source {scripts / 'fish'}; complete -C {shlex.quote(line)}"
    assert run(["fish", "--no-config", "-c", command], scripts) == offered


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh here")
@pytest.mark.parametrize(("line", "offered"), CASES)
def test_zsh_completes(line: str, offered: set[str], scripts: Path, tmp_path: Path) -> None:
    found = tmp_path / "found"
    program = ZSH.format(script=scripts / "zsh", found=found, line=shlex.quote(line))
    for _ in range(5):  # the pseudo-terminal of a busy machine may lose the tab
        run(["zsh", "-f", "-c", program], scripts)
        if found.exists():
            break
    assert set(found.read_text().split()) == offered


@pytest.mark.system
def test_the_command_prints_a_script_and_imports_no_torch(capsys: pytest.CaptureFixture[str]) -> None:
    program = (
        "import sys\nfrom fl_sim.cli.main import main\nmain(['completion', 'bash'])\n"
        "sys.exit(str({'torch', 'flwr', 'ray', 'spacy', 'pyarrow'} & set(sys.modules) or ''))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip() == ""
    assert "complete -F _fl_sim fl-sim" in done.stdout
    with pytest.raises(SystemExit):
        main(["completion", "tcsh"])
    assert "'tcsh'" in capsys.readouterr().err
