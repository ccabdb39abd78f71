"""What a run is before it starts: its mechanism, bounds, guarantees and earlier releases."""
