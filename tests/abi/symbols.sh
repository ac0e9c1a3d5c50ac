#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the headers declare, what the symbol map lists and what the library exports are the same; the
# library needs nothing but libc and has its linker options (-z now, relro; no constructors).
set -u
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../cases.sh" || exit

same() # NAME FILE FILE
{
	diff -u "$directory/$2" "$directory/$3"
	verdict "$1" $?
}

# Declarations without the comments, which name functions too.
for header in "$TEST_SOURCE"/include/wherry/*.h; do
	"${CC:-cc}" -fpreprocessed -dD -E -P "$header"
done | grep -o '\bwh_[a-z0-9_]*(' | tr -d '(' | sort -u >"$directory/headers"
"${CC:-cc}" -fpreprocessed -E -P -x c "$TEST_SOURCE/src/libwherry.map" |
	grep -o '\bwh_[a-z0-9_]*;' | tr -d ';' | sort >"$directory/map"
nm -D --defined-only "$TEST_LIBRARY" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' |
	sort >"$directory/library"
nm -D --defined-only "$TEST_LIBRARY" | awk '$2 != "A" && $3 !~ /@@WHERRY_0\.[0-9]+$/' \
	>"$directory/unversioned"
: >"$directory/none"

[ -s "$directory/headers" ]
verdict "the headers declare functions" $?
same "headers and symbol map" headers map
same "symbol map and library" map library
same "every symbol has its version" none unversioned

readelf -d "$TEST_LIBRARY" >"$directory/dynamic"
grep -F '(NEEDED)' "$directory/dynamic" | grep -v -E 'libc\.so|libpthread\.so|ld-linux' |
	tee "$directory/needed"
same "needs nothing but libc" none needed
grep -q -E 'SONAME.*\[libwherry\.so\.0\]' "$directory/dynamic"
verdict "soname libwherry.so.0" $?
grep -q -E 'BIND_NOW|FLAGS.*NOW' "$directory/dynamic"
verdict "bound when loaded (-z now)" $?
grep -q NODELETE "$directory/dynamic"
verdict "can be unloaded" $((!$?))
writable "$TEST_LIBRARY" >"$directory/globals"
printf 'complete\nlist\nlisted\n' >"$directory/allowed"
same "no globals that change, but the list of transports" allowed globals
readelf -lW "$TEST_LIBRARY" | grep -q GNU_RELRO
verdict "read-only relocations (-z relro)" $?
# The compiler's own start file has one.
[ "$(awk '/\(INIT_ARRAYSZ\)/ { print $3 }' "$directory/dynamic")" -le 8 ]
verdict "no constructors" $?
exit $failed
