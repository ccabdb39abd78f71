"""The record of an experiment, as its JSON has it (infinities are encoded there), and its summary as text.

>>> group = {"tpr_gap": 0.1, "tpr_gap_error": 0.02, "grms": 0.08, "grms_error": 0.01}
>>> group |= {"accuracy_without": 0.9, "accuracy_with": 0.8}
>>> record = {
...     "config": {"method": "unconstrained"}, "data": {"name": "adult", "test": 20}, "seed": 0, "seconds": 1.0,
...     "privacy": {"layer": "none"}, "cpu_seconds": 1.0,
...     "metrics": {"test": {"accuracy": 0.85, "groups": {"sex": group}}, "attacks": {}},
... }
>>> print(summary(record).splitlines()[2])
Accuracy    0.8500 on 20 test examples
"""

from __future__ import annotations

from typing import Any

from fl_sim.formats import format_epsilon

ExperimentRecord = dict[str, Any]
"""What an experiment measured, and its guarantee.

* ``config`` is complete, ``data`` the corpus with the sizes of its splits and ``counts`` of what was left out or filled
  in, ``dimensions`` k of a method that sends vectors, ``epochs`` have validation figures after each epoch.
* ``privacy`` is the guarantee of the release: ``epsilon_any_text`` and ``epsilon_corrected`` (of one word) are proven,
  ``epsilon_claimed`` is the authors', ``epsilon`` the parameter; ``sensitivity_l1``, ``noise_scale`` and ``grid_width``
  are the layer's. A ``note`` says that nothing is sent.
* ``privacy_of_training`` has ε of all releases in the ledger of the encoder's run: ``epsilon_user`` for a user with at
  most ``user_sentences`` sentences, ``epsilon_user_unbounded`` for any user, ``entities`` for a user and an entity at
  the median, 95th percentile and maximum of the run's contribution bounds (``reach``), also if it was not detected.
* ``metrics`` have ``accuracy`` and ``groups`` of both ``validation`` and ``test``, shares of 1 with their sampling
  errors by private attribute, and ``attacks`` by attribute (``leakage``, ``mdl`` in 1024 bits) and DPNR's attacker.
* ``releases`` are other releases of the test texts: μ, ε as above, and the classifier's utility.
"""


def summary(record: ExperimentRecord) -> str:
    """Return the summary of a record, some ten lines; proven ε stands first, claimed ε beside it."""
    metrics, counts = record["metrics"], record["data"].get("counts")
    lines = [
        f"System      {record['config']['method']} on {record['data']['name']}, seed {record['seed']}",
        *([f"Data        {'; '.join(f'{of}: {number:,}' for of, number in counts.items())}"] if counts else ()),
        *_privacy(record),
        *_training_lines(record),
        f"Accuracy    {metrics['test']['accuracy']:.4f} on {record['data']['test']:,} test examples",
    ]
    for name, group in metrics["test"]["groups"].items():
        lines.append(
            f"{name:<12}TPR-gap {group['tpr_gap']:+.4f} ± {group['tpr_gap_error']:.4f}, GRMS {group['grms']:.4f} ± "
            f"{group['grms_error']:.4f} (standard errors of {record['data']['test']:,} rows), accuracy "
            f"{group['accuracy_without']:.4f} without, {group['accuracy_with']:.4f} with it"
        )
    lines += [_attack(name, row) for name, row in metrics["attacks"].items() if row]
    return "\n".join([*lines, f"Time        {record['seconds']:.1f} s, {record['cpu_seconds']:.1f} s of one core"])


def _privacy(record: ExperimentRecord) -> list[str]:
    privacy = record["privacy"]
    if "layer" not in privacy:
        return [f"Privacy     {privacy['note']}"]
    if privacy["layer"] == "none":
        return ["Privacy     none: no noise is added, ε = ∞"]
    return [
        f"Privacy     layer {privacy['layer']}, k {record['dimensions']}, Laplace noise of scale "
        f"{privacy['noise_scale']:.4g}, L1 sensitivity {privacy['sensitivity_l1']:.4g}",
        f"ε proven    {format_epsilon(privacy['epsilon_any_text'])} for any two texts, "
        f"{format_epsilon(privacy['epsilon_corrected'])} for two that differ in one word",
        f"ε claimed   {format_epsilon(privacy['epsilon_claimed'])} by the method's authors",
    ]


def _training_lines(record: ExperimentRecord) -> list[str]:
    """Return the guarantee of the encoder's own run, which protects other people's data."""
    training = record.get("privacy_of_training")
    if training is None:
        return []
    with_entity = training["entities"]["p95"]
    user, anybody = (format_epsilon(training[name]) for name in ("epsilon_user", "epsilon_user_unbounded"))
    both, robust = (format_epsilon(with_entity[name]) for name in ("epsilon", "epsilon_robust"))
    return [
        f"Training    the encoder's run ({training['strategy']}, {training['corpus']}, {training['releases']} releases "
        f"in its ledger) protects its own training data, at δ = {training['delta']:g}:",
        f"            ε {user} of a user with ≤ {training['user_sentences']:g} sentences, {anybody} with any number; "
        f"with an entity at the 95th percentile of contribution bounds {both}, robust {robust}",
    ]


def _attack(name: str, row: dict[str, Any]) -> str:
    if "accuracy" in row:
        whose = "of DPNR's code: " if name == "published_attacker" else ""
        figures = f"accuracy {row['accuracy']:.4f}, F1 {row['f1']:.4f}, 1−X {row['empirical_privacy_x']:.4f}"
        return f"Attacker    {whose}{figures}"
    parts = []
    if "leakage" in row:
        parts.append(f"leakage {row['leakage']:.4f}")
    if "mdl" in row:
        parts.append(f"MDL {row['mdl']['kilobits']:.2f} kbit of {row['mdl']['uniform_kilobits']:.2f}")
    return f"Attack      {name}: {', '.join(parts)}"
