#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: unsanitized
# wherry bench with the setting tls: its limit is OpenSSL's own calls, with a key and with
# certificates. Also wherry bench --handshake, which measures how long it takes to connect to a
# peer. The command's path is $1 or $TEST_COMMAND.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"

# Run wherry bench, which must succeed. The file json gets its JSON, one value per line.
measured() # ARGUMENTS...
{
	timeout 200 "$wherry" bench "$@" --json json >out 2>err && return
	echo "wherry bench $* ends with $?"
	cat out err
	return 1
}

# Exactly COUNT lines of the file json contain TEXT.
has() # COUNT TEXT
{
	[ "$(grep -c -F -e "$2" json)" = "$1" ] && return
	echo "wants $1 times '$2':"
	cat json
	return 1
}

few=(-t tcp --limits --verify --working-set 1MiB --seconds 0.05 -c tls=1)

measured "${few[@]}" -s 8,100000 -n 1,3 && has 8 '"limit_name": "SSL_write/SSL_read"' &&
	has 8 '"verified": true' && has 8 'encrypted: TLS 1.3, AES_128_GCM' &&
	has 0 '"ratio": null' &&
	has 0 '"latency_ratio": null'
verdict "with a key, one connection and three" $?

measured "${few[@]}" -s 4KiB -b 64 && has 2 '"limit_name": "SSL_write/SSL_read"' &&
	has 0 '"ratio": null'
verdict "blocks" $?

measured "${few[@]}" -s 8 --spin -o write && has 1 '"mode": "spinning"' &&
	has 0 '"latency_ratio": null'
verdict "spinning" $?

measured -t tcp --limits --working-set 1MiB --seconds 0.05 -s 64KiB -o write &&
	has 1 '"limit_name": "send/recv"' && has 0 'encrypted'
verdict "plain, the limit is plain" $?

certificates() {
	local one='-pkeyopt ec_paramgen_curve:P-256'

	# shellcheck disable=SC2086
	openssl req -x509 -newkey ec $one -nodes -keyout ca.key -subj /CN=ca -days 2 -out ca.pem &&
		openssl req -newkey ec $one -nodes -keyout me.key -subj /CN=me -out me.csr &&
		openssl x509 -req -in me.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 1 \
		-out me.pem &&
		chmod 600 me.key
}
certificates >made 2>&1 || cat made
few+=(-c "tls_cert=$PWD/me.pem" -c "tls_key=$PWD/me.key" -c "tls_ca=$PWD/ca.pem")
measured "${few[@]}" -s 100000 && has 2 '"limit_name": "SSL_write/SSL_read"' &&
	has 2 '"verified": true'
verdict "with certificates" $?

# The duration is not checked, and status 2 is accepted, because the machine may be busy.
timed() # TRUST LIMIT ARGUMENTS...
{
	local trust=$1 limit=$2

	shift 2
	timeout 200 "$wherry" bench --handshake --seconds 0.1 -c transports=tcp "$@" --json json \
		>out 2>err
	case $? in
	0 | 2) ;;
	*)
		cat out err
		return 1
		;;
	esac
	has 1 "\"trust\": \"$trust\"" && has 1 "\"limit_us\": $limit" && has 0 '"p50": null' &&
		has 0 '"peers": 0' && grep -q "^connecting to a peer ($trust)" out
}

timed key 1000
verdict "connecting with a key" $?
timed "key, TLS 1.3" null -c tls=1
verdict "connecting with a key and TLS" $?
timed "certificates, TLS 1.3" null -c tls=1 "${few[@]: -6}"
verdict "connecting with certificates" $?

timeout 200 "$wherry" bench --handshake -c tls=1 -c tls_cert=me.pem >out 2>err
{ [ $? = 64 ] && grep -q "tls_key is not set" err; } || { cat out err && false; }
verdict "certificates of which a part is not named" $?
exit $failed
