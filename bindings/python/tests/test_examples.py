# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/python, and the blocks of code of docs/python.md and python-bench.md."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import wherry

ROOT = os.environ.get("TEST_SOURCE") or os.path.join(os.path.dirname(__file__), "../../..")
EXAMPLES = os.path.join(ROOT, "examples", "python")
# The command of this build, for those who start one.
PATH = os.pathsep.join(
    [os.path.dirname(os.environ.get("TEST_COMMAND", "")), os.environ.get("PATH", "")]
).lstrip(os.pathsep)
ENVIRONMENT = {
    **os.environ,
    "PATH": PATH,
    "PYTHONPATH": os.path.dirname(os.path.dirname(wherry.__file__)),
}


def command(name, *arguments):
    return [sys.executable, os.path.join(EXAMPLES, name), *arguments]


def output(*arguments, cwd=None):
    return subprocess.run(
        arguments, env=ENVIRONMENT, stdout=subprocess.PIPE, timeout=120, check=True, cwd=cwd
    ).stdout.decode()


class Examples(unittest.TestCase):
    def pair(self, name, first, second):
        """The first process prints its URL, which the second one gets. What both print then."""
        with subprocess.Popen(
            command(name, first), env=ENVIRONMENT, stdout=subprocess.PIPE
        ) as process:
            try:
                url = process.stdout.readline().decode().strip()
                said = output(*command(name, second, url))
                rest = process.communicate(timeout=120)[0].decode()
            finally:
                process.kill()
            self.assertEqual(process.returncode, 0)
            return said, rest

    def test_two_processes(self):
        said, rest = self.pair("two_processes.py", "receive", "send")
        self.assertIn("8388608 bytes", said)
        self.assertEqual(rest, "from sender: 8 MiB for you\n")

    def test_asyncio_server(self):
        self.assertEqual(self.pair("asyncio_server.py", "serve", "ask")[0], "256 answers\n")

    def test_paged_kv(self):
        self.assertIn("5 times 800 pages", output(*command("paged_kv.py")))

    def test_weights(self):
        said = output(*command("weights_to_receivers.py"))
        self.assertEqual(said.count("GB/s by "), 12)
        self.assertIn("12 times 33554432 bytes", said)


class Pages(unittest.TestCase):
    """The blocks of code of a page, run in order in a folder of their own."""

    def check_page(self, name):
        with open(os.path.join(ROOT, "docs", name), encoding="utf-8") as page:
            text = page.read()
        found = re.findall(r"^```(python|text)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        program = "".join(code for kind, code in found if kind == "python")
        self.assertGreater(program.count("\n"), 20)
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "page.py"), "w", encoding="utf-8") as script:
                script.write(program)
            printed = output(sys.executable, script.name, cwd=folder).splitlines()
        # "..." stands for anything.
        wanted = "".join(code for kind, code in found if kind == "text").splitlines()
        self.assertEqual(len(printed), len(wanted), "\n".join(printed))
        for line, want in zip(printed, wanted):
            self.assertRegex(line, "^" + ".*".join(map(re.escape, want.split("..."))) + "$")

    def test_tutorial(self):
        self.check_page("python.md")

    @unittest.skipUnless(shutil.which("wherry", path=PATH), "the command wherry is not in PATH")
    def test_figures(self):
        self.check_page("python-bench.md")


if __name__ == "__main__":
    unittest.main()
