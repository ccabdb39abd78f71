"""The verbs: each offers functions of the API, and prints what they return."""
