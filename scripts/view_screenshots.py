"""Screenshots of `vlmrl view` on a run, in headless Chromium: light, dark and at the width of a phone.

python scripts/view_screenshots.py runs/toy_video /tmp/shots [--other runs/another]
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import uvicorn

from vlmrl.extras.pages.view.app import make_app
from vlmrl.extras.pages.view.run import RunView

SIZES = {"light": (1280, 1000, 1), "dark": (1280, 1000, 0), "phone": (400, 900, 1)}
"""Width, height, and Chromium's number of the preferred colour scheme."""
TOKEN = "only-while-the-pictures-are-taken"


def main() -> None:
    """Take one picture per view and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--other", type=Path)
    args = parser.parse_args()
    browser = next((found for name in ("chromium-headless-shell", "chromium", "google-chrome") if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit("no chromium-headless-shell, chromium or google-chrome on PATH")
    runs = [RunView(path) for path in (args.run, args.other) if path is not None]
    first = runs[0].groups(size=1)["groups"][0]
    views = {"curves": "/curves", "groups": "/groups", "group": f"/group/0/{first['address']}", "same": f"/same/{first['sample']}"}
    args.out.mkdir(parents=True, exist_ok=True)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(runs, TOKEN), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        for size, (width, height, scheme) in SIZES.items():
            for name, view in views.items():
                with tempfile.TemporaryDirectory() as profile:
                    command = [
                        *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
                        *(f"--window-size={width},{height}", f"--blink-settings=preferredColorScheme={scheme}"),
                        *("--virtual-time-budget=6000", f"--user-data-dir={profile}", f"--screenshot={args.out / f'{name}-{size}.png'}"),
                        f"http://127.0.0.1:{listening.getsockname()[1]}/?token={TOKEN}#{view}",
                    ]
                    subprocess.run(command, check=True, capture_output=True, timeout=300)
    finally:
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
