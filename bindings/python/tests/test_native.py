# SPDX-License-Identifier: Apache-2.0
"""The declarations of wherry._native are those of include/wherry/*.h."""
import glob
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from wherry import _native as native

ROOT = os.environ.get("TEST_SOURCE") or os.path.join(os.path.dirname(__file__), "../../..")
PACKAGE = os.path.dirname(native.__file__)


def run_c(lines):
    """The lines that a C program prints with these statements."""
    body = "\n\t".join(lines)
    text = (
        "#include <stddef.h>\n#include <stdio.h>\n#include <wherry/wherry.h>\n"
        f"int main(void)\n{{\n\t{body}\n\treturn 0;\n}}\n"
    )
    with tempfile.TemporaryDirectory() as directory:
        source, program = os.path.join(directory, "a.c"), os.path.join(directory, "a")
        with open(source, "w", encoding="utf-8") as out:
            out.write(text)
        include = os.path.join(ROOT, "include")
        subprocess.run(["cc", "-I", include, source, "-o", program], check=True)
        return subprocess.run([program], check=True, stdout=subprocess.PIPE).stdout.decode().split()


@unittest.skipUnless(shutil.which("cc"), "no C compiler")
class Headers(unittest.TestCase):
    def test_structs(self):
        names, lines, ours = [], [], []
        for name, struct in native.STRUCTS.items():
            names.append(name)
            ours.append(native.ctypes.sizeof(struct))
            lines.append(f'printf("%zu\\n", sizeof(struct {name}));')
            for field, *_ in struct._fields_:
                names.append(f"{name}.{field}")
                about = getattr(struct, field)
                ours.append((about.offset, about.size))
                lines.append(
                    f'printf("%zu:%zu\\n", offsetof(struct {name}, {field}), '
                    f"sizeof(((struct {name} *)0)->{field}));"
                )
        for name, mine, theirs in zip(names, ours, run_c(lines)):
            if isinstance(mine, tuple):
                mine = "{}:{}".format(*mine)
            self.assertEqual(str(mine), theirs, name)

    def test_constants(self):
        lines = [f'printf("%lld\\n", (long long)({name}));' for name in native.CONSTANTS]
        self.assertEqual([str(value) for value in native.CONSTANTS.values()], run_c(lines))

    def test_functions(self):
        """Each has as many arguments as in the headers."""
        text = ""
        for path in glob.glob(os.path.join(ROOT, "include/wherry/*.h")):
            with open(path, encoding="utf-8") as header:
                text += re.sub(r"/\*.*?\*/", "", header.read(), flags=re.DOTALL)
        for name, (_, arguments) in native.FUNCTIONS.items():
            found = re.search(rf"\b{name}\(([^;]*)\);", text)
            self.assertIsNotNone(found, name)
            listed = [] if found[1] == "void" else found[1].split(",")
            self.assertEqual(len(arguments), len(listed), name)

    def test_all_that_are_called_are_declared(self):
        for path in glob.glob(os.path.join(PACKAGE, "*.py")):
            with open(path, encoding="utf-8") as source:
                for name in re.findall(r"\blib\.(wh_\w+)", source.read()):
                    self.assertIn(name, native.FUNCTIONS)


if __name__ == "__main__":
    unittest.main()
