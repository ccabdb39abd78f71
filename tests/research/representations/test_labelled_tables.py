"""Tables of one's own: columns, categories, missing values, splits, and every refusal in one line."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fl_sim.cli.main import main
from fl_sim.data_prep.records import CorpusError
from fl_sim.research.representations.corpora.labelled import SPLITS, LabelledData
from fl_sim.research.representations.corpora.labelled_tables import TableColumns, read_own_table

COLUMNS = {"task": "income", "private": ("sex",), "least_rows": 1}


def table(rows: int = 200) -> pd.DataFrame:
    draws = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": draws.integers(18, 65, rows),
            "town": draws.choice(["Lund", "Rome", "Bonn"], rows),
            "sex": draws.choice(["woman", "man"], rows),
            "income": draws.choice(["low", "high"], rows),
        }
    )


def written(folder: Path, frame: pd.DataFrame, name: str = "people.csv") -> Path:
    path = folder / name
    if name.endswith(".parquet"):
        frame.to_parquet(path, index=False)
    elif name.endswith(".jsonl"):
        frame.to_json(path, orient="records", lines=True)
    else:
        text = frame.to_csv(index=False, sep="\t" if ".tsv" in name else ",").encode()
        path.write_bytes(lzma.compress(text) if name.endswith(".xz") else text)
    return path


def read(folder: Path, frame: pd.DataFrame, name: str = "people.csv", seed: int = 0, **columns: object) -> LabelledData:
    return read_own_table(written(folder, frame, name), seed, TableColumns.model_validate({**COLUMNS, **columns}))


@pytest.mark.parametrize("name", ["people.csv", "people.tsv", "people.csv.xz", "people.jsonl", "people.parquet"])
def test_the_format_of_the_file_does_not_matter(tmp_path: Path, name: str) -> None:
    data = read(tmp_path, table(), name)
    assert data.fingerprint == read(tmp_path, table(), "other.csv").fingerprint
    assert (data.name, data.classes, data.attributes) == ("people", ("high", "low"), ("sex=woman",))
    assert [len(data.splits[split]) for split in SPLITS] == [120, 40, 40]
    assert data.train.table.shape == (120, 4)  # age, and a column per town


def test_columns_are_standardised_by_the_training_rows(tmp_path: Path) -> None:
    data = read(tmp_path, table())
    assert data.train.table.mean(axis=0) == pytest.approx(0, abs=1e-5)
    assert data.train.table.std(axis=0) == pytest.approx(1, abs=1e-5)
    assert np.abs(data.test.table.mean(axis=0)).max() > 1e-3


def test_rows_are_divided_by_the_seed_or_by_a_column(tmp_path: Path) -> None:
    assert read(tmp_path, table(), seed=0).fingerprint != read(tmp_path, table(), seed=1).fingerprint
    frame = table()
    frame["part"] = ["train"] * 150 + ["validation"] * 20 + ["test"] * 30
    data = read(tmp_path, frame, split="part")
    assert [len(data.splits[split]) for split in SPLITS] == [150, 20, 30]
    assert data.test.labels.tolist() == [("high", "low").index(income) for income in frame["income"][170:]]


def test_missing_values_are_counted(tmp_path: Path) -> None:
    frame = table().astype(object)
    frame.loc[0:3, "age"] = None
    frame.loc[10:11, "town"] = "?"
    frame.loc[20, "sex"] = None
    frame.loc[30:31, "income"] = ""
    data = read(tmp_path, frame)
    assert data.counts == {"rows left out": 3, "missing age": 4, "missing town": 2}
    assert sum(len(split) for split in data.splits.values()) == 197
    assert data.train.table.shape[1] == 5  # a missing town is a category
    assert np.isfinite(data.train.table).all()


def test_no_row_but_those_of_training_decides_what_is_sent_of_others(tmp_path: Path) -> None:
    frame = table().astype(object)
    frame["part"] = ["train"] * 120 + ["validation"] * 40 + ["test"] * 40
    plain = read(tmp_path, frame, split="part")
    frame.loc[199, "town"], frame.loc[198, "age"] = "Zembla", "young"
    data = read(tmp_path, frame, split="part")
    assert (data.test.table[:-2] == plain.test.table[:-2]).all()
    assert data.counts == {"missing age": 1, "missing town": 1}
    assert np.isfinite(data.test.table).all()
    frame["nick"] = [None] * 199 + ["zed"]
    assert (read(tmp_path, frame, "people.jsonl", split="part").test.table == data.test.table).all()
    first = frame.iloc[[199, *range(199)]].reset_index(drop=True)  # a test row comes first, and has no age
    lines = [row.drop("age" if number == 0 else []).to_json() for number, row in first.iterrows()]
    (tmp_path / "first.jsonl").write_text("\n".join(lines))
    columns = TableColumns.model_validate({**COLUMNS, "split": "part"})
    ordered = read_own_table(tmp_path / "first.jsonl", 0, columns)
    assert (ordered.train.table == data.train.table).all()


def test_a_blank_text_moves_nobody_to_another_split(tmp_path: Path) -> None:
    frame = said([f"text {number}" for number in range(200)])
    plain = read(tmp_path, frame, text="said")
    gone = plain.test.texts[7]
    data = read(tmp_path, frame.replace({"said": {gone: "NA"}}), text="said")
    assert (data.train.texts, data.validation.texts) == (plain.train.texts, plain.validation.texts)
    assert data.test.texts == tuple(text for text in plain.test.texts if text != gone)


def test_numbers_may_stand_for_categories(tmp_path: Path) -> None:
    frame = table()
    frame["code"] = np.arange(200) % 3
    assert read(tmp_path, frame).train.table.shape[1] == 5
    assert read(tmp_path, frame, categories=("code",)).train.table.shape[1] == 7
    assert read(tmp_path, frame, leave_out=("code",)).train.table.shape[1] == 4
    assert read(tmp_path, frame, features=("age",)).train.table.shape[1] == 1


def test_a_private_column_of_several_values_is_an_attribute_each(tmp_path: Path) -> None:
    data = read(tmp_path, table(), private=("sex", "town"))
    assert data.attributes == ("sex=woman", "town=Bonn", "town=Lund", "town=Rome")
    assert (data.train.private[:, 1:].sum(axis=1) == 1).all()
    assert read(tmp_path, table(), private=()).attributes == ()


def test_a_text_is_the_only_input(tmp_path: Path) -> None:
    frame = table()
    frame["said"] = ["good day" if income == "high" else "bad day" for income in frame["income"]]
    data = read(tmp_path, frame, text="said")
    assert set(data.train.texts) == {"good day", "bad day"}


def said(texts: list[str]) -> pd.DataFrame:
    frame = table(len(texts))
    frame["said"] = texts
    return frame


def test_texts_are_cleaned_and_counted_as_prepare_does(tmp_path: Path) -> None:
    texts = ["good day", " ", "", "a\x07bell", "end\x1b", "word " * 2001] * 40
    data = read(tmp_path, said(texts), text="said")
    kept = [text for split in SPLITS for text in data.splits[split].texts]
    assert sorted(set(kept)) == ["a bell", "end", "good day", ("word " * 2000).strip()]
    assert data.counts["blank texts dropped"] == 2 * 40
    assert data.counts["texts with control characters, each replaced by a space"] == 2 * 40
    long = "sentences longer than 10,000 characters, cut at white space"
    assert data.counts[long] == 40
    with pytest.raises(CorpusError, match="no row has a text in column 'said'"):
        read(tmp_path, said([" "] * 40), text="said")


REFUSALS = {
    "no column 'job'": {"task": "job"},
    "data.table.task is missing; allowed: the column with the class to predict": {"task": ""},
    "no column 'race'": {"private": ("race",)},
    "column 'sex' has two roles; allowed: one": {"task": "sex"},
    "column 'same' has one value, 'x'; allowed: at least 2": {"task": "same"},
    "private column 'same' has 1 value; allowed: 2 to 50": {"private": ("same",)},
    "column 'id' has 200 classes in 200 rows; allowed: at most 50": {"task": "id"},
    "column 'id' has 120 categories in 200 rows; allowed: fewer": {"categories": ("id",)},
    "column 'far' has inf; allowed: numbers from -1e+100 to 1e+100": {"features": ("far",)},
    "column 'wide' has -1.7e+308; allowed: numbers from": {"features": ("wide",)},
    "column 'long' has 999999999999999999999999999999; allowed: numbers from": {"features": ("long",)},
    "column 'town' has 'bonn'; allowed: train, validation, test": {"split": "town"},
    "data.table.test_share is 0.5 beside validation_share 0.5; allowed: together below 1": {
        "test_share": 0.5,
        "validation_share": 0.5,
    },
    "have the class 'high', too few for its rate; allowed: at least data.table.least_rows, 30": {
        "least_rows": 30,
        "features": ("age",),
    },
}


@pytest.mark.parametrize("message", REFUSALS)
def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path, message: str) -> None:
    frame = table()
    frame["same"], frame["id"], frame["far"] = "x", np.arange(200), [1.0] * 199 + [np.inf]
    frame["wide"], frame["long"] = [-1.7e308, 1.7e308] * 100, pd.Series([1] * 199 + [10**400 - 1], dtype=object)
    with pytest.raises(CorpusError) as refused:
        read(tmp_path, frame, **REFUSALS[message])
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("people.xls", "", "allowed: a file named .csv, .tsv, .jsonl, .parquet"),
        ("people.csv", "income,sex\n", "has no rows"),
        ("people.csv", "income,sex\n,man\n", "no row has a value of income, sex"),
        ("people.csv", "income,sex\nlow,man,3\n", "line 2: 3 columns, the header has 2"),
        ("t.csv", "a,s,a\n1,x,2\n", "has two columns 'a'; allowed: different names"),
        ("t.tsv", "a\ts\ta\n1\tx\t2\n", "has two columns 'a'; allowed: different names"),
    ],
)
def test_files_that_are_no_tables_are_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(CorpusError, match=message):
        read_own_table(tmp_path / name, 0, TableColumns.model_validate(COLUMNS))


def test_flags_complete_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, table())
    (tmp_path / "run.toml").write_text('method = "federate"\n[encoder]\nkind = "mlp"\n[training]\nepochs = 2\n')
    flags = ["privacy.epsilon=12", "data.name=table", f"data.source={path}", "data.table.task=income"]
    flags += ['data.table.private=["sex"]', "data.table.least_rows=1", "attacks.mdl=false", "attacks.leakage=false"]
    assert main(["represent", "run", str(tmp_path / "run.toml"), *(w for flag in flags for w in ("--set", flag))]) == 0
    assert "federate on people" in capsys.readouterr().out
