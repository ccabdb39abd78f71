"""Tell whether this installation, on this machine, computes what it should: `fl-sim doctor`."""
