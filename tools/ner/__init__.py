"""Train the named-entity pipeline that ships, and compare it with other taggers."""
