"""The command that makes a project to start from."""
