"""Private federated averaging in a few lines, right by default, or with one fault."""
