#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compile the kernels and compare them with the compiled ones in the tree. kernels-kept.sh TREE
# Another version of the toolkit may write them differently: then they only have to compile.
set -u
tree=$1
made_by='V13.0.88'
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
if ! [ -x "$nvcc" ]; then
	echo "skipped: no nvcc"
	exit 77
fi
out=$(mktemp -d) || exit
trap 'rm -rf "$out"' EXIT
"$tree/kernels/build" "$out" || exit 1
if ! "$nvcc" --version | grep -q -F "$made_by"; then
	echo "skipped: compiled, but the kept ones are of nvcc $made_by"
	exit 77
fi
status=0
for name in blocks.ptx bounce.ptx blocks-sm_75.cubin blocks-sm_80.cubin blocks-sm_90.cubin \
	blocks-sm_100.cubin \
	blocks-sm_110.cubin blocks-sm_120.cubin; do
	if cmp "$out/$name" "$tree/kernels/$name"; then
		echo "[       OK ] $name"
	else
		echo "[  FAILED  ] $name: run kernels/build"
		status=1
	fi
done
exit $status
