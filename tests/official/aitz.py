"""AITZ: the one episode that the authors' repository shows, with its screenshots."""

from __future__ import annotations

from tests.official.case import Case

CASES = (
    Case(
        repository="IMNearth/CoAT",
        commit="9ab1a9f0e76581c50c84f8ebc6ada1a2084a0c71",
        date="2024-10-15",
        files={"data-example/": "train/google_apps/"},
        how="unchanged",
        split="train",
        part="one episode",
        records=4,
        rows=4,
        looks={
            "aitz-523638528775825151-0": {"gt": {"action": {"action": "navigate_home"}}},
            "aitz-523638528775825151-1": {
                "image": "train/google_apps/GOOGLE_APPS-523638528775825151/GOOGLE_APPS-523638528775825151_1.png",
                "gt": {"action": {"action": "scroll", "direction": "up"}},
            },
            "aitz-523638528775825151-2": {"gt": {"action": {"action": "click"}}},
            "aitz-523638528775825151-3": {"gt": {"action": {"action": "complete"}}},
        },
    ),
)
