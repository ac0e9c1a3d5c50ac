#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every command refuses a misspelt WHERRY_ variable, and knows every WHERRY_ variable that the tree
# names.
set -u
wherry=$TEST_COMMAND
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
unset "${!WHERRY_@}"
export WHERRY_OBSERVE=off

refused() # STATUS TEXT COMMAND...
{
	local want=$1 text=$2 status

	shift 2
	timeout 200 "$@" >"$directory/out" 2>"$directory/err"
	status=$?
	[ $status = "$want" ] && grep -q -F -e "$text" "$directory/out" "$directory/err" && return
	echo "$*: $status"
	cat "$directory/out" "$directory/err"
	return 1
}

refused 64 "wherry config: no variable WHERRY_TSL; did you mean WHERRY_TLS? WHERRY_IGNORE_UNKNOWN=1" \
	env WHERRY_TSL=1 "$wherry" config
verdict "a misspelt variable, and the nearest" $?
refused 64 "did you mean WHERRY_KEYFILE?" env WHERRY_KEYFLIE=/x "$wherry" serve -m host:4KiB &&
	refused 64 "did you mean WHERRY_CONNECTIONS?" env WHERRY_CONN=7 "$wherry" copy a \
	wherry://127.0.0.1:1/b &&
	refused 64 "no variable WHERRY_FROBNICATE; wherry config lists them" env \
	WHERRY_FROBNICATE=7 "$wherry" topo
verdict "in front of every command" $?
[ "$(wc -l <"$directory/err")" = 2 ] && ! grep -q 7 "$directory/err"
verdict "... with the name alone" $?
refused 0 WHERRY_TLS env WHERRY_TSL=1 WHERRY_IGNORE_UNKNOWN=1 "$wherry" config &&
	refused 0 WHERRY_TLS env WHERRY_TSL= "$wherry" config &&
	refused 64 "WHERRY_TSL" env WHERRY_TSL=1 WHERRY_IGNORE_UNKNOWN=0 "$wherry" config &&
	refused 64 "WHERRY_IGNORE_UNKNOWN=x: wants 0 or 1" env WHERRY_IGNORE_UNKNOWN=x "$wherry" \
	config
verdict "WHERRY_IGNORE_UNKNOWN" $?
refused 0 Usage: env WHERRY_TSL=1 "$wherry" serve --help &&
	refused 0 Usage: env WHERRY_TSL=1 "$wherry" --help &&
	refused 0 "wherry " env WHERRY_TSL=1 "$wherry" --version
verdict "help all the same" $?

# Left out: macros (include guards, WHERRY_REVISION), and the names that this test and others
# misspell on purpose.
every_name()
{
	local name bad=0 count=0

	while read -r name; do
		count=$((count + 1))
		env "$name=1" "$wherry" config >"$directory/out" 2>&1
		grep -q "no variable" "$directory/out" || continue
		cat "$directory/out"
		bad=1
	done < <(cd "$TEST_SOURCE" && find README.md CONTRIBUTING.md check run src tools tests \
		scripts docs \
		examples kernels bench driver -type f \( -name '*.[ch]' -o -name '*.md' \
		-o -name '*.sh' -o \
		-name '*.py' -o -name 'meson.build' -o ! -name '*.*' \) -size -1000k -print0 |
		xargs -0 cat |
		grep -a -o -h -E '\bWHERRY_[A-Z][A-Z0-9_]*[A-Z0-9]\b' | sort -u |
		grep -v -x -E '.*_H|WHERRY_(REVISION|TSL|TL|KEYFLIE|CONN|FROBNICATE|TIEMOUT)')
	[ $count -gt 30 ] || bad=1
	return $bad
}
every_name
verdict "every variable that the tree names is known" $?
exit $failed
