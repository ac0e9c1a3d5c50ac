#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# examples/window.c says what arrived and by whom: example.sh PROGRAM
set -eu
out=$("$1")
printf '%s\n' "$out"
case $out in
"across the river, by rm (driver: /dev/gdrdrv: open: "*"; rm: chosen)
and back") ;;
*)
	echo "that is not what it should say"
	exit 1
	;;
esac
