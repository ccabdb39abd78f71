"""The words of a prepared corpus's entities, to be dropped before the encoder.

>>> words = entity_words(Corpus.open("bundled"))
>>> "of" in words, all(word == word.lower() for word in words)
(False, True)
"""

from __future__ import annotations

import string

from fl_sim.data_prep.store.corpus import Corpus


def entity_words(corpus: Corpus) -> frozenset[str]:
    """Return every word of every mention in any split, in lower case and without punctuation marks at its ends.

    Words that the mention writes in lower case (the "of" of "Bank of England") are left out: they identify no entity.
    """
    entity_vocabulary: set[str] = set()
    for split in corpus.splits:
        texts = corpus.texts(split).to_pylist()
        mentions = corpus.mentions(split)
        columns = (mentions.column(name).to_pylist() for name in ("sentence", "start", "end"))
        for sentence, start, end in zip(*columns, strict=True):
            words = (word.strip(string.punctuation) for word in texts[sentence][start:end].split())
            entity_vocabulary.update(word.lower() for word in words if word and not (word.isalpha() and word.islower()))
    return frozenset(entity_vocabulary)
