"""Reports and plots of finished runs."""
