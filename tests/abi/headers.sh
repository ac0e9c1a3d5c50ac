#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every public header compiles alone, twice in one file, as C11 and as C++17, with each compiler
# that is here.
set -u
include=$TEST_SOURCE/include
failed=0
ran=0

compiles() # NAME LANGUAGE STANDARD COMPILER HEADER
{
	local line='#include <%s>\n#include <%s>\nint main(void) { return 0; }\n' output

	# shellcheck disable=SC2059 # the format is ours
	if output=$(printf "$line" "$5" "$5" | "$4" -x "$2" "-std=$3" -Wall -Wextra \
		-Wpedantic -Werror -fsyntax-only "-I$include" "-I$TEST_SOURCE/compat/gdrapi" \
		"-I$TEST_SOURCE/compat/mooncake" - 2>&1); then
		echo "[       OK ] $1"
	else
		printf '%s\n' "$output"
		echo "[  FAILED  ] $1"
		failed=$((failed + 1))
	fi
	ran=$((ran + 1))
}

cd "$include" || exit 1
for header in wherry/*.h gdrapi.h transfer_engine_c.h; do
	for row in gcc:c:c11 clang:c:c11 g++:c++:c++17 clang++:c++:c++17; do
		IFS=: read -r compiler language standard <<<"$row"
		if command -v "$compiler" >/dev/null; then
			compiles "$header $compiler $standard" "$language" "$standard" "$compiler" \
				"$header"
		fi
	done
done
if [ "$ran" = 0 ]; then
	echo "no compiler found"
	exit 77
fi
exit $((failed > 0))
