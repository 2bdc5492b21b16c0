"""Runs that differ in their seed alone: trained one after another, and compared as methods (`vlmrl train --seeds`, `vlmrl compare`)."""
