"""Print the completion of a shell; ``source <(fl-sim completion bash)`` completes verbs, flags, choices and files.

The scripts for bash, zsh and fish are written from the parser as it is; nothing heavy is imported.

A script is static: it names the verbs, their flags and what each takes, and asks no Python when a key is pressed. Made
again after an upgrade, it knows the new flags.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fl_sim.cli.main import VERBS

_FILES, _FOLDERS = ("FILE", "CONFIG"), ("DIR", "RUN", "CORPUS", "PUBLIC_CORPUS", "NAME_OR_DIR")
_FILE_FLAGS, _FOLDER_FLAGS = ("--source", "--config"), ("--out",)
_LISTED = re.compile(r"([\w-]+(?:, [\w-]+)+)(?:, or an import path.*)?")
_LONGEST_HELP = 70


@dataclass(frozen=True, slots=True)
class Option:
    """A flag or a positional argument.

    Attributes:
        names: of a flag, such as ``-c`` and ``--config``; empty for a positional argument.
        kind: what it takes: ``nothing``, ``words``, ``file``, ``folder`` or ``text``.
        words: the words to choose from; beside folders those that ship.
        help: one line.
    """

    names: tuple[str, ...]
    kind: str
    words: tuple[str, ...]
    help: str


@dataclass(frozen=True, slots=True)
class Command:
    """A verb, or one of its own verbs, with what it takes.

    Attributes:
        path: ``/prepare/jsonl``; empty for ``fl-sim`` itself.
        help: one line.
        flags, positionals: what it takes.
        verbs: what may follow it, with a line of help each.
    """

    path: str
    help: str
    flags: tuple[Option, ...]
    positionals: tuple[Option, ...]
    verbs: Mapping[str, str]

    def option(self, name: str) -> Option:
        """Return a flag by one of its names."""
        return next(flag for flag in self.flags if name in flag.names)


def commands_of(parser: argparse.ArgumentParser) -> dict[str, Command]:
    """Return the commands of a parser by path; a verb's module is imported for its flags.

    >>> from fl_sim.cli.main import build_parser
    >>> commands = commands_of(build_parser())
    >>> [option.kind for option in commands["/report"].positionals], commands["/run"].option("--engine").words
    (['folder', 'folder'], ('ray', 'inline'))
    >>> sorted(SCRIPTS)
    ['bash', 'fish', 'zsh']
    """
    return {command.path: command for command in _walk(parser, "", "")}


def _walk(parser: argparse.ArgumentParser, path: str, help_line: str) -> Iterator[Command]:
    complete = getattr(parser, "complete", None)
    if complete is not None:
        complete()
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS or _is_verbs(action)]
    parsers = {
        name: child
        for action in actions
        if isinstance(action, argparse._SubParsersAction)
        for name, child in action._name_parser_map.items()
    }
    helps = {entry.dest: entry.help or "" for action in actions if _is_verbs(action) for entry in _entries(action)}
    helps |= {} if path else {verb: words for group in VERBS.values() for verb, (_, words) in group.items()}
    options = [_option(action) for action in actions if not _is_verbs(action)]
    flags, positionals = (tuple(o for o in options if bool(o.names) == named) for named in (True, False))
    yield Command(path, help_line, flags, positionals, {name: _line(helps.get(name, "")) for name in parsers})
    for name, child in parsers.items():
        yield from _walk(child, f"{path}/{name}", _line(helps.get(name, "")))


def _is_verbs(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)


def _entries(action: argparse.Action) -> Sequence[argparse.Action]:
    return action._choices_actions if isinstance(action, argparse._SubParsersAction) else ()


def _option(action: argparse.Action) -> Option:
    kind, words = _taken(action)
    return Option(tuple(action.option_strings), kind, words, _line(action.help or ""))


def _taken(action: argparse.Action) -> tuple[str, tuple[str, ...]]:
    """Return what an argument takes, and the words to choose from."""
    from fl_sim.data_prep import SHIPPED_CORPORA

    metavar = action.metavar if isinstance(action.metavar, str) else ""
    names = set(action.option_strings)
    if action.nargs == 0:
        return "nothing", ()
    if action.choices is not None:
        return "words", tuple(map(str, action.choices))
    if "--set" in names:
        return "words", tuple(f"{key}=" for key in _keys())
    if metavar.startswith(_FOLDERS) or names & set(_FOLDER_FLAGS):
        return "folder", tuple(SHIPPED_CORPORA) if "corpus" in f"{action.dest} {metavar}".lower() else ()
    if metavar.startswith(_FILES) or names & set(_FILE_FLAGS):
        return "file", ()
    words = _words_of_key(action.dest)
    return ("words", words) if words else ("text", ())


def _keys() -> list[str]:
    from fl_sim.config import run_keys

    return list(run_keys())


def _words_of_key(name: str) -> tuple[str, ...]:
    """Return the values of a configuration key that a flag stands for; none for one of many values, or no key."""
    from fl_sim.clients.models.architectures.model_source import MODELS
    from fl_sim.config import run_keys

    if name == "model.name":
        return tuple(MODELS.built_in)
    listed = _LISTED.fullmatch(run_keys()[name].allowed) if name in run_keys() else None
    return tuple(listed[1].split(", ")) if listed else ()


def _line(text: str) -> str:
    """Return the first clause of a help text, for a menu."""
    words = " ".join(text.replace("%%", "%").replace("`", "").split())
    return words if len(words) <= _LONGEST_HELP else words[: _LONGEST_HELP - 1].rsplit(" ", 1)[0] + " …"


def _bash(commands: Mapping[str, Command]) -> str:
    taken, flags, verbs = [], [], []
    for path, command in commands.items():
        for flag in command.flags:
            names = "|".join(f"{path}:{name}" for name in flag.names)
            taken.append(f"    {names}) echo {shlex.quote(' '.join([flag.kind, *flag.words]))} ;;")
        names = " ".join(name for flag in command.flags for name in flag.names)
        flags.append(f"    '{path}:') echo {shlex.quote(names)} ;;")
        verbs.append(f"    '{path}:') echo {shlex.quote(_positional_in_bash(command))} ;;")
    return _BASH.format(paths=_paths(commands), taken="\n".join(taken), flags="\n".join(flags), verbs="\n".join(verbs))


def _positional_in_bash(command: Command) -> str:
    if command.verbs:
        return " ".join(["words", *command.verbs])
    first = command.positionals[0] if command.positionals else Option((), "nothing", (), "")
    return " ".join([first.kind, *first.words])


def _paths(commands: Mapping[str, Command]) -> str:
    return "|".join(path for path in commands if path)


_BASH = """\
# bash completion of fl-sim; made by: fl-sim completion bash
_fl_sim_taken() {{
  case $1 in
{taken}
    *) echo none ;;
  esac
}}
_fl_sim_flags() {{
  case $1: in
{flags}
  esac
}}
_fl_sim_positional() {{
  case $1: in
{verbs}
  esac
}}
_fl_sim() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} command= i kind words
  for ((i = 1; i < COMP_CWORD; i++)); do
    case $command/${{COMP_WORDS[i]}} in {paths}) command+=/${{COMP_WORDS[i]}} ;; esac
  done
  COMPREPLY=()
  read -r kind words <<< "$(_fl_sim_taken "$command:$prev")"
  if [[ $kind == none || $kind == nothing ]]; then
    if [[ $cur == -* ]]; then kind=words words=$(_fl_sim_flags "$command")
    else read -r kind words <<< "$(_fl_sim_positional "$command")"; fi
  fi
  case $kind in
    file) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    folder) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur"; compgen -W "$words" -- "$cur") ;;
    words) mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
      [[ ${{COMPREPLY[0]-}} == *= ]] && compopt -o nospace ;;
  esac
}}
complete -F _fl_sim fl-sim
"""


def _zsh(commands: Mapping[str, Command]) -> str:
    taken, flags, verbs = [], [], []
    for path, command in commands.items():
        for flag in command.flags:
            if flag.kind != "nothing":
                names = "|".join(f"{path}:{name}" for name in flag.names)
                taken.append(f"    {names}) {_zsh_values(flag)}; return ;;")
        described = " ".join(shlex.quote(_zsh_entry(name, flag.help)) for flag in command.flags for name in flag.names)
        flags.append(f"    '{path}:') items=({described}) ;;")
        entries = " ".join(shlex.quote(_zsh_entry(name, words)) for name, words in command.verbs.items())
        first = command.positionals[0] if command.positionals else Option((), "nothing", (), "")
        shown = f"items=({entries}); _describe -V verb items" if command.verbs else _zsh_values(first)
        verbs.append(f"    '{path}:') {shown} ;;")
    return _ZSH.format(paths=_paths(commands), taken="\n".join(taken), flags="\n".join(flags), verbs="\n".join(verbs))


def _zsh_values(option: Option) -> str:
    words = " ".join(map(shlex.quote, option.words))
    if option.kind == "folder":
        return f"_files -/{f'; compadd -- {words}' if words else ''}"
    if option.kind == "words":
        joined = "-S '' " if option.words[0].endswith("=") else ""
        return f"compadd {joined}-- {words}"
    return "_files" if option.kind == "file" else ":"


def _zsh_entry(name: str, words: str) -> str:
    return f"{name}:{words}" if words else name


_ZSH = """\
#compdef fl-sim
# zsh completion of fl-sim; made by: fl-sim completion zsh
_fl-sim() {{
  local command= i
  local -a items
  for ((i = 2; i < CURRENT; i++)); do
    case $command/${{words[i]}} in ({paths}) command+=/${{words[i]}} ;; esac
  done
  case $command:${{words[CURRENT-1]}} in
{taken}
  esac
  if [[ ${{words[CURRENT]}} == -* ]]; then
    case $command: in
{flags}
    esac
    _describe -o flag items
    return
  fi
  case $command: in
{verbs}
  esac
}}
if [[ ${{funcstack[1]}} == _fl-sim ]]; then _fl-sim "$@"; else compdef _fl-sim fl-sim; fi
"""


def _fish(commands: Mapping[str, Command]) -> str:
    lines = []
    for path, command in commands.items():
        at = f"complete -c fl-sim -n '__fl_sim_at \"{path}\"'"
        lines += [f"{at} -a {_fish_word(name)} -d {_fish_word(words)}" for name, words in command.verbs.items()]
        lines += [f"{at} {_fish_names(flag)}{_fish_values(flag)} -d {_fish_word(flag.help)}" for flag in command.flags]
        if command.positionals and not command.verbs:
            lines.append(f"{at}{_fish_values(command.positionals[0]).replace(' -r', '').replace(' -x', '')}")
    return _FISH.format(paths=_paths(commands).replace("|", " "), lines="\n".join(lines))


def _fish_names(flag: Option) -> str:
    return " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names)


def _fish_values(option: Option) -> str:
    words = " ".join(option.words)
    if option.kind == "folder":
        return f" -x -a '(__fish_complete_directories) {words}'"
    by_kind = {"nothing": "", "file": " -r -F", "text": " -x"}
    return by_kind[option.kind] if option.kind in by_kind else f" -x -a {_fish_word(words)}"


def _fish_word(text: str) -> str:
    """Return text in single quotes, as fish reads them."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_FISH = """\
# fish completion of fl-sim; made by: fl-sim completion fish
function __fl_sim_at
  set -l command ''
  for word in (commandline -opc)[2..-1]
    contains -- $command/$word {paths}; and set command $command/$word
  end
  test "$command" = "$argv[1]"
end
complete -c fl-sim -f
{lines}
"""

SCRIPTS: Mapping[str, Callable[[Mapping[str, Command]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
"""What writes the script of each shell."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim completion``."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="whose script to print")


def run(args: argparse.Namespace) -> int:
    """Print the script; return the exit code 0."""
    from fl_sim.cli.main import build_parser

    print(SCRIPTS[args.shell](commands_of(build_parser())), end="")
    return 0
