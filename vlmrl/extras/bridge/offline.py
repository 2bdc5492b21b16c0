"""The child of `run.evaluate_offline`: `python -m vlmrl.extras.bridge.offline OUT`, with the request in `OUT/request.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from vlmrl import fs
from vlmrl.config.schema import MediaSection
from vlmrl.errors import ConfigError, VlmrlError
from vlmrl.evals.ask.models import LocalModel
from vlmrl.extras.bridge.options import Options
from vlmrl.extras.bridge.run import FAILURE, evaluate_via_lmms


def main(arguments: list[str]) -> int:
    """Exit code: 0, or that of the error, which is then in `failure.json`."""
    if len(arguments) != 1:
        raise SystemExit("usage: python -m vlmrl.extras.bridge.offline OUT")
    out = Path(arguments[0])
    try:
        _evaluate(out)
    except VlmrlError as error:
        fs.write_text(out / FAILURE, json.dumps({"kind": type(error).__name__, "message": str(error)}) + "\n")
        return error.exit_code
    return 0


def _evaluate(out: Path) -> None:
    asked = json.loads((out / "request.json").read_text(encoding="utf-8"))
    given = dict(asked["options"])
    try:
        media = MediaSection(**given.pop("media", {}))
        options = Options(media=media, **given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"options of the bridge: {error}") from error
    model = LocalModel.load(Path(asked["checkpoint"]), device=asked["device"], dtype=asked["dtype"], attention=asked["attention"])
    evaluate_via_lmms(
        model,
        asked["tasks"],
        fingerprint=model.fingerprint,
        out=out,
        include_path=[Path(path) for path in asked["include_path"]],
        limit=asked["limit"],
        options=options,
        module=model.policy.model,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
