"""Engines that compute a run's rounds, in this process or Flower's on Ray; and whether a machine is ready for them."""
