#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# example.sh PROGRAM: examples/window.c must print the bytes that arrived, and the backend.
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
