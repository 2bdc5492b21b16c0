"""Environments of the package, one file each. Every module here is imported, and so registered."""
