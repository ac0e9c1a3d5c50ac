#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The commands of docs/security.md that make certificates, as they stand there, and engines that
# talk TLS by these.
# A line "<!-- tested: NAME -->" stands before the block of each. Takes the command's path as $1 or
# in $TEST_COMMAND.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
page=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../../docs" && pwd)/security.md
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"
export WHERRY_CUDA=off WHERRY_OBSERVE=off WHERRY_TRANSPORTS=tcp XDG_RUNTIME_DIR=$directory
if ! command -v openssl >/dev/null; then
	echo "there is no openssl"
	exit 77
fi

# The block of that name, which must be there.
block() # NAME
{
	awk -v name="<!-- tested: $1 -->" '
		$0 == name { found = 1 }
		/^```/ && inside { exit }
		inside { print }
		/^```sh$/ && found { inside = 1 }
		END { exit !inside }' "$page"
}

server=
served() # NAME: a server of that member, whose address goes to $url
{
	[ -z "$server" ] || { kill "$server" && wait "$server"; }
	: >served
	# One process, or the kill above would end a shell and leave the server.
	{
		set_for "$1"
		exec "$wherry" serve -v -m host:64KiB -l 127.0.0.1:0
	} >served 2>said &
	server=$!
	for _ in $(seq 1200); do
		url=$(grep -m 1 '^wherry://' served) && return
		kill -0 "$server" 2>/dev/null || break
		sleep 0.05
	done
	cat said
	return 1
}

# The settings of the page's example, for another member.
set_for() # NAME
{
	eval "$(block settings | sed "s/node7/$1/g")"
}

settings() # NAME COMMAND...
{
	local name=$1

	shift
	(
		set_for "$name"
		exec "$@"
	)
}

reaches() # NAME
{
	settings "$1" timeout 200 "$wherry" explain "$url" >out 2>&1
}

# Nobody says anything unless it went wrong.
quietly() # COMMAND...
{
	"$@" >out 2>&1 && return
	cat out
	return 1
}

encrypted() # NAME
{
	reaches "$1" && grep -q 'encrypted: TLS 1.3' out && return
	cat out
	return 1
}

# ---- the five commands -------------------------------------------------------------------------

authority=$(block authority) && member=$(block member) && [ "$(grep -c '^openssl ' <<<"$authority
$member")" = 5 ]
verdict "the page has five commands" $?
quietly bash -e -c "$authority"
verdict "an authority" $?
quietly bash -e -c "$member" && [ "$(stat -c %a node7.key)" = 600 ]
verdict "a member" $?
quietly bash -e -c "${member//node7/node8}" && [ -s node8.pem ]
verdict "another one" $?
quietly openssl verify -CAfile ca.pem node7.pem node8.pem &&
	quietly openssl x509 -in node7.pem -noout -checkend $((29 * 86400)) &&
	! openssl x509 -in node7.pem -noout -checkend $((31 * 86400)) >out
verdict "their certificates are good, for 30 days" $?

# ---- engines -----------------------------------------------------------------------------------

served node7 && encrypted node8
verdict "two engines talk TLS by them" $?
head -c 5000 /dev/urandom >file
quietly settings node8 timeout 200 "$wherry" copy file "$url/host" &&
	quietly settings node8 timeout 200 "$wherry" copy "$url/host" back && cmp -n 5000 file back
verdict "and move bytes" $?
! timeout 200 "$wherry" explain "$url" >out 2>&1 && ! grep -q encrypted out
verdict "who has no certificate is not let in" $?
# Another authority, and a member of the same name; the engine's own is known there.
mkdir next && cp ca.pem next/known.pem
(
	cd next && quietly bash -e -c "${authority//authority 1/authority 2}" &&
		quietly bash -e -c "$member" &&
		mv ca.pem own.pem && cp known.pem ca.pem && ! reaches node7
) && for _ in $(seq 1200); do
	grep -q 'connection refused' said && break
	sleep 0.05
done && grep -q 'connection refused' said
verdict "nor who has one of another authority" $?
# Both authorities are known while one takes the place of the other, as the page says.
cat next/own.pem >>ca.pem && served node7 && encrypted node8 && cp ca.pem next/ca.pem && (cd next &&
	encrypted node7)
verdict "until ca.pem has both" $?
exit "$failed"
