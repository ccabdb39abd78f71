"""What representations leak and what they are worth: attacks, audits, selection, pictures."""
