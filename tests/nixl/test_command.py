# SPDX-License-Identifier: Apache-2.0
"""The command with NIXL's wheel: its agents find what `wherry nixl` installs, under the name UCX it
and NIXL's own UCX tell each other apart, and `wherry top` counts the bytes of each route.

TESTS_NIXL_COMMAND is the command. The wheel is not changed: the test installs into a copy.
"""

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from agent import Failed, Side

MIB = 1 << 20


def command(*arguments):
    """What the command prints; it must succeed."""
    root = [] if os.geteuid() or arguments[0] == "status" else ["--allow-root"]
    done = subprocess.run(
        [os.environ["TESTS_NIXL_COMMAND"], "nixl", *arguments, *root],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise AssertionError(f"wherry nixl {arguments}: {done.returncode}: {done.stderr}")
    return done.stdout


def wheel():
    """The folder of packages that has NIXL."""
    for place in sys.path:
        if glob.glob(os.path.join(place, ".nixl_cu1[23].mesonpy.libs")):
            return place
    raise AssertionError("no NIXL")


@unittest.skipUnless(os.path.exists(os.environ["TESTS_NIXL_COMMAND"]), "no command is built")
class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def start(self, name, backend, plugins):
        side = Side(self.folder.name, name, backend=backend, NIXL_PLUGIN_DIR=plugins)
        self.addCleanup(side.end)
        return side

    def moves(self, one, other):
        """Both read the other's bytes."""
        for here, there, name in ((one, other, "bob"), (other, one, "alice")):
            data = os.urandom(MIB)
            source = there.register("source", MIB, data)
            target = here.register("target", MIB)
            here.load(there.metadata())
            here.move("read", name, [(target, MIB)], [(source, MIB)])
            self.assertEqual(here.read("target"), data)


class Install(Case):
    def copy(self):
        """A virtual environment with the wheel's files. Returns its folder and that of packages."""
        prefix = os.path.join(self.folder.name, "venv")
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        site = os.path.join(prefix, "lib", version, "site-packages")
        os.makedirs(site)
        with open(os.path.join(prefix, "pyvenv.cfg"), "w", encoding="utf-8") as config:
            config.write("home = /nowhere\n")
        for pattern in (".nixl_cu1*", "nixl_cu1*"):
            for path in glob.glob(os.path.join(wheel(), pattern)):
                shutil.copytree(path, os.path.join(site, os.path.basename(path)))
        return prefix, site

    def test_an_agent_finds_the_plug_in_until_it_is_removed(self):
        prefix, site = self.copy()
        (plugins,) = glob.glob(os.path.join(site, ".nixl_cu1*", "plugins"))
        before = sorted(os.listdir(plugins))
        self.assertIn("installed", command("install", "--python", prefix))
        self.assertIn(": installed", command("status", "--python", prefix))
        path, own = os.environ["PYTHONPATH"], os.environ.pop("NIXL_PLUGIN_DIR", None)
        os.environ["PYTHONPATH"] = site + os.pathsep + path
        sys.path.insert(0, site)  # spawned processes get it
        try:
            alice = Side(self.folder.name, "alice")
            bob = Side(self.folder.name, "bob")
            self.assertIn("WHERRY", alice.plugins())
            self.assertIn("UCX", alice.plugins())
            self.moves(alice, bob)
            alice.end()
            bob.end()
            self.assertIn("removed", command("remove", "--python", prefix))
            self.assertEqual(sorted(os.listdir(plugins)), before)
            with self.assertRaises(Failed):
                Side(self.folder.name, "carol")
        finally:
            sys.path.remove(site)
            os.environ["PYTHONPATH"] = path
            if own is not None:
                os.environ["NIXL_PLUGIN_DIR"] = own


class AsUcx(Case):
    def setUp(self):
        super().setUp()
        self.ours = os.path.join(self.folder.name, "as-ucx")
        command("install", "--as-ucx", "--directory", self.ours)
        self.theirs = os.environ["NIXL_UCX_DIR"]

    def test_moves_bytes_under_the_name_ucx(self):
        alice = self.start("alice", "UCX", self.ours)
        self.assertEqual(alice.plugins(), ["UCX"])
        self.moves(alice, self.start("bob", "UCX", self.ours))

    def test_ucx_itself_and_the_plug_in_refuse_each_other(self):
        ours = self.start("ours", "UCX", self.ours)
        theirs = self.start("theirs", "UCX", self.theirs)
        for side in (ours, theirs):
            side.register("m", MIB)
        with self.assertRaisesRegex(Failed, "Mismatch"):
            ours.load(theirs.metadata())
        self.assertIn("agent theirs does not use Wherry", ours.said())
        with self.assertRaisesRegex(Failed, "Backend"):
            theirs.load(ours.metadata())
        self.assertIn("error loading connection info for backend 'UCX'", theirs.said())
        # Neither is hurt by it.
        again, ucx = self.start("again", "UCX", self.ours), self.start("ucx", "UCX", self.theirs)
        for one, other, name in ((ours, again, "again"), (theirs, ucx, "ucx")):
            data = os.urandom(4096)
            remote, local = other.register("n", 4096, data), one.register("n", 4096)
            one.load(other.metadata())
            one.move("read", name, [(local, 4096)], [(remote, 4096)])
            self.assertEqual(one.read("n"), data)


class Observed(Case):
    def routes(self, folder, agent, peer):
        """Bytes read by the agent from the peer, by transport, as `wherry top` shows them."""
        done = subprocess.run(
            [os.environ["TESTS_NIXL_COMMAND"], "top", "--once", "--json", "--observe", folder],
            capture_output=True,
            text=True,
            check=True,
        )
        (engine,) = [one for one in json.loads(done.stdout)["engines"] if one["name"] == agent]
        (other,) = [one for one in engine["peers"] if one["name"] == peer]
        return {one["transport"]: one["read_bytes"] for one in other["routes"]}

    def test_each_transfers_route_is_counted(self):
        for require, expected in (("", "shm"), ("tcp", "tcp")):
            with tempfile.TemporaryDirectory() as folder:
                environment = {"WHERRY_OBSERVE": folder, "WHERRY_REQUIRE": require}
                alice, bob = (
                    Side(self.folder.name, name, **environment) for name in ("alice", "bob")
                )
                for side in (alice, bob):
                    self.addCleanup(side.end)
                self.moves(alice, bob)
                self.assertEqual(self.routes(folder, "bob", "alice"), {expected: MIB})
                self.assertEqual(self.routes(folder, "alice", "bob"), {expected: MIB})
                alice.end()
                bob.end()


if __name__ == "__main__":
    unittest.main()
