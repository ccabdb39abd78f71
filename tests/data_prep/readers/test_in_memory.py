"""Tables that a notebook holds: rows as a file of theirs would have them, whatever pandas stores, and mistakes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fl_sim.data_prep.readers.in_memory import DATASET, FRAME, kind_of, read_in_memory
from fl_sim.data_prep.readers.tables import TableColumns
from fl_sim.data_prep.records import CorpusError, Sentence

COLUMNS = TableColumns(text_column="text", user_column="user", test_fraction=0.0)
FRAME_OF_TWO = pd.DataFrame({"user": ["ann", "bob"], "text": ["Hello. It rains.", "Yes."], "more": [[], {}]})


def read(table: Any, columns: TableColumns = COLUMNS) -> list[Sentence]:
    return list(read_in_memory(table, columns, "posts").sentences())


def users(column: Any) -> list[str]:
    return [sentence.user for sentence in read(pd.DataFrame({"user": column, "text": "Yes."}))]


def checksum(table: Any) -> Any:
    return read_in_memory(table, COLUMNS, "posts").settings["sha256"]


DATASET_LIKE = SimpleNamespace(column_names=[], features={}, iter=None)


def test_a_frame_is_cut_and_read_again() -> None:
    raw = read_in_memory(FRAME_OF_TWO, COLUMNS, "posts")
    for _ in range(2):
        assert [(s.user, s.text) for s in raw.sentences()] == [("ann", "Hello."), ("ann", "It rains."), ("bob", "Yes.")]
    assert raw.name == "posts"


@pytest.mark.parametrize(
    "column",
    [
        [7, None, 8],  # which pandas makes floats
        pd.array([7, None, 8], dtype="Int64"),
        pd.Categorical(["7", None, "8"]),
        pd.array(["7", None, "8"], dtype="string"),
        [np.int64(7), np.nan, np.float32(8)],
        ["7", float("nan"), " 8 "],
    ],
)
def test_users_as_pandas_stores_them(column: Any) -> None:
    assert users(column) == ["7", "8"]


def test_entities_classes_and_splits_of_a_frame() -> None:
    marks = np.array([{"start": 0, "end": 3, "label": "PERSON"}], dtype=object)
    table = pd.DataFrame({"text": ["Ada left."], "user": ["ann"], "marks": [marks], "kind": [True], "part": ["train"]})
    columns = TableColumns(
        text_column="text", user_column="user", entities_column="marks", target_column="kind", split_column="part"
    )
    (sentence,) = read(table, columns)
    assert [sentence.surface(mention) for mention in sentence.mentions] == ["Ada"]
    assert (sentence.target, sentence.split) == ("true", "train")


def test_the_checksum_is_of_what_is_read() -> None:
    same = FRAME_OF_TWO.assign(more=1).set_index(pd.Index(["x", "y"]))
    assert checksum(same) == checksum(FRAME_OF_TWO)
    assert checksum(FRAME_OF_TWO.iloc[::-1]) != checksum(FRAME_OF_TWO)
    assert checksum(FRAME_OF_TWO.assign(user="ann")) != checksum(FRAME_OF_TWO)


def test_what_is_a_table() -> None:
    assert kind_of(FRAME_OF_TWO) == FRAME
    assert kind_of(DATASET_LIKE) == kind_of({"train": DATASET_LIKE}) == DATASET
    assert [kind_of(other) for other in ([1], {}, {"train": 1}, "csv", FRAME_OF_TWO["text"], None)] == [None] * 6


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (FRAME_OF_TWO.drop(columns="text"), "^a DataFrame: no column 'text'; found 'user', 'more'$"),
        (pd.concat([FRAME_OF_TWO] * 2, axis=1), "^a DataFrame: several columns 'text'; found 'user', "),
        (
            FRAME_OF_TWO.assign(user=0.5),
            "^a DataFrame, index 0: column 'user' must be text or a whole number, not float$",
        ),
        (FRAME_OF_TWO.assign(text=3), "^a DataFrame, index 0: column 'text' must be text, not int$"),
    ],
)
def test_a_table_that_does_not_fit(table: Any, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        read(table)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"text_column": 1}, "`text_column` is 1; allowed: the name of one column"),
        ({"text_column": ["a", "b"]}, r"`text_column` is \['a', 'b'\]; allowed: the name of one column"),
        ({"seed": "a"}, "`seed` is 'a'; allowed: an integer"),
        ({"test_fraction": -0.1}, r"`test_fraction` is -0.1; allowed: a number in \[0, 1\)"),
        ({"test_fraction": "a"}, r"`test_fraction` is 'a'; allowed: a number in \[0, 1\)"),
    ],
)
def test_columns_that_are_none(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        TableColumns(**{"text_column": "text", "user_column": "user", **settings})
