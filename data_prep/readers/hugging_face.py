"""Read a dataset of Hugging Face's ``datasets`` library, by name from the hub or from a folder; needs the ``hf`` extra.

No code of a dataset is ever run: only table files are read (Parquet, Arrow, JSON, CSV), no loading scripts, archives
or pickles.

>>> HuggingFaceReader(source="owner/reviews", text_column="text", user_column="user").name
'reviews'
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fl_sim.data_prep.readers.cleaning import Reading
from fl_sim.data_prep.readers.reader import RawCorpus
from fl_sim.data_prep.readers.tables import Row, TableColumns, parquet_rows, require_columns, sentences_of
from fl_sim.data_prep.records import CorpusError, Sentence, Settings
from fl_sim.data_prep.store.textfiles import blocks, unpacked, whole_lines
from fl_sim.files import open_regular
from fl_sim.formats import first_line

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

_SPLIT = "\0split"
"""The column that holds a row's split; no dataset has one of this name."""

_TABLES = frozenset({"parquet", "arrow", "json", "csv"})
_DATA_SUFFIXES = frozenset({".parquet", ".arrow", ".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".gz", ".xz", ".zst"})
_CARDS = frozenset({"README.md", ".huggingface.yaml"})  # may say which files are of which split
_SAVED = ("dataset_dict.json", "state.json")
_ROWS_AT_ONCE = 1000
_SECONDS_FOR_HUB = 15


@dataclass(frozen=True, kw_only=True)
class HuggingFaceReader(TableColumns):
    """A dataset of Hugging Face's, by name or from a folder (needs the hf extra).

    The dataset's splits become the corpus's. If it has one split and no split column, users are held out by hash. A
    target that is a class of the dataset becomes the name of the class.

    Attributes:
        source: A name on the hub, or a local folder: saved by save_to_disk, or of table files.
        configuration: The dataset's configuration.
        splits: The splits to read, with commas (default: all).
        revision: The commit of the hub's dataset (default: the present one).
    """

    source: str
    configuration: str | None = None
    splits: str = ""
    revision: str | None = None

    @property
    def folder(self) -> Path | None:
        """The local folder; None for a dataset on the hub."""
        return Path(self.source) if Path(self.source).is_dir() else None

    @property
    def name(self) -> str:
        """The name of the dataset, without its owner or path."""
        return self.folder.resolve().name if self.folder else self.source.split("/")[-1]

    @property
    def named_splits(self) -> list[str]:
        """The splits to read; all if empty."""
        return [name.strip() for name in self.splits.split(",") if name.strip()]

    def read(self) -> RawCorpus:
        pinned = self._pinned()
        own: Settings = {
            "dataset": self.name if self.folder else self.source,  # of a folder its name, never its path
            "configuration": self.configuration,
            "splits": self.named_splits,
            "revision": pinned.revision,
        }
        return RawCorpus.from_files(
            "hf",
            self.name,
            pinned._sentences,
            self._files(),
            settings={**own, **self.manifest_settings()},
            has_gold=self.entities_column is not None,
            splits_sentences=self.split_sentences,
            tools=("datasets",),
        )

    def _pinned(self) -> HuggingFaceReader:
        """Return the reader of the latest revision on the hub; unchanged for a folder, or with the hub offline."""
        if self.folder or self.revision or re.match(r"[./~]|.*\.\w+$", self.source):
            return self
        _import_datasets(self.source)
        from huggingface_hub import HfApi
        from huggingface_hub.errors import OfflineModeIsEnabled

        try:
            return replace(self, revision=HfApi().dataset_info(self.source, timeout=_SECONDS_FOR_HUB).sha)
        except OfflineModeIsEnabled:
            return self
        except Exception as error:  # httpx's, huggingface_hub's and the system's errors have no common class
            raise CorpusError(
                f"{self.source}: no such folder, and no dataset of that name can be had from the Hugging Face hub "
                f"({first_line(error)})"
            ) from error

    def _files(self) -> dict[str, Path]:
        """Return the files that decide the data of a folder by their relative path; none of a dataset on the hub."""
        if not self.folder:
            return {}
        found = (path for path in self.folder.rglob("*") if path.suffix in _DATA_SUFFIXES or path.name in _CARDS)
        paths = sorted(path for path in found if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path for path in paths}

    def _sentences(self, reading: Reading) -> Iterator[Sentence]:
        for path in self._files().values():
            _check_file(path, self.columns)
        loaded = _load(self)
        splits = self.named_splits or list(loaded)
        for split in splits:
            if split not in loaded:
                raise CorpusError(f"{self.source}: no split {split!r}, only {', '.join(map(str, loaded))}")
        rows = rows_of_splits(self.name, {split: loaded[split] for split in splits}, self)
        return sentences_of(rows, columns_with_splits(self, splits), reading)


def columns_with_splits(columns: TableColumns, splits: Sequence[str]) -> TableColumns:
    """Return the columns with that of the split where several splits of a dataset become the corpus's."""
    return replace(columns, split_column=_SPLIT) if len(splits) > 1 and columns.split_column is None else columns


def rows_of_splits(name: str, splits: Mapping[str, object], columns: TableColumns) -> Iterator[Row]:
    """Yield the rows of a dataset's splits, each with its split.

    Raises:
        CorpusError: a column is absent, or the library cannot read a row.
    """
    return (row for split, loaded in splits.items() for row in _rows(name, str(split), loaded, columns))


def _check_file(path: Path, columns: list[str]) -> None:
    """Read a table file once, a little at a time, because the library holds whatever it unfolds to in memory.

    Raises:
        CorpusError: a line, row or cell has no end, or the file unfolds without end.
    """
    if path.suffix == ".parquet":
        for _ in parquet_rows(path, columns, all_needed=False):
            pass
        return
    if path.suffix == ".arrow":
        return
    with open_regular(path) as raw:
        stream = pa.CompressedInputStream(raw, "zstd") if path.suffix == ".zst" else unpacked(path, raw)
        one_array = ".json" in path.suffixes  # a list of objects may be one line
        for _ in (blocks if one_array else whole_lines)(stream, raw, path):
            pass


def _load(dataset: HuggingFaceReader) -> dict[str, Dataset | IterableDataset]:
    """Return split → the library's dataset, which is read batch by batch and never held in memory."""
    datasets = _import_datasets(dataset.source)
    folder = dataset.folder
    try:
        if folder and any((folder / name).is_file() for name in _SAVED):
            saved = datasets.load_from_disk(str(folder))
            return dict(saved) if isinstance(saved, dict) else {str(saved.split or "train"): saved}
        where = str(folder.resolve()) if folder else dataset.source
        builder = datasets.load_dataset_builder(where, dataset.configuration, revision=dataset.revision)
        kind = type(builder).__module__.split(".")[-1]
        if kind not in _TABLES:
            raise CorpusError(f"{dataset.source}: files of kind {kind!r}; only {', '.join(sorted(_TABLES))} are read")
        if folder:
            _check_recorded(dataset, builder.config.data_files or {})
            return dict(builder.as_streaming_dataset())
        builder.download_and_prepare()
        return dict(builder.as_dataset())
    except CorpusError:
        raise
    except Exception as error:  # the library's, pyarrow's and the network's errors have no common class
        raise CorpusError(f"{dataset.source}: the dataset cannot be loaded: {first_line(error)}") from error


def _check_recorded(dataset: HuggingFaceReader, data_files: Mapping[Any, Sequence[str]]) -> None:
    """Raise :class:`CorpusError` for a file that would be read, but neither checked nor recorded in the manifest."""
    recorded = {path.resolve() for path in dataset._files().values()}
    for name in itertools.chain.from_iterable(data_files.values()):
        if Path(name).resolve() not in recorded:
            allowed = f"files in it that end with {', '.join(sorted(_DATA_SUFFIXES))}"
            raise CorpusError(f"{name}: not a table file of {dataset.source}; allowed: {allowed}")


def _rows(name: str, split: str, loaded: Any, options: TableColumns) -> Iterator[Row]:
    if loaded.column_names is not None:
        require_columns(options.columns, list(loaded.column_names), f"{name}, split {split}")
        loaded = loaded.select_columns(options.columns)
    classes = getattr((loaded.features or {}).get(options.target_column), "names", None)
    number = 0
    try:
        for batch in loaded.iter(batch_size=_ROWS_AT_ONCE):
            require_columns(options.columns, list(batch), f"{name}, split {split}")
            for cells in zip(*(batch[column] for column in options.columns), strict=True):
                number += 1
                values = dict(zip(options.columns, cells, strict=True))
                if options.entities_column is not None:
                    values[options.entities_column] = _as_list(values[options.entities_column])
                if options.target_column is not None and classes:
                    number_of_class = values[options.target_column]
                    known = number_of_class is not None and number_of_class >= 0
                    values[options.target_column] = classes[number_of_class] if known else None
                yield f"{name}, split {split}, row {number}", {**values, _SPLIT: split}
    except CorpusError:
        raise
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, pa.ArrowException) as error:
        raise CorpusError(f"{name}, split {split}, after row {number}: cannot be read: {first_line(error)}") from error


def _as_list(entities: Any) -> Any:
    """Return the entities as a list of structures; the library stores them as a structure of lists."""
    if isinstance(entities, dict) and entities and all(isinstance(values, list) for values in entities.values()):
        return [dict(zip(entities, values, strict=True)) for values in zip(*entities.values(), strict=True)]
    return entities


def _import_datasets(source: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise CorpusError(f"{source}: kind hf needs {error.name}: pip install 'fl-sim[hf]'") from error
    import huggingface_hub

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    huggingface_hub.logging.set_verbosity_error()
    return datasets
