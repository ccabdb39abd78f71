"""fl_sim itself: a run as ``fl-sim run`` does it, which waits after a round until more are requested."""

import contextlib

import plain

from fl_sim.config import RunConfig
from fl_sim.engines import simulation
from fl_sim.storage.run_folder import Row


def main() -> None:
    spec = plain.read_spec()
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
    rounds_left, users = 1, 0

    def wait_for_request(row: Row) -> None:
        nonlocal rounds_left, users
        if row["round"] > 0:
            rounds_left -= 1
            users += int(row["cohort_users"])
        if rounds_left == 0:
            rounds_left, users = plain.next_request(users), 0
            if rounds_left == 0:
                raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        simulation.run(RunConfig.from_mapping(settings | spec["settings"]), on_row=wait_for_request)


plain.redirect_output()
main()
