# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The interface of libwherry as libabigail sees it, for record and compare.sh, which source this. It
# takes two files: functions.abi is made from the library, and types.abi from the headers, since a
# compiler describes in a library only what its code uses (enum values, options of other versions).
dump_options=(--no-show-locs --no-comp-dir-path --no-corpus-path --drop-private-types)

# The files are functions.abi and types.abi in DIRECTORY.
dump_interface() # LIBRARY HEADERS DIRECTORY
{
	abidw "${dump_options[@]}" --exported-interfaces-only --headers-dir "$2/wherry" \
		--out-file "$3/functions.abi" "$1" &&
		dump_types "$2" "$3/types.abi"
}

dump_types() # HEADERS FILE
{
	local source=${2%.abi}.c

	printf '#include <%s>\n' wherry/wherry.h >"$source"
	# Without a symbol abidw takes the file for empty.
	printf 'int wherry_types(void);\nint wherry_types(void) { return 0; }\n' >>"$source"
	(cd "${2%/*}" &&
		"${CC:-cc}" -g -fno-eliminate-unused-debug-types -shared -fPIC -I"$1" \
			-o "${2%.abi}.so" "${source##*/}" &&
		abidw "${dump_options[@]}" --load-all-types --headers-dir "$1/wherry" \
			--out-file "$2" "${2%.abi}.so") &&
		rm "$source" "${2%.abi}.so"
}

# "same", "added" or "broken", with libabigail's report of what differs on standard error.
# Its exit status is of bits: 1 and 2 are errors, 4 is a change, 8 one that breaks programs.
interface_change() # OLD.abi NEW.abi
{
	local status=0 options=(--no-show-locs --suppr "${BASH_SOURCE[0]%/*}/suppressions")

	# No function refers to the types of types.abi.
	[ "${1##*/}" != types.abi ] || options+=(--non-reachable-types)
	abidiff "${options[@]}" "$1" "$2" >&2 || status=$?
	case $status in
	0) echo same ;;
	4) echo added ;;
	12) echo broken ;;
	*) echo "abidiff failed: $status" ;;
	esac
}
