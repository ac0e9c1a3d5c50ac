#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the tree with the layers of layers.txt.

layers.py includes TREE     no file includes a header of a layer above its own
layers.py names TREE        no file of src/core names a transport
"""
import collections
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|("(?:\\.|[^"\\\n])*")', re.DOTALL)
# The folders that -I names, in the order in which the compiler looks for "HEADER" after the file's own.
SEARCHED = ("src", ".", "include", "tools", "compat/gdrapi", "compat/mooncake")
TRANSPORT = re.compile(r'"(?:cuda|shm|rdma|tcp)"|(?<![A-Za-z])(?:rdma|shm|tcp)(?![A-Za-z])'
                       r"|\bWH_TRANSPORT_(?:SELF|CUDA)\b|(?<![A-Za-z])transport/\w+/", re.IGNORECASE)


class Layers:
    def __init__(self, path):
        self.height = {}  # layer folder: its line, from the ground up
        self.above = {}  # folder that uses the library: folders that it may include
        self.generated = set()
        for line in lines(path):
            word, _, rest = line.partition(" ")
            if word == "layer":
                self.height.update(dict.fromkeys(rest.split(), len(self.height)))
            elif word == "above":
                folder, _, allowed = rest.partition(":")
                self.above[folder] = allowed.split()
            elif word == "generated":
                self.generated.update(rest.split())
            else:
                sys.exit(f"{path}: what is '{word}'?")

    def folder(self, file):
        """The folder of the list that a file belongs to: the longest one. None: it is in no layer."""
        for parent in file.parents:
            if str(parent) in self.height or str(parent) in self.above:
                return str(parent)
        return None

    def allows(self, here, there):
        if here == there:
            return True
        if here in self.above:
            return there in self.above[here]
        return there in self.height and self.height[there] < self.height[here]


def lines(path):
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def sources(tree, folders):
    for folder in folders:
        for path in sorted((tree / folder).rglob("*.[ch]")):
            yield path.relative_to(tree), path.read_text(errors="replace")


def find_header(tree, file, name):
    for folder in (file.parent, *map(pathlib.Path, SEARCHED)):
        if (tree / folder / name).is_file():
            return pathlib.Path(*normal((folder / name).parts))
    return None


def normal(parts):
    kept = []
    for part in parts:
        if part == "..":
            kept.pop()
        elif part != ".":
            kept.append(part)
    return kept


def find_includes(tree, layers):
    """{"FILE FOLDER": ...} of the includes that the layers forbid."""
    found = collections.defaultdict(list)
    for file, text in sources(tree, ("src", "compat", "tools", "examples")):
        here = layers.folder(file)
        for name in INCLUDE.findall(text):
            header = find_header(tree, file, name)
            if header is None:
                if f'"{name}"' in text and name not in layers.generated:
                    found[f"{file} {name}"].append("no such header")
                continue
            there = layers.folder(header)
            if header.parts[0] != "include" and not layers.allows(here, there):
                found[f"{file} {there}"].append(f"includes {header}")
    return found


def find_names(tree, _layers):
    """{"FILE LINES": ...} of the lines in src/core that name a transport, outside of comments."""
    found = {}
    for file, text in sources(tree, ("src/core",)):
        # The text of a message is no name, but a string that is one word may be.
        text = COMMENT.sub(lambda m: m[1] if m[1] and re.fullmatch(r'"[\w/.]+"', m[1]) else
                           '""' if m[1] else "\n" * m[0].count("\n"), text)
        hits = [(number, line) for number, line in enumerate(text.split("\n"), 1) if TRANSPORT.search(line)]
        if hits:
            found[f"{file} {len(hits)}"] = [f"line {number}: {line.strip()}" for number, line in hits]
    return found


def main(what, tree):
    find = {"includes": find_includes, "names": find_names}[what]
    found = find(tree, Layers(tree / "tests/layers/layers.txt"))
    for key in sorted(found):
        print(f"{key}: not allowed by tests/layers/layers.txt")
        for reason in found[key]:
            print(f"\t{reason}")
    return 1 if found else 0


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("includes", "names"):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], pathlib.Path(sys.argv[2])))
