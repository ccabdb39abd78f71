"""Conjugate English verbs.

>>> conjugate("send", "past", Agreement("she", 3, plural=False), negated=True)
'did not send'
>>> conjugate("plan", "progressive", Agreement("I", 1, plural=False))
'am planning'
"""

from __future__ import annotations

from dataclasses import dataclass

TENSES = ("past", "present", "future", "perfect", "progressive", "modal")
MODALS = ("should", "could", "might", "can", "would like to", "need to", "have to", "want to", "must")

_FINITE_MODALS = {"need to": "needs to", "have to": "has to", "want to": "wants to"}

_IRREGULAR = """
be was been; become became become; begin began begun; break broke broken; bring brought brought; build built
built; buy bought bought; catch caught caught; choose chose chosen; come came come; cost cost cost; cut cut
cut; deal dealt dealt; dig dug dug; do did done; draw drew drawn; drink drank drunk; drive drove driven; eat
ate eaten; fall fell fallen; feed fed fed; feel felt felt; fight fought fought; find found found; fly flew
flown; forget forgot forgotten; forgive forgave forgiven; get got got; give gave given; go went gone; grow
grew grown; hang hung hung; have had had; hear heard heard; hide hid hidden; hit hit hit; hold held held;
hurt hurt hurt; keep kept kept; know knew known; lead led led; learn learnt learnt; leave left left; lend
lent lent; let let let; lie lay lain; lose lost lost; make made made; mean meant meant; meet met met; pay
paid paid; put put put; quit quit quit; read read read; ride rode ridden; ring rang rung; run ran run; say
said said; see saw seen; sell sold sold; send sent sent; set set set; show showed shown; shut shut shut;
sing sang sung; sit sat sat; sleep slept slept; speak spoke spoken; spend spent spent; stand stood stood;
steal stole stolen; swim swam swum; take took taken; teach taught taught; tell told told; think thought
thought; throw threw thrown; understand understood understood; wake woke woken; wear wore worn; win won won;
withdraw withdrew withdrawn; write wrote written; overhear overheard overheard; rebuild rebuilt rebuilt;
beat beat beaten; bite bit bitten; rise rose risen; sweep swept swept; oversleep overslept overslept;
"""
_PAST = {
    lemma: (past, participle) for lemma, past, participle in (e.split() for e in _IRREGULAR.split(";") if e.strip())
}

_DOUBLING_VERBS = """
plan stop shop chat drop fit grab pop rub ship skip slip step swap trim wrap jog run sit get put cut hit let
set shut enrol dig swim win begin forget quit knit admit commit prefer refer permit submit control cancel
label travel model compel regret mop nap pin rob scan ban beg hug log tap trip hum jam drag transfer quarrel
"""
_DOUBLING = frozenset(_DOUBLING_VERBS.split())
_STATIVE_VERBS = "know like love own need want belong remember understand mean cost prefer have hate owe be trust"
_STATIVE = frozenset(_STATIVE_VERBS.split())


@dataclass(frozen=True)
class Agreement:
    """What a verb agrees with: the subject's pronoun, person and number."""

    pronoun: str
    person: int
    plural: bool

    @property
    def third_singular(self) -> bool:
        return self.person == 3 and not self.plural

    @property
    def possessive(self) -> str:
        return _POSSESSIVES[self.pronoun]


_POSSESSIVES = {"I": "my", "we": "our", "he": "his", "she": "her", "it": "its", "they": "their"}


def past_forms(lemma: str) -> tuple[str, str]:
    """Return the simple past and the past participle."""
    return _PAST.get(lemma) or (_regular_past(lemma), _regular_past(lemma))


def gerund_of(lemma: str) -> str:
    """Return the -ing form."""
    if lemma == "be":
        return "being"
    if lemma.endswith("ie"):
        return f"{lemma[:-2]}ying"
    if lemma.endswith("e") and not lemma.endswith(("ee", "oe", "ye")):
        return f"{lemma[:-1]}ing"
    return f"{_doubled(lemma)}ing"


def third_person_of(lemma: str) -> str:
    """Return the present of he, she and it."""
    if lemma in ("be", "have"):
        return {"be": "is", "have": "has"}[lemma]
    if lemma.endswith("y") and lemma[-2] not in "aeiou":
        return f"{lemma[:-1]}ies"
    return f"{lemma}es" if lemma.endswith(("s", "x", "z", "ch", "sh", "o")) else f"{lemma}s"


def be_of(agreement: Agreement, past: bool) -> str:
    """Return was/were or am/are/is."""
    if agreement.plural:
        return "were" if past else "are"
    if past:
        return "was"
    return "am" if agreement.person == 1 else "is"


def conjugate(lemma: str, tense: str, agreement: Agreement, *, negated: bool = False, modal: str = "should") -> str:
    """Return the finite form of a verb with its auxiliaries, in one of :data:`TENSES`.

    ``modal`` is one of :data:`MODALS`, for the tense "modal".
    """
    no = " not" if negated else ""
    if tense == "progressive" and lemma in _STATIVE:
        tense = "present"
    if tense == "future":
        return f"will{no} {lemma}"
    if tense == "perfect":
        return f"{'has' if agreement.third_singular else 'have'}{no} {past_forms(lemma)[1]}"
    if tense == "progressive":
        return f"{be_of(agreement, past=False)}{no} {gerund_of(lemma)}"
    if tense == "modal":
        return _modal(lemma, agreement, no, modal)
    if lemma == "be":
        return be_of(agreement, tense == "past") + no
    return _simple(lemma, tense, agreement, negated)


def _simple(lemma: str, tense: str, agreement: Agreement, negated: bool) -> str:
    third = agreement.third_singular
    if tense == "past":
        return f"did not {lemma}" if negated else past_forms(lemma)[0]
    if negated:
        return f"{'does' if third else 'do'} not {lemma}"
    return third_person_of(lemma) if third else lemma


def _modal(lemma: str, agreement: Agreement, no: str, modal: str) -> str:
    if modal in _FINITE_MODALS:
        if no:
            return f"{'does' if agreement.third_singular else 'do'} not {modal} {lemma}"
        return f"{_FINITE_MODALS[modal] if agreement.third_singular else modal} {lemma}"
    first, _, rest = modal.partition(" ")
    return " ".join(part for part in (f"{'cannot' if first == 'can' and no else first + no}", rest, lemma) if part)


def _regular_past(lemma: str) -> str:
    if lemma.endswith("e"):
        return f"{lemma}d"
    if lemma.endswith("y") and lemma[-2] not in "aeiou":
        return f"{lemma[:-1]}ied"
    return f"{_doubled(lemma)}ed"


def _doubled(lemma: str) -> str:
    return lemma + lemma[-1] if lemma in _DOUBLING else lemma
