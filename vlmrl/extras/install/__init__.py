"""What an installation of vlmrl is made of: pinned versions, those that were tested, and the index of methods (docs/install.md)."""
