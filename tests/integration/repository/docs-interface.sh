#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the documents say of the interface: every wh_... name in README.md and docs/ is one of the
# public headers. Pages for those who change Wherry may also name what is in src/ or in the example
# of a transport. "wh_..." with nothing behind it stands for all names. And where "<!-- file: PATH
# -->" stands before a block of code, that is the file's text without its licence line; README.md
# shows examples/hello.c without such a line.
# shellcheck disable=SC2016 # Markdown has back quotes
set -u
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
cat >interface.py <<'END'
import glob, os, re, sys

root = sys.argv[1]
developers = {"adding-a-transport.md", "architecture.md", "gpu-kernels.md", "memory.md"}

def read(path):
    with open(path, encoding="utf-8") as text:
        return text.read()

def names(*folders):
    found = set()
    for folder in folders:
        for path in glob.glob(f"{root}/{folder}/**/*.[ch]", recursive=True):
            found.update(re.findall(r"\bwh_\w+", read(path)))
    return found

public = names("include/wherry")
internal = names("src", "tests/example-transport")
block = r"^<!-- file: (\S+) -->\n```c\n(.*?)^```$"
wrong = []
pages = sorted(glob.glob(f"{root}/docs/*.md")) + [f"{root}/README.md"]
for page in pages:
    where = os.path.relpath(page, root)
    text = read(page)
    known = public | internal if os.path.basename(page) in developers else public
    for name in sorted(set(re.findall(r"\bwh_\w+", text)) - known):
        inside = " but in src" if name in internal else ""
        wrong.append(f"{where}: {name} is not in include/wherry{inside}")
    for path, code in re.findall(block, text, flags=re.M | re.S):
        if code != read(f"{root}/{path}").partition("\n")[2]:
            wrong.append(f"{where}: the code is not that of {path}")
if read(f"{root}/examples/hello.c").partition("\n")[2] not in read(f"{root}/README.md"):
    wrong.append("README.md: the first program is not examples/hello.c")
if not public:
    wrong.append("include/wherry has no names")
print("\n".join(wrong))
sys.exit(bool(wrong))
END
python3 interface.py "$TEST_SOURCE"
verdict "the documents name what there is" $?
for page in README.md docs/moving.md; do
	grep -q 'wh_engine_open(NULL, &engine)' "$TEST_SOURCE/$page"
	verdict "$page has the first program" $?
done

# The test itself: each mistake is found.
mkdir -p tree/docs tree/src tree/include/wherry tree/examples
printf '/* licence */\nint wh_call(void);\n' >tree/examples/hello.c
printf 'int wh_call(void);\n' >tree/include/wherry/wherry.h
printf 'void wh_inside(void);\n' >tree/src/inside.c
printf '```c\nint wh_call(void);\n```\n' >tree/README.md
printf '<!-- file: examples/hello.c -->\n```c\nint wh_call(void);\n```\n`wh_...`\n' \
	>tree/docs/page.md
printf 'wh_inside() and wh_call()\n' >tree/docs/architecture.md
python3 interface.py tree
verdict "right ones pass" $?
mistake() # WHAT COMMAND
{
	cp -r tree broken
	(cd broken && eval "$2")
	! python3 interface.py broken >out
	verdict "$1 is found" $?
	rm -r broken
}
mistake "a name that is gone" "echo 'wh_gone()' >>docs/page.md"
mistake "... in README.md" "echo 'wh_gone()' >>README.md"
mistake "... for developers" "echo 'wh_gone()' >>docs/architecture.md"
mistake "a name of the insides, for users" "echo 'wh_inside()' >>docs/page.md"
mistake "code that has changed" "echo '/* more */' >>examples/hello.c"
mistake "... in README.md alone" "sed -i s/int/long/ README.md"
exit $failed
