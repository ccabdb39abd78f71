"""Sentences with marks, for tests."""

from __future__ import annotations

from hypothesis import strategies as st

from fl_sim.data_prep.records import Mention, Sentence


def said(
    text: str,
    *names: str | tuple[str, str],
    user: str = "u",
    split: str = "train",
    label: str = "PER",
    target: str | None = None,
) -> Sentence:
    """Return a sentence in which each name, of a label of its own if it has one, is marked where it first stands."""
    labelled = [(name, label) if isinstance(name, str) else name for name in names]
    mentions = tuple(Mention(text.index(name), text.index(name) + len(name), its) for name, its in labelled)
    return Sentence(split, user, text, mentions, target)


@st.composite
def marked(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> Sentence:
    """Draw a sentence of a class with up to four mentions anywhere in its text; they may overlap."""
    text = draw(texts)
    places = st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))
    spans = {tuple(sorted(place)) for place in draw(st.lists(places, max_size=4))}
    mentions = tuple(Mention(a, b, "X") for a, b in sorted(spans) if text[a:b].strip())
    return Sentence("train", "u", text, mentions, "class")
