#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: fakes
# Runs the commands of docs/walkthrough.md, in order, and compares what they print with what the
# page shows: word for word, but for numbers and for what a comment before the block names.
#
#   <!-- status: N -->      what the last command of the block ends with; else 0
#   <!-- varies: REGEX -->  what may be another one or absent; so may lines of nothing else
#   <!-- with: NIC -->      each machine has one: that of the libibverbs in $TEST_VERBS
#
# "$" is this machine. "north$" and "south$" are two, at 10.0.0.1 and 10.0.0.2: network namespaces
# of their own, of which the second one was also booted at another time. A command with "&" at its
# end goes on; `kill %N` is for the N-th of them on that machine.
# Takes the command's path as $1 or in $TEST_COMMAND, and the CUDA driver to use in $TEST_CUDA.
# Without "with" there is no NIC.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
page=${2:-$tests/../docs/walkthrough.md}

if [ "${WALK_INSIDE-}" = "" ]; then
	alone=(unshare --net --mount)
	[ "$(id -u)" = 0 ] || alone=(unshare --user --map-root-user --net --mount)
	if ! why=$("${alone[@]}" ip link add type veth 2>&1); then
		echo "no network namespaces of our own here: $why"
		exit 77
	fi
	WALK_INSIDE=1 exec "${alone[@]}" "$0" "$wherry" "$page"
fi

# shellcheck source=tests/cases.sh
. "$tests/cases.sh" || exit
background=() # "MACHINE PID", in the order in which they were started
cd "$directory" || exit 1
unset "${!WHERRY_@}"
# In a namespace this user is another one, with a key of its own.
export XDG_RUNTIME_DIR=$directory
[ -z "${TEST_CUDA-}" ] || export WHERRY_CUDA=$TEST_CUDA
export WHERRY_VERBS=${TEST_VERBS:?the path of a libibverbs} FAKE_VERBS_WORLD=$directory/world
mkdir bin && ln -s "$(realpath "$wherry")" bin/wherry && PATH=$PWD/bin:$PATH || exit 1
"$tests/fake/machines/pack" -x "$tests/fake/machines/h200x4.tree" node4 || exit 1
# The same machine as it saw itself, with its NVML.
cp -a node4 there && mkdir there/lib &&
	ln -s "${TEST_NVML:?the path of a libnvidia-ml}" there/lib/libnvidia-ml.so.1 &&
	FAKE_NVML=there/nvml.txt wherry topo --root there --json >node4.json && rm -r there ||
	exit 1

# ---- two machines ------------------------------------------------------------------------------

printf '%s\n' 0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d >boot_id
unshare --net --mount sh -c 'mount --bind boot_id /proc/sys/kernel/random/boot_id && exec sleep 1000' &
south=$!
for _ in {1..1200}; do
	[ "$(cat "/proc/$south/comm")" != sleep ] || break
	sleep 0.05
done
in_south()
{
	nsenter --target "$south" --net --mount --wd="$directory" -- "$@"
}
{
	ip link set lo up &&
		ip link add to-south type veth peer name to-north netns "$south" &&
		ip address add 10.0.0.1/24 dev to-south && ip link set to-south up &&
		in_south ip link set lo up && in_south ip address add 10.0.0.2/24 dev to-north &&
		in_south ip link set to-north up
} || exit 1

# ---- one command -------------------------------------------------------------------------------

# Numbers, hexadecimal and sizes are alike, one connection and several, and how much space is
# between words.
plain() # VARIES
{
	sed -E ${1:+-e "s#$1##g" -e '/./!d'} -e "s/\<$(uname -n)\>/HOST/g" \
		-e 's/\<[0-9a-f]{12,}\>/H/g' -e 's/\<GPU-[0-9a-f-]+/GPU-H/g' \
		-e 's/[0-9]+([.:][0-9a-f]+)*/N/g' -e 's/\<connections\>/connection/g' \
		-e 's/[ \t]+/ /g' -e 's/ $//'
}

