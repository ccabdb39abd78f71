"""Evaluation of private representations: attacks, audits, model selection, pictures."""
