"""A worker process: what it imports first, what it keeps open between rounds, and how it tells its progress."""