# Are the lines of GOT those of EXPECTED? "..." there is any number of lines.
alike() # EXPECTED GOT
{
	awk '
		NR == FNR { expected[++n] = $0; next }
		{ got[++m] = $0 }
		END {
			for (i = j = 1; i <= n; i++) {
				if (expected[i] == "...") {
					while (i < n && j <= m && got[j] != expected[i + 1])
						j++
					if (i == n)
						j = m + 1
				} else if (expected[i] != got[j++]) {
					print "expected: " expected[i] "\ngot:      " got[j - 1]
					exit 1
				}
			}
			if (j <= m) {
				print "not expected: " got[j]
				exit 1
			}
		}' "$1" "$2"
}

start() # MACHINE COMMAND
{
	local machine=$1

	shift
	if [ "$machine" = south ]; then
		exec nsenter --target "$south" --net --mount --wd="$directory" -- bash -c "$*"
	else
		exec bash -c "$*"
	fi
}

# Until it has printed as many lines as it should, or has ended.
in_background() # MACHINE COMMAND LINES
{
	: >out
	start "$1" "$2" >out 2>&1 &
	background+=("$1 $!")
	for _ in {1..1200}; do
		[ "$(wc -l <out)" -ge "$3" ] && return 0
		kill -0 $! 2>/dev/null || return 1
		sleep 0.05
	done
	return 1
}

stop() # MACHINE N
{
	local job n=0 pid

	for job in "${background[@]}"; do
		pid=${job#* }
		[ "${job% *}" != "$1" ] || n=$((n + 1))
		if [ "$n" = "$2" ]; then
			kill "$pid" && wait "$pid"
			return
		fi
	done
	echo "there is no job $2 of $1"
	return 1
}

execute() # MACHINE COMMAND LINES
{
	case $2 in
	*' &') in_background "$1" "${2% &}" "$3" ;;
	'kill %'*) stop "$1" "${2#kill %}" >out 2>&1 ;;
	*)
		if [ "$1" = south ]; then
			in_south timeout 200 bash -c "$2" >out 2>&1 </dev/null
		else
			timeout 200 bash -c "$2" >out 2>&1 </dev/null
		fi
		;;
	esac
}

try() # LINE MACHINE COMMAND STATUS VARIES; what it should print is in the file expected
{
	local status

	execute "$2" "$3" "$(grep -v -c '^\.\.\.$' expected)"
	status=$?
	plain "$5" <expected >expected.plain
	plain "$5" <out >out.plain
	if [ $status != "$4" ] || ! alike expected.plain out.plain; then
		echo "status $status, expected $4; it said:"
		cat out
		false
	fi
	verdict "line $1: $3" $?
}

# ---- the page ----------------------------------------------------------------------------------

block=no command='' status=0 varies='' number=0
: >expected

# The command that has been read, with the status of the block if it is the block's last.
finish() # STATUS
{
	[ -z "$command" ] || try "$at" "$machine" "$command" "$1" "$varies"
	command=''
	: >expected
}

while IFS= read -r line; do
	number=$((number + 1))
	case $block:$line in
	no:'<!-- status: '*) status=${line//[!0-9]/} ;;
	no:'<!-- varies: '*) varies=${line#'<!-- varies: '} varies=${varies%' -->'} ;;
	no:'<!-- with: NIC -->') export FAKE_VERBS=mlx5_0 ;;
	no:'```console') block=yes ;;
	yes:'```')
		finish "$status"
		block=no status=0 varies=''
		unset FAKE_VERBS
		;;
	yes:'$ '* | yes:north'$ '* | yes:south'$ '*)
		finish 0
		machine=${line%%'$ '*} machine=${machine:-here} command=${line#*'$ '} at=$number
		;;
	yes:*) printf '%s\n' "$line" >>expected ;;
	esac
done <"$page"
exit $failed
