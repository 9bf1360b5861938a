"""A notebook of a job in a real browser: JupyterLab runs as a job, `tessera forward` brings its port here, and Chromium
opens it, makes a notebook, runs a cell and shows the cell's output.

    with_jupyter.py FOLDER

`tessera` is in PATH, with TESSERA_URL and TESSERA_TOKEN of the cluster. The Python that runs this has the packages
jupyterlab and ipykernel, and chromium is in PATH. FOLDER gets a screenshot of the page.
"""

import base64
import json
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request

import tornado.gen
import tornado.ioloop
import tornado.websocket

# What the notebook's cell prints: that its kernel runs in the job, and which GPUs it sees.
CELL = "import os; print('cell', 6 * 7, os.environ['SLURM_JOB_ID'], os.environ['CUDA_VISIBLE_DEVICES'])"
WITHIN = 120


def until(what, look):
    end = time.monotonic() + WITHIN
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.2)
    raise SystemExit(f"{what}: not within {WITHIN} s")


class Page:
    """One page of the browser, by its DevTools."""

    def __init__(self, connection):
        self.connection, self.number = connection, 0

    @classmethod
    async def open(cls, address):
        return cls(await tornado.websocket.websocket_connect(address, max_message_size=1 << 28))

    async def call(self, method, **parameters):
        self.number += 1
        await self.connection.write_message(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(await self.connection.read_message())
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise SystemExit(f"{method}: {answer['error']}")
                return answer["result"]

    async def value(self, expression):
        answer = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return answer.get("result", {}).get("value")

    async def until(self, what, expression):
        end = time.monotonic() + WITHIN
        while time.monotonic() < end:
            found = await self.value(expression)
            if found:
                return found
            await tornado.gen.sleep(0.2)
        raise SystemExit(f"{what}: not within {WITHIN} s; the page shows {await self.value('document.body.innerText')!r}")


async def use(address, url, picture):
    page = await Page.open(address)
    await page.call("Page.enable")
    await page.call("Page.navigate", url=url)
    await page.until("JupyterLab starts", "!!(window.jupyterapp && document.querySelector('.jp-Launcher'))")
    await page.value("jupyterapp.commands.execute('notebook:create-new', {kernelName: 'python3'}).then(() => true)")
    await page.until("a notebook opens", "!!document.querySelector('.jp-Notebook .cm-content')")
    await page.until("its kernel is idle", "!!document.querySelector('.jp-Notebook-ExecutionIndicator[data-status=idle]')")
    # As a person does: a click into the cell, the keys, and Shift and Enter.
    place = json.loads(await page.value(
        "JSON.stringify((r => [r.x + r.width / 2, r.y + r.height / 2])"
        "(document.querySelector('.jp-Notebook .cm-content').getBoundingClientRect()))"
    ))
    for kind in ("mousePressed", "mouseReleased"):
        await page.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)
    await page.until("the cell has the keyboard", "document.activeElement?.classList.contains('cm-content')")
    await page.call("Input.insertText", text=CELL)
    await page.until("the cell has its text", f"document.querySelector('.jp-Notebook .cm-content').innerText.includes('cell')")
    for kind in ("keyDown", "keyUp"):
        await page.call(
            "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", modifiers=8, windowsVirtualKeyCode=13, text="\r" if kind == "keyDown" else "",
        )
    output = await page.until("the cell's output", "document.querySelector('.jp-OutputArea-output pre')?.innerText")
    shot = await page.call("Page.captureScreenshot")
    picture.write_bytes(base64.b64decode(shot["data"]))
    return output


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        raise SystemExit("chromium is not in PATH; on Debian: apt-get install chromium")
    token, port = secrets.token_hex(16), 20000 + secrets.randbelow(10000)
    server = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--port-retries=0",
        f"--IdentityProvider.token={token}", "--expose-app-in-browser", f"--ServerApp.root_dir={folder}",
        "--LabApp.news_url=", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    server += ["--allow-root"] if os.getuid() == 0 else []
    ran = subprocess.run(
        ["tessera", "submit", "--export", "ALL", "--vram", "auto", "--chdir", folder, "--", *server],
        check=True, stdout=subprocess.PIPE, text=True,
    )
    job = re.search(r"\d+", ran.stdout).group()
    children = []
    try:
        until("the job runs", lambda: '"state": "running"' in subprocess.run(
            ["tessera", "show", "--json", job], stdout=subprocess.PIPE, text=True).stdout)
        forward = subprocess.Popen(["tessera", "forward", job, f"{port}:0"], stdout=subprocess.PIPE, text=True)
        children.append(forward)
        local = re.search(r"127\.0\.0\.1:(\d+)", forward.stdout.readline()).group(1)
        if local == str(port):
            raise SystemExit("the local port is that of the job, so that nothing is proven")
        url = f"http://127.0.0.1:{local}/lab?token={token}"

        def serves():
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{local}/api", timeout=5).status == 200
            except OSError:
                return False

        until("JupyterLab answers", serves)
        profile = folder / "browser"
        children.append(subprocess.Popen(
            [browser, "--headless=new", "--disable-gpu", "--no-first-run", "--window-size=1280,900",
             "--remote-debugging-port=0", f"--user-data-dir={profile}", "--remote-allow-origins=*", "about:blank"]
            + (["--no-sandbox"] if os.getuid() == 0 else []),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ))
        tools = until("the browser starts", lambda: (profile / "DevToolsActivePort").exists()
                      and (profile / "DevToolsActivePort").read_text().split())[0]
        pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{tools}/json/list"))
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        output = tornado.ioloop.IOLoop().run_sync(lambda: use(address, url, folder / "notebook.png"))
    finally:
        for child in reversed(children):
            child.terminate()
            child.wait()
        subprocess.run(["tessera", "cancel", job], check=True, stdout=subprocess.DEVNULL)
    print(f"the browser shows: {output.strip()}")
    words = output.split()
    if words[:3] != ["cell", "42", job] or len(words) != 4:
        raise SystemExit(f"expected: cell 42 {job} and the job's GPU")


if __name__ == "__main__":
    main()
