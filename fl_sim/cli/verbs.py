"""List the verbs of ``fl-sim``, and import one when it is used.

>>> sorted(VERBS["privacy"])
['account', 'audit', 'check', 'entities', 'plan']
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from fl_sim import __version__

_COMMANDS, _RESEARCH = "fl_sim.cli.commands", "fl_sim.research"

VERBS: dict[str, dict[str, tuple[str, str]]] = {
    "projects": {
        "new": (f"{_COMMANDS}.new_command", "make a small project that runs, with parts of its own"),
        "doctor": (f"{_COMMANDS}.doctor_command", "check this installation, its devices and engines"),
    },
    "corpora": {
        "prepare": (f"{_COMMANDS}.prepare_command", "make a corpus from text, a table or a dataset"),
        "corpus": (f"{_COMMANDS}.corpus_command", "count, compare, de-identify a corpus; train or evaluate on it"),
    },
    "runs": {
        "run": (f"{_COMMANDS}.run_command", "simulate a private training run"),
        "resume": (f"{_COMMANDS}.run_command", "continue an interrupted run"),
        "list": (f"{_COMMANDS}.report_command", "list the runs in folders: ε, utility, rounds, state"),
        "report": (f"{_COMMANDS}.report_command", "show runs: text, JSON, a page, a picture, a table"),
        "sweep": (f"{_COMMANDS}.run_command", "run a grid or random search of settings, and print a table"),
        "generate": (f"{_COMMANDS}.generate_command", "continue prompts with the model of a run"),
        "leak": (f"{_COMMANDS}.audit_command", "attack a run's model, beside the most that ε allows"),
    },
    "privacy": {
        "account": (f"{_COMMANDS}.account_command", "compute ε, or the setting that meets a target ε"),
        "plan": (f"{_COMMANDS}.plan_command", "choose settings: by formula, or by trials on public text"),
        "entities": (f"{_COMMANDS}.entities_command", "compute ε of every entity of a corpus, and its distribution"),
        "check": (f"{_COMMANDS}.check_command", "run somebody's Flower app, and say what its ε is worth"),
        "audit": (f"{_COMMANDS}.audit_command", "attack a mechanism: a lower bound on ε, beside the claimed ε"),
    },
    "research": {
        "reproduce": (f"{_RESEARCH}.reproduce_command", "make a figure or table of the UeDP paper, or one of ours"),
        "represent": (f"{_RESEARCH}.represent_command", "classify perturbed representations, and attack them"),
    },
}
"""The verbs by group: the module that has the command under the verb's name, and what the verb does."""

_ALL = {name: entry for verbs in VERBS.values() for name, entry in verbs.items()}


class Running:
    """The command at work, for messages: its words, and its flags by parameter; the object of every context."""

    def __init__(self, flags: Mapping[str, str] | None = None) -> None:
        self.path, self.flags = "fl-sim", flags or {}


_PARAMETER = re.compile(r"`([a-z]\w*)`")


def with_flags(words: str, running: Running) -> str:
    """Return a message of the API, in which parameters stand in backquotes, with the flags of the command at work.

    >>> with_flags("`noise_multiplier` is 0; see `joined_at`", Running(flags={"noise_multiplier": "--z"}))
    '--z is 0; see --joined-at'
    """
    return _PARAMETER.sub(lambda match: running.flags.get(match[1], f"--{match[1].replace('_', '-')}"), words)


class Verb(click.Command):
    """A command of ``fl-sim``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; remember the command and its flags, so that any error can name them."""
        running = ctx.ensure_object(Running)
        running.path = ctx.command_path
        running.flags = {str(parameter.name): parameter.opts[0] for parameter in self.params}
        return super().parse_args(ctx, args)


class VerbGroup(Verb, click.Group):
    """A verb with verbs of its own."""

    command_class = Verb

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"no_args_is_help": False, **settings})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; a flag before the verb that takes it is told so."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            verbs = ", ".join(self.list_commands(ctx))
            raise click.UsageError(f"{error.option_name} comes before a verb; allowed: one of {verbs} first") from error

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the command of a verb; a verb that does not exist is compared with those that do."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise click.exceptions.NoSuchCommand(args[0], possibilities=self.list_commands(ctx), ctx=ctx)
        return super().resolve_command(ctx, args)


class _AllVerbs(VerbGroup):
    """The command ``fl-sim``, which imports a verb when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all verbs."""
        return list(_ALL)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of a verb; None if there is no such verb."""
        if cmd_name not in _ALL:
            return None
        command: click.Command = getattr(importlib.import_module(_ALL[cmd_name][0]), cmd_name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the verbs that begin so, without importing them, or the options."""
        verbs = [CompletionItem(name, help=words) for name, (_, words) in _ALL.items() if name.startswith(incomplete)]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the program does, and the verbs by group."""
        formatter.write("usage: fl-sim [--version] VERB ...\n\n")
        formatter.write("Simulate federated learning with user-entity differential privacy.\n\n")
        for group, verbs in VERBS.items():
            formatter.write(f"{group}:\n" + "".join(f"  {name:<10} {words}\n" for name, (_, words) in verbs.items()))
            formatter.write("\n")
        formatter.write("fl-sim VERB --help shows the flags of a verb.\n")


@click.group(cls=_AllVerbs, invoke_without_command=True)
@click.version_option(__version__, prog_name="fl-sim", message="%(prog)s %(version)s")
@click.pass_context
def fl_sim(ctx: click.Context) -> None:
    """Simulate federated learning with user-entity differential privacy."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


as_json: Callable[[Any], Any] = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of text."
)
quiet: Callable[[Any], Any] = click.option("--quiet", is_flag=True, help="Show no notes and no progress.")
