"""The server's page in a headless Chromium, driven over WebDriver (w3.org/TR/webdriver2). Run by the Rust tests of
crates/cli/tests/clients, which start the servers.

usage: page.py OPEN_URL KEYED_URL      KEYED_URL wants the key `right`
"""

import base64
import json
import os
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

OPEN, KEYED = sys.argv[1:3]
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Driver:
    """chromedriver, on a port that it chose."""

    def __init__(self):
        self.process = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for line in self.process.stdout:
            if "started successfully on port" in line:
                self.url = f"http://127.0.0.1:{line.split()[-1].rstrip('.')}"
                return
        raise RuntimeError("chromedriver does not start")

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with DIRECT.open(request, timeout=90) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None


class Page:
    """One browser window."""

    def __init__(self, driver, size="1200,800"):
        options = {
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server",
                     f"--window-size={size}"],
        }
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        self.driver = driver
        self.id = driver.call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})["sessionId"]
        self.call("POST", "/timeouts", {"script": 60_000})

    def call(self, method, path, body=None):
        return self.driver.call(method, f"/session/{self.id}{path}", body)

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def find(self, selector):
        return self.call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.call("POST", f"/element/{self.find(selector)}/click", {})

    def type(self, selector, text):
        self.call("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def run(self, script):
        return self.call("POST", "/execute/sync", {"script": script, "args": []})

    def run_async(self, script):
        return self.call("POST", "/execute/async", {"script": script, "args": []})

    def wait(self, condition, what):
        """Until the script gives something."""
        deadline = time.monotonic() + 60
        while not (value := self.run(f"return {condition}")):
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} does not happen: {self.run('return document.body.innerText')}")
            time.sleep(0.05)
        return value

    def log(self, kind):
        return self.call("POST", "/se/log", {"type": kind})

    def picture(self, name):
        folder = os.environ.get("PICTURES")
        if folder:
            with open(os.path.join(folder, f"{name}.png"), "wb") as file:
                file.write(base64.b64decode(self.call("GET", "/screenshot")))

    def close(self):
        self.driver.call("DELETE", f"/session/{self.id}")


LAST = 'document.querySelector("article.assistant:last-of-type")'
FACTS = f'{LAST}?.querySelector("footer:not([hidden]) .facts")?.textContent'
CONNECTED = 'document.getElementById("model").textContent'


