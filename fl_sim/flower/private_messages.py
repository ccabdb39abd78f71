"""Write and read the messages between :class:`UserLevelDifferentialPrivacy` and :class:`UserLevelClipping`.

They ride on an app's own train messages, in a record beside the app's: an *enrolment*, by which a node tells which
users it holds, and a *private round*, by which the server asks for the bounded sum of those that were sampled.

Norms, sums and noise are computed over the arrays of a model as one vector.

>>> layout = ArrayLayout.of(ArrayRecord({"weight": Array(np.ones((2, 3), np.float32)), "bias": Array(np.zeros(3))}))
>>> layout.size, layout.names
(9, ('weight', 'bias'))
>>> [array.numpy().dtype.name for array in layout.arrays(np.arange(9.0)).values()]
['float32', 'float64']
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fl_sim.formats import printable
from fl_sim.strategies.messages import array_view
from fl_sim.strategies.primitives.limits import PrivacyError

_TYPES = ("float32", "float64")
_BATCH_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """Hold names, shapes and types of a model's arrays, in order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> ArrayLayout:
        """Return the layout of a model.

        Raises:
            PrivacyError: an array cannot be averaged with noise: it is not of floats, or holds statistics of batches.
        """
        for name, array in arrays.items():
            if name.rpartition(".")[2] in _BATCH_STATISTICS:
                raise PrivacyError(
                    f"the model's array '{printable(name)}' holds statistics of batches; allowed: layers that keep "
                    "none of the data they see, such as GroupNorm or LayerNorm"
                )
            if array.dtype not in _TYPES:
                raise PrivacyError(
                    f"the model's array '{printable(name)}' is of {printable(array.dtype)}; allowed: "
                    f"{', '.join(_TYPES)}"
                )
        if not sum(math.prod(array.shape) for array in arrays.values()):
            raise PrivacyError("the model has no parameters; allowed: at least one array with a number")
        values = list(arrays.values())
        return cls(tuple(arrays), tuple(tuple(a.shape) for a in values), tuple(a.dtype for a in values))

    @property
    def size(self) -> int:
        """Return d, the number of parameters."""
        return sum(map(math.prod, self.shapes))

    def vector(self, arrays: Mapping[str, Array], dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
        """Return the parameters as one vector, (d,) of a type of floats.

        Raises:
            ValueError: names or shapes differ from those of the layout.
        """
        vector = np.empty(self.size, dtype)
        for place, value in self._placed(arrays):  # converted where it shall be: no second copy
            vector[place] = value
        return vector

    def difference(self, arrays: Mapping[str, Array], others: Mapping[str, Array]) -> npt.NDArray[np.float64]:
        """Return the parameters of one model minus those of another, float64 (d,).

        Raises:
            ValueError: names or shapes of either differ from those of the layout.
        """
        vector = np.empty(self.size)
        for (place, value), (_, other) in zip(self._placed(arrays), self._placed(others), strict=True):
            np.subtract(value, other, out=vector[place], dtype=np.float64)
        return vector

    def _placed(self, arrays: Mapping[str, Array]) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        """Yield the place of each array in the vector, and the array, flat; ValueError if one is of another layout."""
        if tuple(arrays) != self.names:
            raise ValueError(f"arrays {_shown(tuple(arrays))} in place of {_shown(self.names)}")
        start = 0
        for name, shape, array in zip(self.names, self.shapes, arrays.values(), strict=True):
            value = array_view(array)
            if value.shape != shape or value.dtype.kind != "f":
                raise ValueError(f"array '{printable(name)}' of {value.dtype} {value.shape} in place of {shape}")
            yield slice(start, start + value.size), value.ravel()
            start += value.size

    def arrays(self, vector: npt.NDArray[np.floating]) -> ArrayRecord:
        """Return the arrays, of their own types, whose parameters are ``vector``, floats (d,)."""
        record, start = dict[str, Array](), 0
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            stop = start + math.prod(shape)
            record[name] = Array(np.asarray(vector[start:stop].reshape(shape), dtype=dtype))
            start = stop
        return ArrayRecord(record)


def _shown(names: tuple[str, ...]) -> str:
    return printable(", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "none")


RECORD = "fl_sim.private"
"""The name of the record in a message, of requests and of replies."""

APP_METRICS = "fl_sim.unprotected"
"""The name of the record with the app's own metrics, which no noise protects, in a reply."""

VERSION = 2
"""Of these messages; server and nodes must agree."""

ENROLMENT, ROUND, EVALUATION = "enrol", "round", "evaluation"
"""What requests ask for; the app's own evaluation, with metrics that leave the node unprotected, is one of them."""

_MOST_USERS = 10_000_000


class ProtocolError(ValueError):
    """A message that does not belong to this protocol; one line."""


def user_number(identity: str) -> int:
    """Return the number by which server and nodes know a user, in [0, 2^63): a hash of the user's identity.

    It is a function of the identity alone, so the same user is sampled in the same rounds of one seed in a simulation,
    where nodes have random ids, and in a deployment. A name may be of any characters, as that of a file may that is not
    UTF-8: no user's name decides whether its node can name the others.
    """
    digest = hashlib.blake2b(identity.encode(errors="surrogatepass"), digest_size=8, person=b"fl_sim user").digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True, slots=True)
class PrivateRound:
    """Ask a node for the bounded sum of the updates of its sampled users.

    Attributes:
        seeds: of each user, for the generators that the app draws from.
        clip_norm: C, the bound on one user's update.
        forward_metrics: whether the app's own metrics shall leave the node, unprotected.
    """

    server_round: int
    users: tuple[int, ...]
    seeds: tuple[bytes, ...]
    clip_norm: float
    forward_metrics: bool

    @property
    def identity(self) -> str:
        """Return a hash of the request, by which a reply to another request is recognised."""
        content = json.dumps([self.server_round, sorted(self.users), self.clip_norm])
        return hashlib.sha256(content.encode()).hexdigest()

    def record(self) -> ConfigRecord:
        """Return the record of a request."""
        return ConfigRecord(
            {
                "version": VERSION,
                "purpose": ROUND,
                "server-round": self.server_round,
                "users": list(self.users),
                "seeds": list(self.seeds),
                "clip-norm": self.clip_norm,
                "forward-metrics": self.forward_metrics,
            }
        )

    @classmethod
    def read(cls, record: ConfigRecord) -> PrivateRound:
        """Return the request of a :meth:`record`; ProtocolError if it is none."""
        values: dict[str, Any] = dict(record)
        try:
            users, seeds = tuple(map(int, values["users"])), tuple(map(bytes, values["seeds"]))
            clip_norm, forward_metrics = float(values["clip-norm"]), bool(values["forward-metrics"])
            asked = cls(values["server-round"], users, seeds, clip_norm, forward_metrics)
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError("the request of the private round is malformed") from error
        if len(users) != len(seeds):
            raise ProtocolError("the request of the private round is malformed")
        return asked


def user_seed(key: bytes, server_round: int, user: int) -> bytes:
    """Return the seed of a user's generators in a round, which tells a node nothing of the key or of other users.

    The key is the run's, secret, of at most 64 bytes; ``user`` is the user's number.
    """
    content = f"{server_round} {user}".encode()
    return hashlib.blake2b(content, key=key, digest_size=16, person=b"fl_sim seed").digest()


def request_part(purpose: str) -> ConfigRecord:
    """Return the record of a request that has nothing to say but its purpose: ENROLMENT or EVALUATION."""
    return ConfigRecord({"version": VERSION, "purpose": purpose})


def purpose_of(record: ConfigRecord) -> object:
    """Return what the record of a request asks for.

    Raises:
        ProtocolError: server and node speak other versions of these messages.
    """
    if record.get("version") != VERSION:
        raise ProtocolError(f"the server speaks version {record.get('version')!r} of the private round, not {VERSION}")
    return record.get("purpose")


def enrolment_reply(users: list[int]) -> RecordDict:
    """Return the content of the reply that names a node's users by their numbers."""
    numbers = np.array(users, dtype="<u8").tobytes()
    return RecordDict({RECORD: ConfigRecord({"version": VERSION, "users": numbers}), "metrics": MetricRecord()})


def enrolled_users(reply: Message) -> tuple[int, ...]:
    """Return the numbers of the users that a node named.

    Raises:
        ProtocolError: the reply is of another kind, or its numbers are impossible.
    """
    record = reply.content.config_records.get(RECORD)
    content = None if record is None else record.get("users")
    if record is None or not isinstance(content, bytes) or record.get("version") != VERSION:
        raise ProtocolError("its ClientApp runs without userlevelclipping_mod (mods=[userlevelclipping_mod])")
    if len(content) % 8 or len(content) > 8 * _MOST_USERS:
        raise ProtocolError("the list of its users is malformed")
    users = tuple(np.frombuffer(content, dtype="<u8").tolist())
    if any(number >= 1 << 63 for number in users) or len(set(users)) != len(users):
        raise ProtocolError("the list of its users is malformed, or names a user twice")
    return users
