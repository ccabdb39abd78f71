"""Attack finished runs, beside what their proof allows any attack: users, planted secrets and names."""
