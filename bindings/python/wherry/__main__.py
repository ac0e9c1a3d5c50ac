# SPDX-License-Identifier: Apache-2.0
"""python -m wherry: the wherry command, the package's own or the one in PATH."""
import os
import shutil
import sys


def main() -> int:
    inside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "wherry")
    command = inside if os.path.exists(inside) else shutil.which("wherry")
    # The package's script of that name would come back here.
    if command is None or os.path.realpath(command) == os.path.realpath(sys.argv[0]):
        print(
            "wherry: this package was built without the command, because a library that it needs "
            "was missing; the wheels have it (pip install --only-binary :all: wherry)",
            file=sys.stderr,
        )
        return 69
    os.execv(command, ["wherry", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
