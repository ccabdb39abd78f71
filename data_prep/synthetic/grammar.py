"""A small phrase grammar: templates with choices, options, agreement and tense, expanded to text with
mentions.

The notation of a template:

``{PERSON}``  an entity of that label, asked of the writer; its characters become a mention ``<word>``
one production of the rule ``word``, itself a template; a rule ``word_past``, ``word_future`` and so
              on goes first in a sentence of that tense
``<S>``       a subject, which the verbs after it agree with
``@send``     the verb "send" in the sentence's tense, agreeing with the last subject (it, before any)
``^pl``       the subject is plural from here on
``%my``       the subject's possessive (my, our, his, her, its, their); ``%I`` its pronoun
``(a|b)``     one of them; ``[a]`` an option, taken as often as the writer is verbose
``a_``        "a" or "an", as the next word asks
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.synthetic.inflection import MODALS, Agreement, conjugate

_MARKUP = re.compile(
    r"\{(?P<entity>[A-Z]+)\}|<(?P<rule>[A-Za-z_]+)>|@(?P<verb>[a-z]+)|(?P<plural>\^pl ?)"
    r"|%(?P<pronoun>my|I)|(?P<mark>[(\[|)\]])"
)
_IT = Agreement("it", 3, plural=False)

Piece = tuple[str, str]
"""Characters, and the label of the entity they name (empty for plain words)."""


class Writer(Protocol):
    """Whose sentence it is: makes the choices that belong to a person rather than to the language."""

    @property
    def verbosity(self) -> float:
        """The probability with which options are taken."""

    def entity(self, label: str, tense: str, rng: np.random.Generator) -> Piece:
        """An entity of the writer's world; the label of the piece may be finer than the one asked for."""

    def subject(self, rng: np.random.Generator) -> tuple[Piece, Agreement]:
        """Who the sentence is about."""


@dataclass(frozen=True)
class _Text:
    text: str


@dataclass(frozen=True)
class _Entity:
    label: str


@dataclass(frozen=True)
class _Rule:
    name: str


@dataclass(frozen=True)
class _Verb:
    lemma: str


@dataclass(frozen=True)
class _Plural:
    pass


@dataclass(frozen=True)
class _Pronoun:
    possessive: bool


@dataclass(frozen=True)
class _Choice:
    branches: tuple[tuple[_Node, ...], ...]


@dataclass(frozen=True)
class _Option:
    body: tuple[_Node, ...]


_Node = _Text | _Entity | _Rule | _Verb | _Plural | _Pronoun | _Choice | _Option


class Grammar:
    """Rules (name → productions), parsed once.

    Raises :class:`CorpusError` for a template that does not parse or that names an unknown rule.
    """

    def __init__(self, rules: Mapping[str, Sequence[str]]) -> None:
        self.rules = {name: tuple(_parse(text) for text in texts) for name, texts in rules.items()}
        known = {"S", *self.rules}
        for name, text in ((name, text) for name, texts in rules.items() for text in texts):
            for used in re.findall(r"<([A-Za-z_]+)>", text):
                if used not in known and f"{used}_past" not in known:
                    raise CorpusError(f"grammar rule {name!r}: {text!r} names the unknown rule {used!r}")

    def expand(self, rule: str, tense: str, negated: bool, writer: Writer, rng: np.random.Generator) -> list[Piece]:
        """One production of ``rule`` in ``tense``; all choices come from ``rng`` and ``writer``."""
        modal = MODALS[rng.integers(len(MODALS))]
        sentence = _Expansion(self.rules, tense, negated, writer, rng, modal)
        sentence.rule(rule)
        return sentence.pieces


@dataclass
class _Expansion:
    """One sentence under way: what has been said, and what its verbs agree with."""

    rules: Mapping[str, tuple[tuple[_Node, ...], ...]]
    tense: str
    negated: bool
    writer: Writer
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
        self.nodes(productions[self.rng.integers(len(productions))])

    def nodes(self, nodes: Sequence[_Node]) -> None:
        for node in nodes:
            self.node(node)

    def node(self, node: _Node) -> None:
        match node:
            case _Text(text):
                self.pieces.append((text, ""))
            case _Entity(label):
                self.pieces.append(self.fresh_entity(label))
            case _Rule(name):
                self.rule(name)
            case _Verb(lemma):
                self.pieces.append((self.verb(lemma), ""))
            case _Plural():
                self.agreement = Agreement("they", 3, plural=True)
            case _Pronoun(possessive):
                self.pieces.append((self.agreement.possessive if possessive else self.agreement.pronoun, ""))
            case _Choice(branches):
                self.nodes(branches[self.rng.integers(len(branches))])
            case _Option(body):
                if self.rng.random() < self.writer.verbosity:
                    self.nodes(body)

    def fresh_entity(self, label: str) -> Piece:
        """An entity that the sentence has not named yet, as far as a few attempts find one."""
        said = {text for text, kind in self.pieces if kind}
        piece = self.writer.entity(label, self.tense, self.rng)
        for _ in range(4):
            if piece[0] not in said:
                break
            piece = self.writer.entity(label, self.tense, self.rng)
        return piece

    def verb(self, lemma: str) -> str:
        """The first verb of a negated sentence carries the "not"; all share one modal."""
        negated, self.negated = self.negated, False
        return conjugate(lemma, self.tense, self.agreement, negated=negated, modal=self.modal)


def _parse(template: str) -> tuple[_Node, ...]:
    nodes, end, closed_by = _parse_branches(template, 0)
    if closed_by or end != len(template) or len(nodes) != 1:
        raise CorpusError(f"grammar template {template!r}: brackets do not match")
    return nodes[0]


def _parse_branches(template: str, position: int) -> tuple[tuple[tuple[_Node, ...], ...], int, str]:
    """Branches up to a closing bracket or the end; returns them, the place after it, and the bracket."""
    branches: list[list[_Node]] = [[]]
    while found := _MARKUP.search(template, position):
        if found.start() > position:
            branches[-1].append(_Text(template[position : found.start()]))
        position = found.end()
        mark = found["mark"]
        if mark is None:
            branches[-1].append(_leaf(found))
        elif mark == "|":
            branches.append([])
        elif mark in ")]":
            return _frozen(branches), position, mark
        else:
            inner, position, closed_by = _parse_branches(template, position)
            if closed_by != {"(": ")", "[": "]"}[mark]:
                raise CorpusError(f"grammar template {template!r}: {mark!r} is not closed")
            choice = _Choice(inner)
            branches[-1].append(choice if mark == "(" else _Option((choice,)))
    if position < len(template):
        branches[-1].append(_Text(template[position:]))
    return _frozen(branches), len(template), ""


def _frozen(branches: list[list[_Node]]) -> tuple[tuple[_Node, ...], ...]:
    return tuple(tuple(branch) for branch in branches)


def _leaf(found: re.Match[str]) -> _Node:
    if found["entity"]:
        return _Entity(found["entity"])
    if found["rule"]:
        return _Rule(found["rule"])
    if found["verb"]:
        return _Verb(found["verb"])
    if found["plural"]:
        return _Plural()
    return _Pronoun(possessive=found["pronoun"] == "my")
