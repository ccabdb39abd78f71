"""fl_sim itself: a run as ``fl-sim run`` does it, which waits after a round until more are asked for."""

import contextlib

import plain

from fl_sim import simulate
from fl_sim.config import RunConfig
from fl_sim.experiment import Row


def main() -> None:
    spec = plain.given()
    settings = {
        "corpus.path": str(plain.folder_of(spec) / "corpus"),
        "out": str(plain.folder_of(spec) / spec["name"]),
        "rounds": spec["rounds"],
        "model.hidden": plain.HIDDEN,
        "model.layers": plain.LAYERS,
        "model.heads": plain.HEADS,
        "model.max_tokens": spec["length"],
        "model.tokenizer": str(plain.folder_of(spec) / "tokenizer"),
        "local.batch_size": plain.BATCH,
        "local.learning_rate": plain.RATE,
        "privacy.q_u": spec["cohort"] / spec["users"],
        "evaluation.every": 10**6,
        "evaluation.max_sentences": 1,
        "checkpoint_every": 10**6,
    }
    left = [1]

    def after(row: Row) -> None:
        if row["round"] > 0:
            left[0] -= 1
        if left[0] == 0:
            left[0] = plain.asked()
            if left[0] == 0:
                raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        simulate.run(RunConfig.from_mapping(settings | spec["settings"]), observer=after)


plain.quietly()
main()
