#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Links and paths in the documents: every relative link leads to a file, every anchor to a heading,
# and every path of the tree between back quotes exists. CHANGELOG.md is left out: it names files of
# former versions.
# shellcheck disable=SC2016 # Markdown has back quotes
set -u
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
cat >links.py <<'END'
import glob, os, re, sys

root = sys.argv[1]
folders = {name for name in os.listdir(root) if os.path.isdir(os.path.join(root, name)) and name[0] != "."}
folders = {name for name in folders if not name.startswith("build")}
wrong = []

def prose(page):
    """The page without its blocks of code."""
    with open(page) as text:
        return re.sub(r"^```.*?^```$", "", text.read(), flags=re.M | re.S)

def anchors(page):
    """What may stand behind "#": as GitHub makes it of headings, and what the page names itself."""
    text = prose(page)
    found = set(re.findall(r'<a id="([^"]+)"', text))
    for heading in re.findall(r"^#+ (.*)$", text, flags=re.M):
        heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        found.add(re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-"))
    return found

pages = glob.glob(f"{root}/*.md") + glob.glob(f"{root}/docs/*.md") + glob.glob(f"{root}/*/README.md")
for page in sorted(pages):
    name = os.path.relpath(page, root)
    if name == "CHANGELOG.md":
        continue
    text = prose(page)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if not os.path.exists(target):
            wrong.append(f"{name}: the link {link} leads nowhere")
        elif anchor and target.endswith(".md") and anchor not in anchors(target):
            wrong.append(f"{name}: {link}: no such heading")
    for quoted in re.findall(r"`([^`\n]+)`", text):
        path = quoted.split()[0] if quoted.split() else ""
        if path.partition("/")[0] not in folders or not re.fullmatch(r"[\w./*?{},+-]+/[\w./*?{},+-]*", path):
            continue
        if re.search(r"[A-Z]{4}", path.replace("README", "")): # DIRECTORY/NAME: to be filled in by the reader
            continue
        several = re.fullmatch(r"(.*)\{(.*)\}(.*)", path)
        for each in [several[1] + part + several[3] for part in several[2].split(",")] if several else [path]:
            # A program is named as it is built, without ".c".
            if not glob.glob(os.path.join(root, each)) and not os.path.exists(os.path.join(root, each + ".c")):
                wrong.append(f"{name}: there is no {each}")
print("\n".join(wrong))
sys.exit(bool(wrong))
END
python3 links.py "$TEST_SOURCE"
verdict "every link and path leads to a file" $?

# The test itself: each mistake is found.
mkdir -p tree/docs tree/src
printf '# One\n[a](docs/there.md) [b](docs/there.md#a-heading) `src/`\n' >tree/README.md
printf '# There\n## A heading\n[up](../README.md#one)\n' >tree/docs/there.md
python3 links.py tree
verdict "right ones pass" $?
for mistake in '[a](docs/gone.md)' '[a](docs/there.md#gone)' '`src/gone.c`' '`src/gone*`'; do
	cp -r tree broken
	echo "$mistake" >>broken/README.md
	! python3 links.py broken >out
	verdict "$mistake is found" $?
	rm -r broken
done
exit $failed
