#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# libtransfer_engine.so exports what transfer_engine_c.h declares, all of Mooncake's C interface and
# one function more, without versions; it has the name that programs want, and is linked as it
# should be. transfer-engine.sh LIBRARY
set -u
library=$1
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../cases.sh" || exit

same() # NAME FILE FILE
{
	diff -u "$directory/$2" "$directory/$3"
	verdict "$1" $?
}

"${CC:-cc}" -fpreprocessed -dD -E -P "$TEST_SOURCE/compat/mooncake/transfer_engine_c.h" |
	grep -v '^#' | tr '\n' ' ' | grep -o '\b[a-z][A-Za-z]*(' | tr -d '(' |
	sort -u >"$directory/header"
"${CC:-cc}" -fpreprocessed -E -P -x c "$TEST_SOURCE/compat/mooncake/libtransfer_engine.map" |
	grep -o '\b[a-z][A-Za-z]*;' | tr -d ';' | sort >"$directory/map"
nm -D --defined-only "$library" | awk '{ print $3 }' | sort >"$directory/library"
# Of transfer_engine_c.h and transfer_engine_c.cpp, of all versions that have them.
sort >"$directory/mooncake" <<-'NAMES'
	createTransferEngine
	destroyTransferEngine
	discoverTopology
	enableGracefulShutdown
	getLocalIpAndPort
	installTransport
	uninstallTransport
	showLinks
	openSegment
	openSegmentNoCache
	closeSegment
	removeLocalSegment
	syncSegmentCache
	warmupEfaSegment
	registerLocalMemory
	unregisterLocalMemory
	registerLocalMemoryBatch
	unregisterLocalMemoryBatch
	allocateBatchID
	submitTransfer
	submitTransferWithNotify
	getTransferStatus
	freeBatchID
	getNotifsFromEngine
	freeNotifsMsgBuf
	genNotifyInEngine
NAMES
{
	cat "$directory/mooncake" && printf 'wherryErrorText\nwherrySegmentIsReady\nwherryWaitBatch\n'
} | sort >"$directory/wanted"

same "header and symbol map" header map
same "symbol map and library, without versions" map library
same "Mooncake's functions and three of ours" wanted map

readelf -d "$library" >"$directory/dynamic"
grep -F '(NEEDED)' "$directory/dynamic" | grep -o '\[.*\]' |
	grep -v -E 'libc\.so|libpthread\.so|libdl\.so|ld-linux' |
	sort >"$directory/needed"
printf '[libjansson.so.4]\n[libwherry.so.0]\n' >"$directory/allowed"
same "needs libwherry.so and jansson" allowed needed
grep -q -E 'SONAME.*\[libtransfer_engine\.so\]' "$directory/dynamic"
verdict "soname libtransfer_engine.so, as Mooncake's" $?
grep -q -E 'BIND_NOW|FLAGS.*NOW' "$directory/dynamic"
verdict "bound when loaded (-z now)" $?
grep -q NODELETE "$directory/dynamic"
verdict "can be unloaded" $((!$?))
[ "$(awk '/\(INIT_ARRAYSZ\)/ { print $3 }' "$directory/dynamic")" -le 8 ]
verdict "no constructors" $?
exit $failed
