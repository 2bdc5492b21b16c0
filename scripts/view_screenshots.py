"""Screenshots of `vlmrl view` on a folder, in headless Chromium: light, dark and at the width of a phone.

python scripts/view_screenshots.py runs /tmp/shots [--run NAME]
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import uvicorn

from vlmrl.extras.agents.browser.process import find_browser, missing_browser
from vlmrl.extras.pages.view.app import make_app
from vlmrl.extras.pages.view.view import View

SIZES = {"light": (1280, 800, 1), "dark": (1280, 800, 0), "phone": (400, 900, 1)}
"""Width, height, and Chromium's number of the preferred colour scheme."""
TOKEN = "only-while-the-pictures-are-taken"


def views_of(view: View, run: str) -> dict[str, str]:
    """Name of a picture -> address of the page. The group is the one whose answers differ most, the question the one most often asked."""
    table = view.document(f"questions/{run}")
    kept, columns = table["kept"], [one["name"] for one in table["columns"]]
    group = max(range(len(kept["q"])), key=lambda n: kept["spread"][n] or 0.0)
    question = table["questions"]["id"][max(kept["q"], key=kept["q"].count)]
    better = f"reward.{columns[-1]} > reward.{columns[0]}"
    return {
        "folder": "/",
        "run": f"/run/{run}",
        "curves": f"/curves/{run}",
        "arms": "/curves/arms",
        "questions": f"/questions/{run}?filter={better}".replace(" ", "+"),
        "question": f"/question/{question}?of={run}",
        "map": f"/groups/{run}",
        "rewards": f"/groups/{run}?view=rewards",
        "group": f"/group/{kept['address'][group]}?colour=entropy",
    }


def main() -> None:
    """Take one picture per view and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--run", help="whose run to show; the first of the folder")
    args = parser.parse_args()
    browser = find_browser()
    if browser is None:
        sys.exit(missing_browser())
    view = View([args.folder])
    views = views_of(view, args.run or view.document("folder")["runs"][0]["id"])
    args.out.mkdir(parents=True, exist_ok=True)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(view, TOKEN), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        for size, (width, height, scheme) in SIZES.items():
            for name, at in views.items():
                with tempfile.TemporaryDirectory() as profile:
                    command = [
                        *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
                        *(f"--window-size={width},{height}", f"--blink-settings=preferredColorScheme={scheme}"),
                        *("--virtual-time-budget=6000", f"--user-data-dir={profile}", f"--screenshot={args.out / f'{name}-{size}.png'}"),
                        f"http://127.0.0.1:{listening.getsockname()[1]}/?token={TOKEN}#{at}",
                    ]
                    subprocess.run(command, check=True, capture_output=True, timeout=300)
    finally:
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
