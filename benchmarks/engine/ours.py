"""fl_sim itself: a run as ``fl-sim run`` does it, which waits after a round until more are requested.

With ``profile`` in the workload, it prints what kinds of work its second round consists of (on stderr).
"""

import contextlib
import sys
import threading
import time
from collections import Counter
from typing import Any

import plain
import torch

from fl_sim.config import RunConfig
from fl_sim.engines import simulation
from fl_sim.storage.run_folder import Row

KINDS = {
    "batched products": ("aten::bmm", "aten::baddbmm"),
    "products": ("aten::mm", "aten::addmm", "aten::addmm_", "aten::linear", "aten::matmul"),
    "softmax, exp, log": ("aten::_softmax", "aten::_log_softmax", "aten::exp", "aten::exp_", "aten::logsumexp"),
    "copies and gathers": ("aten::copy_", "aten::cat", "aten::index", "aten::index_select", "aten::gather"),
}
BACKWARD = "autograd::engine::evaluate_function"


def main() -> None:
    spec = plain.read_spec()
    config = RunConfig.load(spec["config"]) if "config" in spec else RunConfig()
    rounds_left, counted = 1, 0
    profile = Profile() if spec.get("profile") else None

    def wait_for_request(row: Row) -> None:
        nonlocal rounds_left, counted
        if row["round"] > 0:
            rounds_left -= 1
            counted += int(row[spec.get("counted", "cohort_users")])
        if rounds_left == 0:
            if profile is not None and row["round"] == 2:
                profile.stop()
            rounds_left, counted = plain.next_request(counted), 0
            if rounds_left == 0:
                raise KeyboardInterrupt
            if profile is not None:
                profile.start()

    settings = spec["settings"] | {
        "out": str(plain.folder_of(spec) / spec["name"].replace(" ", "-").replace(",", "")),
        "rounds": spec["rounds"],
        "evaluation.every": 10**6,
        "evaluation.max_sentences": 1,
        "checkpoint_every": 10**6,
    }
    threading.excepthook = lambda _: None  # Flower's thread for the server ends with the interruption, too
    with contextlib.suppress(KeyboardInterrupt):
        simulation.run(config.changed(settings), on_row=wait_for_request)


class Profile:
    """Seconds of a round, by the clock, by the kind of work: in the backward pass or not, and which operation."""

    def __init__(self) -> None:
        self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])

    def start(self) -> None:
        self._profiler.start()
        self._began = time.monotonic()

    def stop(self) -> None:
        whole = time.monotonic() - self._began
        self._profiler.stop()
        seconds: Counter[str] = Counter()
        for event in self._profiler.events() or ():
            seconds[kind_of(event)] += event.self_cpu_time_total / 1e6
        for kind, spent in seconds.most_common():
            print(f"{spent:6.2f} s  {kind}", file=sys.stderr)
        print(f"{whole - seconds.total():6.2f} s  outside torch (of {whole:.2f})", file=sys.stderr)


def kind_of(event: Any) -> str:
    kind = next((kind for kind, names in KINDS.items() if event.name in names), "other kernels")
    ancestor = event
    while ancestor is not None:
        if ancestor.name.startswith(BACKWARD):
            return f"backward pass: {kind}"
        ancestor = ancestor.cpu_parent
    return kind


plain.redirect_output()
main()
