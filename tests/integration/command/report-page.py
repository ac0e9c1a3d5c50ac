#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A page of wherry bench --report in a headless Chromium, and broken copies of it.

report-page.py PAGE DIRECTORY [--broken]

Prints a line "[       OK ] case" or "[  FAILED  ] case" for each, and leaves screenshots and a PDF in
DIRECTORY. --broken: with each of several things broken in a copy, the same checks have to complain of
it. Speaks the DevTools protocol over two pipes: messages are JSON, each ended by a zero byte. Exits 77
if there is no Chromium.
"""
import base64
import hashlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time

SECONDS = 30  # time limit for an answer of the browser
SIZES = {"phone": (320, 640), "desktop": (1100, 800)}

# Check that a reader can see, name and reach everything. Returns a list of complaints.
LOOK = r"""
(() => {
const wrong = [], say = (text) => { if (wrong.length < 20) wrong.push(text); };
const name = (e) => e.tagName.toLowerCase() + (e.className.baseVal ?? e.className ?
	"." + (e.className.baseVal ?? e.className) : "") + " '" + e.textContent.trim().slice(0, 30) + "'";
const colour = (text) => {
	const found = text.match(/^rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)$/);
	return found && { rgb: found.slice(1, 4).map(Number), alpha: Number(found[4] ?? 1) };
};
const light = ({ rgb }) => {
	const [r, g, b] = rgb.map((c) => c / 255).map((c) =>
		c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
	return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (a, b) => {
	const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
	return (x + 0.05) / (y + 0.05);
};
const behind = (e) => {
	for (; e; e = e.parentElement) {
		const back = colour(getComputedStyle(e).backgroundColor);
		if (back && back.alpha === 1)
			return back;
	}
	return colour("rgb(255, 255, 255)");
};
const shown = (e) => e.checkVisibility() && e.getClientRects().length;
let texts = 0, marks = 0;

/* Words: contrast and size. */
for (const e of document.body.querySelectorAll("*")) {
	const words = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
	if (!words || !shown(e) || e.tagName === "title")
		continue;
	const style = getComputedStyle(e), svg = e.ownerSVGElement;
	const back = behind(svg ?? e), front = colour(svg ? style.fill : style.color);
	const size = parseFloat(style.fontSize) * (svg ? e.getScreenCTM().a : 1);
	const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
	texts++;
	if (!front || !back || front.alpha < 1)
		say("no plain colour: " + name(e));
	else if (contrast(front, back) < (large ? 3 : 4.5))
		say(`contrast ${contrast(front, back).toFixed(2)}: ${name(e)}`);
	if (size < 9.5)
		say(`letters of ${size.toFixed(1)} px: ${name(e)}`);
}
/* Lines and marks. */
for (const e of document.querySelectorAll("path.line, path.limit, .mark, .bar rect:not(.band)")) {
	if (!shown(e))
		continue;
	const style = getComputedStyle(e), line = e.matches("path.line, path.limit");
	const front = colour(line ? style.stroke : style.fill);
	marks++;
	if (!front || contrast(front, behind(e.ownerSVGElement)) < 3)
		say("contrast of a drawing: " + name(e));
}
/* Short words are whole. */
for (const e of document.querySelectorAll("th[scope=col], .tag, .narrow td, nav a")) {
	const text = e.firstChild;
	if (!shown(e) || text?.nodeType !== 3)
		continue;
	for (const word of text.data.matchAll(/(?<!\S)[\w.,%+:-]+(?!\S)/g)) {
		const range = document.createRange();
		range.setStart(text, word.index);
		range.setEnd(text, word.index + word[0].length);
		if (word[0].length < 16 && range.getClientRects().length > 1)
			say("a broken word: " + name(e));
	}
}
/* Nothing hangs out of the page or of a drawing, no labels lie on each other. */
if (document.documentElement.scrollWidth > innerWidth)
	say(`overflow: ${document.documentElement.scrollWidth} wide in ${innerWidth}`);
for (const svg of document.querySelectorAll("figure svg")) {
	const box = svg.getBoundingClientRect();
	const labels = [...svg.querySelectorAll("text")].map((t) => [t, t.getBoundingClientRect()]);
	for (const [t, b] of labels)
		if (b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1 ||
		    b.bottom > box.bottom + 1)
			say("a label hangs out: " + name(t));
	for (const [i, [t, a]] of labels.entries())
		for (const [, b] of labels.slice(i + 1))
			if (a.left < b.right && b.left < a.right && a.top + 2 < b.bottom - 2 &&
			    b.top + 2 < a.bottom - 2)
				say("labels on each other: " + name(t));
	for (const e of svg.querySelectorAll(".mark, path.line"))
		if ((e.getAttribute("d") ?? "") .includes("nan") || e.outerHTML.includes("inf"))
			say("a drawing has no number: " + name(e));
}
/* Names, tables beside drawings, structure. */
const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
if (new Set(ids).size !== ids.length)
	say("an id twice");
for (const a of document.querySelectorAll("a[href]"))
	if (!a.getAttribute("href").startsWith("#") || !document.getElementById(a.hash.slice(1)))
		say("a link to nowhere: " + name(a));
for (const svg of document.querySelectorAll("svg:not([aria-hidden=true])"))
	if (svg.getAttribute("role") !== "img" || !svg.getAttribute("aria-label"))
		say("a drawing without a name");
for (const figures of document.querySelectorAll(".figures")) {
	let next = figures.nextElementSibling;
	while (next && !next.matches("details, h3"))
		next = next.nextElementSibling;
	if (!next?.querySelector("table tbody tr"))
		say("a drawing without a table");
}
for (const table of document.querySelectorAll("table")) {
	if (!table.querySelector("thead th[scope=col]") ||
	    [...table.tBodies[0].rows].some((r) => !r.querySelector("th[scope=row]")))
		say("a table without heads: " + name(table));
	if (!table.closest(".scroll[tabindex='0'][role=region][aria-label]"))
		say("a table that keys cannot scroll: " + name(table));
	const columns = new Set([...table.rows].map((r) => r.cells.length));
	if (columns.size !== 1)
		say("a table with a gap: " + name(table));
}
for (const part of ["summary", "matrix", "curves", "verdicts", "routes", "environment", "figures"])
	if (!document.querySelector(`h2[id=${part}]`))
		say("no part " + part);
let level = 0;
for (const h of document.querySelectorAll("h1, h2, h3")) {
	if (Number(h.tagName[1]) > level + 1)
		say("a heading too deep: " + name(h));
	level = Number(h.tagName[1]);
}
if (document.querySelectorAll("h1").length !== 1 || !document.querySelector("main") ||
    !document.documentElement.lang || !document.title)
	say("no heading, main part, language or title");
/* Nothing active, nothing from elsewhere. */
if (document.querySelector("script, iframe, object, embed, form, base, img, video, audio, template"))
	say("an active element");
for (const e of document.querySelectorAll("*"))
	for (const a of e.attributes)
		if (/^on/.test(a.name) || (/^(src|href|xlink:href|action|data)$/.test(a.name) &&
					   !/^(#|data:,$)/.test(a.value)))
			say(`attribute ${a.name} of ${name(e)}`);
if (texts < 50)
	say(`${texts} texts only`);
return { wrong, texts, marks };
})()
"""

FOCUS = r"""
(() => {
const e = document.activeElement, style = getComputedStyle(e);
const all = [...document.querySelectorAll("a[href], summary, [tabindex='0']")].filter((f) =>
	f.checkVisibility());
return { at: all.indexOf(e), count: all.length,
	 seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 };
})()
"""

# Things that the page's content security policy must block.
POLICY = r"""
new Promise(async (resolve) => {
const blocked = [];
document.addEventListener("securitypolicyviolation", (e) => blocked.push(e.effectiveDirective));
const script = document.createElement("script");
script.textContent = "window.ran = true";
document.body.append(script);
const image = new Image();
image.src = "http://127.0.0.1:9/image";
try { await fetch("http://127.0.0.1:9/fetch"); } catch { }
setTimeout(() => resolve({ ran: !!window.ran, blocked }), 200);
})
"""


class Browser:
    def __init__(self, program, directory):
        to_browser, self.out = os.pipe()
        self.input, from_browser = os.pipe()
        words = [program, "--headless=new", "--remote-debugging-pipe", "--disable-gpu",
                 "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
                 "--disable-component-update", "--disable-sync", "--disable-extensions",
                 "--hide-scrollbars", f"--user-data-dir={directory}/profile"]
        if os.geteuid() == 0:
            words.append("--no-sandbox")

        def wire():
            # Chromium expects the pipes at 3 and 4; move both ends away from there first.
            ends = os.dup(to_browser), os.dup(from_browser)
            high = os.dup(ends[0]) + 10, os.dup(ends[1]) + 20
            os.dup2(ends[0], high[0])
            os.dup2(ends[1], high[1])
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        with open(f"{directory}/chromium.log", "wb") as log:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, close_fds=False,
                preexec_fn=wire, start_new_session=True,
                env={**os.environ, "HOME": directory, "XDG_CONFIG_HOME": directory})
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.number, self.session = b"", 0, None
        self.events = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.ask(f"{domain}.enable")

    def end(self):
        try:
            self.ask("Browser.close")
            self.process.wait(10)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            pass
        # Chromium and its helper processes are one process group.
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def receive(self, deadline):
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.input], [], [], left)[0]:
                raise RuntimeError("no answer from chromium")
            got = os.read(self.input, 1 << 20)
            if not got:
                raise RuntimeError("chromium is gone")
            self.buffer += got
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, **values):
        self.number += 1
        request = {"id": self.number, "method": method, "params": values}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.out, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while True:
            message = self.receive(deadline)
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self.events.append(message)

    def evaluate(self, text):
        answer = self.ask("Runtime.evaluate", expression=text, returnByValue=True,
                          awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"])[:500])
        return answer["result"].get("value")

    def wait(self, method):
        deadline = time.monotonic() + SECONDS
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.receive(deadline))

    def show(self, path, width=1100, height=800, scheme="light", media=""):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=1, mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia", media=media,
                 features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.ask("Page.navigate", url="file://" + os.path.abspath(path))
        self.wait("Page.loadEventFired")

    def complaints(self):
        """Requests to the network, and messages on the console, as complaints."""
        self.evaluate("new Promise((resolve) => setTimeout(resolve, 50))")
        wrong = []
        for event in self.events:
            method, values = event.get("method"), event.get("params", {})
            if method == "Network.requestWillBeSent":
                url = values["request"]["url"]
                if not (values["type"] == "Document" and url.startswith("file://")) and \
                        not url.startswith("data:"):
                    wrong.append(f"request for {url}")
            elif method == "Runtime.consoleAPICalled":
                wrong.append(f"console: {values['args']}")
            elif method == "Runtime.exceptionThrown":
                wrong.append(f"exception: {values['exceptionDetails']['text']}")
            elif method == "Log.entryAdded":
                wrong.append(f"console: {values['entry']['text']}")
        return wrong

    def key(self, name, code, text=None):
        values = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        if text:
            values["text"] = text
        self.ask("Input.dispatchKeyEvent", type="keyDown", **values)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=name, code=name,
                 windowsVirtualKeyCode=code)

    def screenshot(self, path):
        data = self.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))


def look(browser, path):
    """All complaints about a page, at every size, light and dark and on paper."""
    wrong = []
    for size, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            browser.show(path, width, height, scheme)
            seen = browser.evaluate(LOOK)
            wrong += [f"{size}, {scheme}: {text}" for text in
                      seen["wrong"] + browser.complaints()]
    browser.show(path, 700, 900, "dark", "print")
    wrong += ["paper: " + text for text in browser.evaluate(LOOK)["wrong"]]
    if browser.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)":
        wrong.append("paper: not white")
    if browser.evaluate("!!window.ran"):
        wrong.append("a script ran")
    return wrong


def keyboard(browser, path):
    """The Tab key must reach every control, in order, and each must show the focus."""
    wrong = []
    browser.show(path)
    count = browser.evaluate(FOCUS)["count"]
    for place in range(count):
        browser.key("Tab", 9)
        focus = browser.evaluate(FOCUS)
        if focus["at"] != place:
            wrong.append(f"Tab number {place + 1} goes to {focus['at']}")
            break
        if not focus["seen"]:
            wrong.append(f"the focus is not seen at {place}")
    if count < 12:
        wrong.append(f"only {count} places to go to")
    browser.show(path)
    browser.evaluate("document.querySelector('summary')?.focus()")
    browser.key("Enter", 13, "\r")
    if not browser.evaluate("document.querySelector('details')?.open ?? true"):
        wrong.append("Enter does not open a table")
    browser.show(path)
    browser.key("Tab", 9)
    browser.key("Enter", 13, "\r")
    if browser.evaluate("location.hash") != "#summary":
        wrong.append("the first link does not skip to the summary")
    return wrong


def policy(browser, path):
    browser.show(path)
    found = browser.evaluate(POLICY)
    wrong = ["a script ran"] if found["ran"] else []
    for directive in ("script-src-elem", "img-src", "connect-src"):
        if directive not in found["blocked"]:
            wrong.append(f"the policy allows {directive}")
    requests = [text for text in browser.complaints() if text.startswith("request")]
    # The browser reports blocked requests, too, but does not send them.
    stopped = sum(event.get("method") == "Network.loadingFailed" and
                  event["params"].get("blockedReason") == "csp" for event in browser.events)
    return wrong + (requests if len(requests) > stopped else [])


def paper(browser, path, out):
    browser.show(path, scheme="dark")
    data = base64.b64decode(browser.ask("Page.printToPDF", printBackground=True,
                                        preferCSSPageSize=True)["data"])
    with open(out, "wb") as file:
        file.write(data)
    pages = len(re.findall(rb"/Type\s*/Page\b", data))
    return [] if data.startswith(b"%PDF-") and 1 <= pages <= 60 else [f"{pages} pages"]


def pictures(browser, path, directory):
    wrong = []
    for size, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            browser.show(path, width, height, scheme)
            name = f"{directory}/{size}-{scheme}.png"
            browser.screenshot(name)
            with open(name, "rb") as file:
                head = file.read(24)
            if int.from_bytes(head[16:20], "big") != width or os.path.getsize(name) < 20000:
                wrong.append(f"{name} is no picture of the page")
    return wrong


def seal(page):
    """Update the digest of the style in the policy."""
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return re.sub(r"sha256-[^']*", "sha256-" + digest, page, count=1)


# Ways to break a page: a text, its replacement, and a word that the complaint must contain.
BREAKS = [
    ("pale words", "--faint:#57606a", "--faint:#a0a8b0", "contrast"),
    ("pale words in the dark", "--faint:#9aa4af", "--faint:#4a525a", "contrast"),
    ("pale lines", "--s0:#0550ae", "--s0:#c0d8f8", "contrast of a drawing"),
    ("small letters", "font:11.5px", "font:7px", "letters of"),
    ("a table too wide for a phone", ".scroll{overflow-x:auto", ".scroll{overflow-x:visible",
     "overflow"),
    ("words that are broken", "table{overflow-wrap:break-word", "table{overflow-wrap:anywhere",
     "broken word"),
    ("a table that keys cannot scroll", "<div class=scroll tabindex=0", "<div class=scroll",
     "keys cannot scroll"),
    ("a drawing without a name", 'role=img aria-label="Bandwidth', 'role=img data-x="Bandwidth',
     "without a name"),
    ("a drawing without a table", "<details>", "<details hidden><p></p></details><h3>x</h3><details>",
     "without a table"),
    ("a link to nowhere", "id=verdicts>", "id=verdict>", "link to nowhere"),
    ("dark paper", "@media screen and (prefers", "@media (prefers", "paper: not white"),
    ("a script", "<main>", "<main><script>console.log(1)</script>", "active element"),
    ("a style that the policy does not know", "</style>", " </style>", "console"),
    ("a picture from elsewhere", "<main>", '<main><img alt="" src="http://127.0.0.1:9/x.png">',
     "active element"),
    ("a row that lost a cell", "<td class=text><span class=\"tag", "<span class=\"tag", "with a gap"),
    ("no page at all", "<body>", "<body><!--", "texts only"),
]


class Cases:
    def __init__(self, page):
        self.page = os.path.basename(page)
        self.failed = False

    def tell(self, name, wrong):
        for text in wrong[:10]:
            print("   ", text)
        print(f"[{'  FAILED  ' if wrong else '       OK '}] {self.page}: {name}", flush=True)
        self.failed |= bool(wrong)


def broken_copies(browser, page, directory, cases):
    with open(page, encoding="utf-8") as file:
        good = file.read()
    copy = f"{directory}/broken.html"

    def save(text):
        with open(copy, "w", encoding="utf-8") as file:
            file.write(text)

    for name, old, new, word in BREAKS:
        broken = good.replace(old, new)
        save(broken if old == "</style>" else seal(broken))
        complaints = look(browser, copy)
        cases.tell(f"broken: {name}", [] if old in good and any(word in s for s in complaints) else
                   [f"not seen: {complaints[:3]}"])
    save(re.sub(r"<meta http-equiv=Content-Security-Policy[^>]*>", "", good))
    cases.tell("broken: no policy", [] if len(policy(browser, copy)) >= 4 else ["not seen"])
    save(seal(good.replace(":focus-visible{outline:3px solid var(--link)",
                           ":focus-visible{outline:none")))
    cases.tell("broken: a focus that is not seen",
               [] if any("not seen" in s for s in keyboard(browser, copy)) else ["not seen"])
    save(good.replace('<a href="#matrix">', '<a href="#matrix" tabindex=2>'))
    cases.tell("broken: another order of the keyboard",
               [] if any("goes to" in s for s in keyboard(browser, copy)) else ["not seen"])


def main():
    page, directory = sys.argv[1:3]
    program = shutil.which("chromium")
    if not program:
        print("no chromium")
        return 77
    cases = Cases(page)
    browser = Browser(program, directory)
    try:
        cases.tell("screenshots", pictures(browser, page, directory))
        cases.tell("on paper", paper(browser, page, f"{directory}/page.pdf"))
        cases.tell("what is seen, named and reached", look(browser, page))
        cases.tell("by the keyboard alone", keyboard(browser, page))
        cases.tell("its policy", policy(browser, page))
        if "--broken" in sys.argv:
            broken_copies(browser, page, directory, cases)
    finally:
        browser.end()
    return cases.failed


if __name__ == "__main__":
    sys.exit(main())
