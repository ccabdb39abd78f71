"""The prepared corpus on disk: columns, the incidence of users, sentences and entities, and the manifest."""
