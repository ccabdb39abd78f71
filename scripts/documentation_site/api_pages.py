"""The pages of the API: which public names stand on which, and the Markdown that mkdocstrings fills from docstrings.

>>> print(api_page("leak"))
# Attacks on runs
<BLANKLINE>
What trained models give away, beside what ε allows ([docs/audit.md](../audit.md#what-a-model-gives-away)).
<BLANKLINE>
::: fl_sim.api.audits
    options:
      members: [leak]
<BLANKLINE>
::: fl_sim.data_prep.canaries
    options:
      members: [read_canaries, PlantedCanaries, Canary]
<BLANKLINE>
"""

from __future__ import annotations

Module = tuple[str, tuple[str, ...]]
"""A module, and its names that are public."""

_ACCOUNTING = "fl_sim.strategies.accounting"
_REPRESENTATIONS = "fl_sim.research.representations"

API_PAGES: dict[str, tuple[str, str, tuple[Module, ...]]] = {
    "runs": (
        "Runs",
        "Start, resume, open, list, plot and compare runs ([docs/report.md](../report.md)). All of these are names of "
        "`fl_sim` itself: `fl_sim.run(…)`.",
        (
            ("fl_sim.api.runs", ("run", "resume", "open_run", "compare", "plot_runs", "Run", "Plot")),
            ("fl_sim.reporting.run_list", ("list_runs", "RunList")),
            ("fl_sim.reporting.comparison", ("Comparison",)),
        ),
    ),
    "corpora": (
        "Corpora",
        "Prepare and open corpora ([docs/corpora.md](../corpora.md)).",
        (
            ("fl_sim.api.corpora", ("prepare", "open_corpus", "corpus_stats")),
            ("fl_sim.data_prep.store.corpus", ("Corpus",)),
        ),
    ),
    "accounts": (
        "ε of a training",
        "Compute ε without training ([docs/privacy.md](../privacy.md)).",
        (
            ("fl_sim.api.accounts", ("account", "calibrate", "account_runs", "account_published")),
            ("fl_sim.strategies.accounting.paper_model", ("PublishedSettings",)),
        ),
    ),
    "audits": (
        "Audits",
        "Attack a mechanism, and compare with its ε ([docs/audit.md](../audit.md)).",
        (("fl_sim.api.audits", ("audit", "audit_published")),),
    ),
    "flower": (
        "Flower apps",
        "Private [training of any Flower app](../flower.md#private-training-for-your-flower-app), for its users, and "
        "what the ε of [somebody's app](../check.md) is worth.",
        (
            ("fl_sim.api.checks", ("check", "Check")),
            ("fl_sim.flower.user_level_strategy", ("UserLevelDifferentialPrivacy",)),
            ("fl_sim.flower.clipping_mod", ("UserLevelClipping",)),
        ),
    ),
    "leak": (
        "Attacks on runs",
        "What trained models give away, beside what ε allows ([docs/audit.md](../audit.md#what-a-model-gives-away)).",
        (
            ("fl_sim.api.audits", ("leak",)),
            ("fl_sim.data_prep.canaries", ("read_canaries", "PlantedCanaries", "Canary")),
        ),
    ),
    "representations": (
        "Text representations",
        "Perturb text on the device, train and attack what is sent ([docs/representations.md](../representations.md)).",
        (
            (f"{_REPRESENTATIONS}.local_privacy", ("MinMax", "MinMaxShared", "UnitL1", "LocalGuarantee")),
            (f"{_REPRESENTATIONS}.evaluation.layer_audit", ("worst_pair", "largest_log_ratio", "attack_layer")),
            (f"{_REPRESENTATIONS}.representation_experiment", ("run",)),
            (f"{_REPRESENTATIONS}.config", ("load_mapping",)),
            (f"{_REPRESENTATIONS}.experiment_record", ("summary",)),
            (f"{_REPRESENTATIONS}.corpora.labelled_tables", ("write_toy_adult",)),
        ),
    ),
    "configuration": (
        "Configurations",
        "A run's configuration as an object; [docs/configuration.md](../configuration.md) lists its keys.",
        (("fl_sim.config", ("RunConfig", "ConfigError")),),
    ),
    "observers": (
        "Observers",
        "What a run calls with every round's row ([Add an observer](../extending.md#add-an-observer)).",
        (("fl_sim.experiments.observers", ("Observer", "RunStart")),),
    ),
    "strategies": (
        "Strategies",
        "What a strategy states: rule, noise and guarantee ([Add a strategy](../extending.md#add-a-strategy)).",
        (
            ("fl_sim.strategies.mechanism", ("Mechanism", "Description", "Settings", "CorpusCounts", "PrivacyPlan")),
            ("fl_sim.strategies.client_rules", ("ClientRule", "ClippedGradients", "LocalSteps", "WeightedGradients")),
        ),
    ),
    "models": (
        "Models",
        "What a model of your own defines ([Add a model](../extending.md#add-a-model)).",
        (("fl_sim.clients.models.architectures.architecture", ("Architecture",)),),
    ),
    "taggers": (
        "Taggers",
        "What finds entities in texts ([Add a tagger](../extending.md#add-a-tagger)).",
        (
            ("fl_sim.data_prep.taggers.tagger", ("Tagger",)),
            ("fl_sim.data_prep.records", ("Mention", "Sentence", "CorpusError")),
        ),
    ),
    "readers": (
        "Readers",
        "What turns raw text into sentences with users ([Add a reader](../extending.md#add-a-reader)).",
        (
            ("fl_sim.data_prep.readers.reader", ("Reader", "RawCorpus")),
            ("fl_sim.data_prep.readers.cleaning", ("Reading",)),
        ),
    ),
    "accounting": (
        "Accounting",
        "What computes every printed ε ([docs/privacy.md](../privacy.md) has the proofs).",
        (
            (
                f"{_ACCOUNTING}.accountant",
                ("RoundEvent", "epsilon", "epsilon_curve", "composed_epsilon", "delta", "solve"),
            ),
            (f"{_ACCOUNTING}.adjacency", ("Adjacency", "ContributionBound")),
            (f"{_ACCOUNTING}.guarantee", ("Guarantee", "ProtectedUnit")),
            (f"{_ACCOUNTING}.attack_success", ("largest_true_positive_rate",)),
        ),
    ),
}
"""Title, first sentence and modules of a page by its name."""


def api_page(name: str) -> str:
    """Return the Markdown of a page."""
    title, words, modules = API_PAGES[name]
    blocks = [f"::: {module}\n    options:\n      members: [{', '.join(members)}]\n" for module, members in modules]
    return "\n".join([f"# {title}\n", f"{words}\n", *blocks])


def public_paths() -> list[str]:
    """Return the full names of all public objects, in the order of the pages."""
    return [f"{module}.{name}" for _, _, modules in API_PAGES.values() for module, names in modules for name in names]
