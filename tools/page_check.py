#!/usr/bin/env python3
"""Opens docs/demo.html in a headless Chromium, narrow and wide, light and dark, and sees whether all of it can be read.

    page_check.py [--screenshots FOLDER] [FILE]

Nothing may reach out of the window or out of what holds it, text has to stand out from what is behind it, every bar has to be
there, and the data in the page has to be JSON. With --screenshots the four pictures are kept to be looked at.
"""
import argparse
import html
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTHS, SCHEMES = (400, 1400), {"dark": 0, "light": 1}

# Runs beside a frame that shows the page, so that the frame's width is exact whatever the smallest window is.
PROBE = """<!DOCTYPE html><meta charset="utf-8"><style>body{margin:0}iframe{border:0;display:block}</style>
<iframe id="page" width="%(width)d" height="%(height)d" srcdoc="%(page)s"></iframe><pre id="found"></pre>
<script>
const luminance = color => {
  const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
addEventListener("load", () => {
  const frame = document.getElementById("page"), view = frame.contentWindow, page = view.document, faults = [];
  const behind = luminance(view.getComputedStyle(page.body).backgroundColor);
  if (page.documentElement.scrollWidth > view.innerWidth) faults.push(`the page is ${page.documentElement.scrollWidth} wide`);
  for (const one of page.querySelectorAll("h1, h2, p, dt, dd, b, .bar")) {
    const place = one.getBoundingClientRect(), what = `${one.tagName} "${one.textContent}"`;
    if (place.left < 0 || place.right > view.innerWidth) faults.push(`${what} reaches out of the window`);
    if (one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0) faults.push(`${what} is cut off`);
    const ink = luminance(view.getComputedStyle(one).color), [low, high] = [ink, behind].sort((a, b) => a - b);
    if ((high + 0.05) / (low + 0.05) < 4.5) faults.push(`${what} is hard to read`);
  }
  const bars = [...page.querySelectorAll(".bar")];
  for (const bar of bars) if (bar.clientWidth < 60 || bar.clientHeight < 8) faults.push("a bar has no room");
  let data = false;
  try { data = Boolean(JSON.parse(page.getElementById("report").textContent).speed); } catch (error) { faults.push(String(error)); }
  const dark = view.matchMedia("(prefers-color-scheme: dark)").matches;
  document.getElementById("found").textContent = JSON.stringify({faults, data, dark, bars: bars.length, width: view.innerWidth, height: page.body.scrollHeight});
});
</script>"""


def browse(browser, folder, scheme, width, height, *args):
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
               "--disable-background-networking", "--disable-component-update", "--disable-sync", f"--user-data-dir={folder}/profile",
               f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", f"--window-size={width},{height}",
               *args, f"file://{folder}/probe.html"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{browser} ended with {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=pathlib.Path, default=ROOT / "docs" / "demo.html")
    parser.add_argument("--screenshots", type=pathlib.Path)
    args = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser:
        print("skipped: no Chromium")
        return 0
    page = html.escape(args.file.read_text(encoding="utf-8"))
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        probe = pathlib.Path(folder, "probe.html")
        for width in WIDTHS:
            for scheme in SCHEMES:
                probe.write_text(PROBE % {"width": width, "height": 4000, "page": page}, encoding="utf-8")
                dom = browse(browser, folder, scheme, 1500, 4200, "--virtual-time-budget=5000", "--dump-dom")
                answer = re.search(r'<pre id="found">(.*?)</pre>', dom, re.S)
                found = json.loads(html.unescape(answer[1]))
                asked = {"data": True, "dark": scheme == "dark", "width": width}
                faults = found["faults"] + [f"{key} is {found[key]}" for key in asked if found[key] != asked[key]]
                faults += [] if found["bars"] else ["there are no bars"]
                print(f"{width} {scheme}: {found['bars']} bars, {found['height']} high, {len(faults)} faults")
                for fault in faults:
                    print("   ", fault)
                failed += len(faults)
                if args.screenshots:
                    args.screenshots.mkdir(parents=True, exist_ok=True)
                    picture = args.screenshots / f"{width}-{scheme}.png"
                    probe.write_text(PROBE % {"width": width, "height": found["height"] + 20, "page": page}, encoding="utf-8")
                    browse(browser, folder, scheme, width, found["height"] + 20, f"--screenshot={picture.resolve()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