class Chat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.driver = Driver()

    @classmethod
    def tearDownClass(cls):
        cls.driver.process.kill()
        cls.driver.process.wait()
        cls.driver.process.stdout.close()

    def page(self, url, size="1200,800"):
        page = Page(self.driver, size)
        self.addCleanup(page.close)
        page.open(url)
        return page

    def check_clean(self, page, base, allowed=()):
        """Nothing on the console, and nothing asked of anybody else."""
        complaints = [entry["message"] for entry in page.log("browser")]
        complaints = [text for text in complaints if not any(part in text for part in allowed)]
        self.assertEqual(complaints, [])
        events = [json.loads(entry["message"])["message"] for entry in page.log("performance")]
        urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        self.assertTrue(any(url.endswith("/app.js") for url in urls), urls)
        foreign = [url for url in urls if not url.startswith((base + "/", "data:", "chrome:", "about:"))]
        self.assertEqual(foreign, [])

    def test_says_stops_says_again_and_forgets(self):
        page = self.page(OPEN)
        self.assertEqual(page.wait(CONNECTED, "a model"), "demo")
        # Streamed: the text grows in steps while the answer runs.
        page.type("#text", "And the king said")
        lengths = page.run_async("""
            const done = arguments[0], seen = new Set();
            new MutationObserver(() => {
                const body = document.querySelector("article.assistant .body");
                if (body) seen.add(body.textContent.length);
                if (document.querySelector("article.assistant footer:not([hidden])")) done([...seen]);
            }).observe(document.getElementById("messages"), {childList: true, subtree: true, attributes: true, characterData: true});
            document.getElementById("send").click();
        """)
        self.assertGreater(len(lengths), 3, "the answer came in one piece")
        self.assertIn("a second", page.run(f"return {FACTS}"))
        self.assertEqual(page.run('return document.querySelectorAll("article").length'), 2)
        page.picture("chat")
        # Stopped at its first words.
        page.click("#toggle-settings")
        page.type("#max_tokens", "900")
        page.run('document.getElementById("max_tokens").dispatchEvent(new Event("change", {bubbles: true}))')
        page.picture("settings")
        page.click("#toggle-settings")
        page.type("#text", "And it came to pass")
        stopped = page.run_async("""
            const done = arguments[0];
            const observer = new MutationObserver(() => {
                const body = [...document.querySelectorAll("article.assistant .body")][1];
                if (!body?.textContent) return;
                observer.disconnect();
                document.getElementById("stop").click();
                done(body.textContent);
            });
            observer.observe(document.getElementById("messages"), {childList: true, subtree: true, characterData: true});
            document.getElementById("ask").requestSubmit();
        """)
        self.assertTrue(stopped)
        facts = page.wait(f'[...document.querySelectorAll("article.assistant")][1]?.querySelector("footer:not([hidden]) .facts")?.textContent', "the stop")
        self.assertIn("stopped", facts)
        self.assertTrue(page.run('return document.getElementById("stop").hidden'))
        # Again, with few tokens: the last answer is replaced.
        page.run('document.getElementById("max_tokens").value = "5"')
        page.run('[...document.querySelectorAll("article.assistant")][1].querySelector(".again").click()')
        page.wait(f'{FACTS} && !{FACTS}.includes("stopped") && {FACTS}.includes("cut at the limit")', "the second answer")
        self.assertEqual(page.run('return document.querySelectorAll("article").length'), 4)
        # Reloaded: settings stay, the conversation does not.
        page.call("POST", "/refresh", {})
        page.wait(CONNECTED, "a model after reloading")
        self.assertEqual(page.run('return document.querySelectorAll("article").length'), 0)
        self.assertEqual(page.run('return document.getElementById("max_tokens").value'), "900")
        self.check_clean(page, OPEN)

    def test_enter_sends_and_shift_enter_does_not(self):
        page = self.page(OPEN)
        page.wait(CONNECTED, "a model")
        page.type("#text", "one\ue008\ue007\ue008two")
        self.assertEqual(page.run('return document.getElementById("text").value'), "one\ntwo")
        page.run('document.getElementById("max_tokens").value = "3"')
        page.type("#text", "\ue007")
        page.wait(FACTS, "an answer")
        self.assertEqual(page.run('return document.querySelector("article.user .body").textContent'), "one\ntwo")
        page.click("#new")
        self.assertEqual(page.run('return document.querySelectorAll("article").length'), 0)
        self.check_clean(page, OPEN)

    def test_what_is_written_is_never_markup(self):
        page = self.page(OPEN)
        page.wait(CONNECTED, "a model")
        page.run('document.getElementById("max_tokens").value = "3"')
        page.type("#text", "<img src=x onerror=alert(1)><script>alert(2)</script>\ue007")
        page.wait(FACTS, "an answer")
        self.assertEqual(page.run('return document.querySelectorAll("#messages img, #messages script").length'), 0)
        self.check_clean(page, OPEN)

    def test_live_figures_come(self):
        page = self.page(OPEN)
        page.wait('document.querySelectorAll("#figures dt, #figures dd").length > 3', "figures")
        page.wait('document.getElementById("kv-text").textContent', "KV blocks")
        page.picture("live")

    def test_asks_for_the_key(self):
        page = self.page(KEYED)
        page.wait('!document.getElementById("notice").hidden', "a notice")
        self.assertIn("API key", page.run('return document.getElementById("notice").textContent'))
        page.type("#key", "right")
        page.run('document.getElementById("key").dispatchEvent(new Event("change", {bubbles: true}))')
        page.wait(CONNECTED, "a model with the key")
        page.run('document.getElementById("max_tokens").value = "3"')
        page.type("#text", "And\ue007")
        page.wait(FACTS, "an answer")
        self.assertEqual(page.run("return JSON.stringify(localStorage).includes('right')"), False)
        # The browser itself writes of every answer that is an error.
        self.check_clean(page, KEYED, allowed=("status of 401",))

    def test_fits_a_phone(self):
        page = self.page(OPEN, "420,800")
        page.wait(CONNECTED, "a model")
        page.picture("phone")
        self.assertTrue(page.run("return document.documentElement.scrollWidth <= window.innerWidth"))
        box = page.run('const r = document.getElementById("text").getBoundingClientRect(); return r.bottom <= window.innerHeight')
        self.assertTrue(box, "the field for messages is out of sight")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
