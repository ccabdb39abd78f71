"""A record for people: what is promised, what is claimed, what it costs, and what an attacker reads."""

from __future__ import annotations

from typing import Any


def summary(record: dict[str, Any]) -> str:
    """Some ten lines; ε as claimed never stands without what is proven."""
    metrics = record["metrics"]
    lines = [
        f"System      {record['config']['method']} on {record['data']['name']}, seed {record['seed']}",
        *_privacy(record),
        *_of_training(record),
        f"Accuracy    {metrics['test']['accuracy']:.4f} on {record['data']['test']:,} test examples",
    ]
    for name, group in metrics["test"]["groups"].items():
        lines.append(
            f"{name:<12}TPR-gap {group['tpr_gap']:+.4f}, GRMS {group['grms']:.4f}, accuracy "
            f"{group['accuracy_without']:.4f} without, {group['accuracy_with']:.4f} with it"
        )
    lines += [_attack(name, row) for name, row in metrics["attacks"].items() if row]
    return "\n".join([*lines, f"Time        {record['seconds']:.1f} s, {record['cpu_seconds']:.1f} s of one core"])


def _privacy(record: dict[str, Any]) -> list[str]:
    privacy = record["privacy"]
    if "layer" not in privacy:
        return [f"Privacy     {privacy['note']}"]
    if privacy["layer"] == "none":
        return ["Privacy     none: no noise is added, ε = ∞"]
    return [
        f"Privacy     layer {privacy['layer']}, k {record['dimensions']}, Laplace noise of scale "
        f"{privacy['noise_scale']:.4g}, L1 sensitivity {privacy['sensitivity_l1']:.4g}",
        f"ε claimed   {privacy['epsilon_claimed']:.4g} by the method's authors",
        f"ε proven    {privacy['epsilon_corrected']:.4g} for sent texts that differ in one word, "
        f"{privacy['epsilon_any_text']:.4g} for any two",
    ]


def _of_training(record: dict[str, Any]) -> list[str]:
    """What the encoder's own training promises, which is another promise to other people."""
    found = record.get("privacy_of_training")
    if found is None:
        return []
    both = found["entities"]["p95"]
    return [
        f"Training    the encoder's run ({found['strategy']}, {found['corpus']}, {found['releases']} releases by its "
        f"ledger) protects its own training data, at δ = {found['delta']:g}:",
        f"            ε {found['epsilon_user']:.4g} of a user with ≤ {found['user_sentences']:g} sentences, "
        f"{found['epsilon_user_unbounded']:.4g} with any number; with an entity of p95 reach {both['epsilon']:.4g}, "
        f"robust {both['epsilon_robust']:.4g}",
    ]


def _attack(name: str, row: dict[str, Any]) -> str:
    if "accuracy" in row:
        return f"Attacker    accuracy {row['accuracy']:.4f}, F1 {row['f1']:.4f}, 1−X {row['empirical_privacy_x']:.4f}"
    parts = []
    if "leakage" in row:
        parts.append(f"leakage {row['leakage']:.4f}")
    if "mdl" in row:
        parts.append(f"MDL {row['mdl']['kilobits']:.2f} kbit of {row['mdl']['uniform_kilobits']:.2f}")
    return f"Attack      {name}: {', '.join(parts)}"
