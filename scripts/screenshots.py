"""Make the README's picture of the dashboard from a server that is running.

    gossamer watch runs --port 8765 --no-browser
    python scripts/screenshots.py http://127.0.0.1:8765 docs/assets/dashboard.png --size 1440 900
    python scripts/screenshots.py http://127.0.0.1:8765 run.png --view "#/run" --theme dark

Without --view it shows the curves of the finished runs, and below them the graph of the run with the most learners.
Needs playwright and a chromium.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")
LARGEST_BYTES = 300_000
COLORS = (256, 128, 64, 32)
SETTLE_MS = 1200


def usual_views(address: str) -> list[str]:
    """Return the addresses (what follows #) of the views to show, from the runs that there are."""
    with urllib.request.urlopen(f"{address}/api/runs", timeout=10) as answer:  # noqa: S310 - the user's own server
        runs: list[dict[str, Any]] = json.load(answer)["runs"]
    seen = [run for run in runs if run["state"] not in ("damaged", "empty")]
    if not seen:
        sys.exit(f"{address} shows no runs; name views with --view")
    many = max(seen, key=lambda run: run["num_learners"] or 1)
    env_ids = [run["env_id"] for run in seen if run is not many] or [many["env_id"]]
    most = max(set(env_ids), key=env_ids.count)
    ids = ",".join(quote(run["id"]) for run in seen if run["env_id"] == most and run is not many)
    curves = f"#/curves?runs={ids}&metrics=return_mean_100,learner/entropy_nats&smooth=10"
    return [curves, f"#/learners?run={quote(many['id'])}"]


def pictures(
    address: str, views: list[str], theme: str, size: tuple[int, int]
) -> list[Image.Image]:
    """Return a picture of each view."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        shown: list[Image.Image] = []
        for view in views:
            # A context for each: a page that is open already would be told a view alone.
            context = browser.new_context(
                viewport={"width": size[0], "height": size[1]},
                color_scheme="dark" if theme == "dark" else "light",
            )
            page = context.new_page()
            page.goto(f"{address}/{view}")
            page.locator("main :is(.chart[data-drawn], .graph .node, tr)").first.wait_for()
            page.wait_for_timeout(SETTLE_MS)
            # Where the folder lies is nobody's business.
            page.locator("#root").evaluate(
                "(node) => { node.textContent = node.textContent.split('/').pop(); }"
            )
            shown.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
            context.close()
        browser.close()
    return shown


def save(parts: list[Image.Image], output: Path) -> None:
    """Write the pictures below one another, with as many colours as fit into the size of the file."""
    whole = Image.new("RGB", (parts[0].width, sum(part.height for part in parts)))
    top = 0
    for part in parts:
        whole.paste(part, (0, top))
        top += part.height
    for colors in COLORS:
        file = io.BytesIO()
        whole.quantize(colors, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        if file.tell() <= LARGEST_BYTES:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_bytes(file.getvalue())
            print(f"{output}: {file.tell():,} bytes, {colors} colours")
            return
    sys.exit(f"the picture has more than {LARGEST_BYTES:,} bytes; make it smaller with --size")


def main() -> None:
    """Read the command, take the pictures, write the file."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("address", help="of the server, as gossamer watch prints it")
    parser.add_argument("output", type=Path)
    parser.add_argument("--view", action="append", help="what follows the address in the browser")
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    parser.add_argument("--size", type=int, nargs=2, default=(1280, 700), metavar=("W", "H"))
    asked = parser.parse_args()
    address = asked.address.rstrip("/")
    views = asked.view or usual_views(address)
    save(pictures(address, views, asked.theme, tuple(asked.size)), asked.output)


if __name__ == "__main__":
    main()
