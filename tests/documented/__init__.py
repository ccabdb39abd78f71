"""Tests of the commands that README.md and docs/ show."""
