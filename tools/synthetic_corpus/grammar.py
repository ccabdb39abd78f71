"""Expand a small phrase grammar to text with mentions: templates with choices, options, agreement and tense.

The notation of a template:

``{PERSON}``  an entity of that label from the writer; its characters become a mention
``<word>``    a production of the rule ``word``, itself a template; in a sentence of that tense a rule ``word_past``,
              ``word_future`` and so on takes precedence
``<S>``       a subject, with which the verbs after it agree
``@send``     the verb "send" in the tense of the sentence, agreeing with the last subject ("it" before any)
``^pl``       the subject is plural from here on
``%my``       the possessive of the subject (my, our, his, her, its, their); ``%I`` its pronoun
``(a|b)``     one of them; ``[a]`` an option, taken with the writer's verbosity as probability
``a_``        "a" or "an", to fit the next word

>>> from types import SimpleNamespace
>>> ann = SimpleNamespace(verbosity=0.0, entity=lambda label, tense, rng: ("Ada", label),
...                       subject=lambda rng: (("she", ""), Agreement("she", 3, plural=False)))
>>> rules = Grammar({"start": ["<S> @send a letter[ today] to {PERSON}"]})
>>> "".join(text for text, label in rules.expand("start", "past", False, ann, np.random.default_rng(0)))
'she sent a letter to Ada'
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fl_sim.data_prep.records import CorpusError
from tools.synthetic_corpus.inflection import MODALS, Agreement, conjugate

if TYPE_CHECKING:
    from tools.synthetic_corpus.synthetic_user import User

_MARKUP = re.compile(
    r"\{(?P<entity>[A-Z]+)\}|<(?P<rule>[A-Za-z_]+)>|@(?P<verb>[a-z]+)|(?P<plural>\^pl ?)"
    r"|%(?P<pronoun>my|I)|(?P<mark>[(\[|)\]])"
)
_IT = Agreement("it", 3, plural=False)

Piece = tuple[str, str]
"""Characters, and the label of the entity that they name (empty for plain words)."""


@dataclass(frozen=True)
class _Node:
    """A part of a template: its kind, and its word, or the branches of a choice or an option."""

    kind: str
    word: str = ""
    branches: tuple[tuple[_Node, ...], ...] = ()


class Grammar:
    """Rules (name → productions), parsed once.

    Raises:
        CorpusError: a template does not parse, or names an unknown rule.
    """

    def __init__(self, rules: Mapping[str, Sequence[str]]) -> None:
        self.rules = {name: tuple(_parse(text) for text in texts) for name, texts in rules.items()}
        known = {"S", *self.rules}
        for name, text in ((name, text) for name, texts in rules.items() for text in texts):
            for used in re.findall(r"<([A-Za-z_]+)>", text):
                if used not in known and f"{used}_past" not in known:
                    raise CorpusError(f"grammar rule {name!r}: {text!r} names the unknown rule {used!r}")

    def expand(self, rule: str, tense: str, negated: bool, writer: User, rng: np.random.Generator) -> list[Piece]:
        """Return a production of a rule in a tense; all choices come from ``rng`` and ``writer``."""
        modal = MODALS[rng.integers(len(MODALS))]
        sentence = _Expansion(self.rules, tense, negated, writer, rng, modal)
        sentence.rule(rule)
        return sentence.pieces


@dataclass
class _Expansion:
    """A sentence in progress: its pieces so far, and what its verbs agree with."""

    rules: Mapping[str, tuple[tuple[_Node, ...], ...]]
    tense: str
    negated: bool
    writer: User
    rng: np.random.Generator
    modal: str
    agreement: Agreement = _IT
    pieces: list[Piece] = field(default_factory=list)

    def rule(self, name: str) -> None:
        if name == "S":
            piece, self.agreement = self.writer.subject(self.rng)
            self.pieces.append(piece)
            return
        productions = self.rules.get(f"{name}_{self.tense}") or self.rules[name]
        self.branch(productions)

    def branch(self, branches: Sequence[Sequence[_Node]]) -> None:
        for node in branches[int(self.rng.integers(len(branches)))]:
            self.node(node)

    def node(self, node: _Node) -> None:
        match node.kind:
            case "text":
                self.pieces.append((node.word, ""))
            case "entity":
                self.pieces.append(self.fresh_entity(node.word))
            case "rule":
                self.rule(node.word)
            case "verb":
                self.pieces.append((self.verb(node.word), ""))
            case "plural":
                self.agreement = Agreement("they", 3, plural=True)
            case "pronoun":
                agreement = self.agreement
                self.pieces.append((agreement.possessive if node.word == "my" else agreement.pronoun, ""))
            case "choice" | "option":
                if node.kind == "choice" or self.rng.random() < self.writer.verbosity:
                    self.branch(node.branches)

    def fresh_entity(self, label: str) -> Piece:
        """Return an entity that the sentence has not named yet, if a few attempts give one."""
        named = {text for text, kind in self.pieces if kind}
        piece = self.writer.entity(label, self.tense, self.rng)
        for _ in range(4):
            if piece[0] not in named:
                break
            piece = self.writer.entity(label, self.tense, self.rng)
        return piece

    def verb(self, lemma: str) -> str:
        """Return the conjugated verb; the first verb of a negated sentence gets the "not", and all share one modal."""
        negated, self.negated = self.negated, False
        return conjugate(lemma, self.tense, self.agreement, negated=negated, modal=self.modal)


def _parse(template: str) -> tuple[_Node, ...]:
    nodes, end, closed_by = _parse_branches(template, 0)
    if closed_by or end != len(template) or len(nodes) != 1:
        raise CorpusError(f"grammar template {template!r}: brackets do not match")
    return nodes[0]


def _parse_branches(template: str, position: int) -> tuple[tuple[tuple[_Node, ...], ...], int, str]:
    """Parse branches up to a closing bracket or the end; return them, the place after it, and the bracket."""
    branches: list[list[_Node]] = [[]]
    while match := _MARKUP.search(template, position):
        if match.start() > position:
            branches[-1].append(_Node("text", template[position : match.start()]))
        position = match.end()
        mark = match["mark"]
        if mark is None:
            branches[-1].append(_Node(str(match.lastgroup), str(match[str(match.lastgroup)])))
        elif mark == "|":
            branches.append([])
        elif mark in ")]":
            return tuple(map(tuple, branches)), position, mark
        else:
            inner, position, closed_by = _parse_branches(template, position)
            if closed_by != {"(": ")", "[": "]"}[mark]:
                raise CorpusError(f"grammar template {template!r}: {mark!r} is not closed")
            branches[-1].append(_Node("choice" if mark == "(" else "option", branches=inner))
    if position < len(template):
        branches[-1].append(_Node("text", template[position:]))
    return tuple(map(tuple, branches)), len(template), ""
