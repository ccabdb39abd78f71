"""Model architectures: what each one builds, runs, tunes and saves."""
