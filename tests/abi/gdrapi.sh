#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# libgdrapi.so.2 exports the functions of gdrapi.h and those that old programs need, without
# versions and with the types of the original. It needs nothing but libc and has the linker
# options of libwherry.so. gdrapi.sh LIBRARY
set -u
library=$1
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../cases.sh" || exit

same() # NAME FILE FILE
{
	diff -u "$directory/$2" "$directory/$3"
	verdict "$1" $?
}

# The header's macro hides the old gdr_get_info().
{
	"${CC:-cc}" -fpreprocessed -dD -E -P "$TEST_SOURCE/compat/gdrapi/gdrapi.h" |
		grep -v '^#' | grep -o '\bgdr_[a-z0-9_]*(' | tr -d '('
	echo gdr_get_info
} | sort -u >"$directory/header"
grep -o '\bgdr_[a-z0-9_]*;' "$TEST_SOURCE/compat/gdrapi/libgdrapi.map" | tr -d ';' |
	sort >"$directory/map"
nm -D --defined-only "$library" | awk '{ print $3 }' | sort >"$directory/library"
: >"$directory/none"

[ "$(wc -l <"$directory/map")" = 17 ]
verdict "17 functions" $?
same "header and symbol map" header map
same "symbol map and library, without versions" map library

for row in gcc:c:c11 clang:c:c11 g++:c++:c++17 clang++:c++:c++17; do
	IFS=: read -r compiler language standard <<<"$row"
	command -v "$compiler" >/dev/null || continue
	"$compiler" -x "$language" "-std=$standard" \
		-Wall -Wextra -Wshadow -Werror -I"$TEST_SOURCE/compat/gdrapi" \
		"$TEST_SOURCE/tests/abi/gdrapi-types.c" -x none "$library" -o "$directory/types" &&
		LD_LIBRARY_PATH=${library%/*} "$directory/types"
	verdict "types of the 17 functions and of what they take, $compiler $standard" $?
done

readelf -d "$library" >"$directory/dynamic"
grep -F '(NEEDED)' "$directory/dynamic" | grep -v -E 'libc\.so|libpthread\.so|ld-linux' \
	>"$directory/needed"
same "needs nothing but libc" none needed
grep -q -E 'SONAME.*\[libgdrapi\.so\.2\]' "$directory/dynamic"
verdict "soname libgdrapi.so.2" $?
grep -q -E 'BIND_NOW|FLAGS.*NOW' "$directory/dynamic"
verdict "bound when loaded (-z now)" $?
grep -q NODELETE "$directory/dynamic"
verdict "can be unloaded" $((!$?))
# Handles are good without the gdr_t that they were made with, and a gdr_t that is none is refused:
# so both are the process's.
writable "$library" >"$directory/globals"
printf '%s\n' all chunk_count chunks free_pins settings start_once table_lock >"$directory/allowed"
same "no globals that change, but the tables of both and the environment's settings" allowed \
	globals
[ "$(awk '/\(INIT_ARRAYSZ\)/ { print $3 }' "$directory/dynamic")" -le 8 ]
verdict "no constructors" $?
exit $failed
