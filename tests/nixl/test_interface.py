# SPDX-License-Identifier: Apache-2.0
"""The plug-in's table of virtual functions beside that of the wheel's own plug-ins, as the files have
them: the order is the interface, and nothing else checks it.

The names of compat/nixl/generation-1.h are ours. FUNCTIONS says which is which of NIXL's.
"""

import glob
import os
import re
import subprocess
import sys
import unittest

# NIXL's name: that of generation-1.h, in NIXL's order.
FUNCTIONS = {
    "supportsRemote": "supports_remote",
    "supportsLocal": "supports_local",
    "supportsNotif": "supports_notifications",
    "getSupportedMems": "memories",
    "registerMem": "register_memory",
    "deregisterMem": "unregister_memory",
    "connect": "connect",
    "disconnect": "disconnect",
    "unloadMD": "unload",
    "prepXfer": "prepare",
    "postXfer": "post",
    "checkXfer": "check",
    "releaseReqH": "release",
    "prepMemView": "prepare_view",
    "releaseMemView": "release_view",
    "getPublicData": "public_metadata",
    "getConnInfo": "connection_info",
    "loadRemoteConnInfo": "load_connection_info",
    "loadRemoteMD": "load_remote",
    "loadLocalMD": "load_local",
    "getNotifs": "notifications",
    "genNotif": "notify",
    "queryMem": "query",
    "estimateXferCost": "estimate",
}


def tool(*command, **rest):
    return subprocess.run(command, check=True, capture_output=True, text=True, **rest).stdout


def plain(symbols):
    """The functions' names alone, without classes and arguments."""
    lines = tool("c++filt", input="\n".join(symbols)).splitlines()
    lines = [line.replace("(anonymous namespace)::", "") for line in lines]
    return {re.sub(r"\(.*", "", line).split("::")[-1] for line in lines}


def table(library, name):
    """The functions of the class's table in the file, without those of the object itself. Each is a
    set of names: the compiler makes one function of those that do the same."""
    symbols, begin, end = {}, 0, 0
    for line in tool("readelf", "-Ws", library).splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdigit():
            continue
        address, symbol = int(fields[1], 16), fields[7].split("@")[0]
        if address:
            symbols.setdefault(address, set()).add(symbol)
        if symbol == name:
            begin, end = address, address + int(fields[2], 0)
    found = []
    for line in tool("readelf", "-Wr", library).splitlines():
        match = re.match(r"([0-9a-f]+)\s+[0-9a-f]+\s+(\S+)\s+(.*)", line)
        if not match or not begin <= int(match[1], 16) < end:
            continue
        rest = match[3].split()
        relative = match[2].endswith("_RELATIVE") or match[2].endswith("_RELATIV")
        if relative:
            found.append((int(match[1], 16), symbols.get(int(rest[0], 16), {"?"})))
        else:
            found.append((int(match[1], 16), {rest[1].split("@")[0]}))
    names = [plain(one) for _, one in sorted(found, key=lambda entry: entry[0])]
    return [
        one for one in names if not any(name.startswith(("typeinfo", "~")) for name in one)
    ]


class Table(unittest.TestCase):
    def test_has_the_wheels_order(self):
        (ucx,) = [
            path
            for place in sys.path
            for path in glob.glob(os.path.join(place, ".nixl_cu*/plugins/libplugin_UCX.so"))
        ]
        theirs = table(ucx, "_ZTV13nixlUcxEngine")
        ours = table(os.environ["TESTS_NIXL_PLUGIN"], "_ZTVN12_GLOBAL__N_16WherryE")
        self.assertEqual(len(ours), len(FUNCTIONS) + 1)  # one has two forms
        # UCX's class has functions of its own behind those of the interface.
        for place, (mine, other) in enumerate(zip(ours, theirs)):
            expected = {FUNCTIONS.get(one, one) for one in other}
            self.assertTrue(mine & expected, f"function {place} is {mine}, not {expected}")


if __name__ == "__main__":
    unittest.main()
