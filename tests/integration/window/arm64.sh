#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compile copy.c for 64-bit Arm and run it: with the machine's compiler on Arm, elsewhere with a
# cross compiler and QEMU. Exits 77 without those.
set -eu
top=$TEST_SOURCE
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
if [ "$(uname -m)" = aarch64 ]; then
	compiler=cc runner=
else
	compiler=aarch64-linux-gnu-gcc runner=qemu-aarch64
fi
for tool in $compiler $runner; do
	if ! command -v "$tool" >/dev/null; then
		echo "no $tool"
		exit 77
	fi
done
# Static, so that QEMU needs no Arm libraries.
"$compiler" -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Wshadow -Werror -static -I"$top/src" \
	-o "$out/copy" "$top/tests/integration/window/copy.c" "$top"/src/window/copy.c \
	"$top"/src/window/copy-*.c \
	-pthread
$runner "$out/copy"
