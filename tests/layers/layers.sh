#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# No file includes a header of a layer above its own, and src/core names no transport. The other
# cases plant an error in a copy of the tree, so that the test is known to see it.
set -u
top=${TEST_SOURCE:-$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd)}
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../cases.sh" || exit
copy=$directory/tree
layers=$top/tests/layers/layers.py

renew_copy()
{
	rm -rf "$copy"
	mkdir -p "$copy/tests" && cp -r "$top"/{src,compat,tools,examples,include,kernels} \
		"$copy/" &&
		cp -r "$top/tests/layers" "$copy/tests/"
}

# The checker fails on the copy, and says TEXT.
sees() # NAME WHAT TEXT
{
	local said status

	said=$(python3 "$layers" "$2" "$copy")
	status=$?
	[ $status = 1 ] && [[ $said = *"$3"* ]]
	status=$?
	[ $status = 0 ] || echo "$said"
	verdict "$1" $status
}

python3 "$layers" includes "$top"
verdict "includes point down" $?
python3 "$layers" names "$top"
verdict "the core names no transport" $?

renew_copy || exit
echo '#include "core/engine.h"' >>"$copy/src/util/loop.c"
sees "planted: util includes core" includes "src/util/loop.c src/core: not allowed"

renew_copy || exit
mkdir "$copy/src/transport/rdma/planted"
echo '#include "transport/shm/shm.h"' >"$copy/src/transport/rdma/planted/new.c"
sees "planted: one transport includes another" includes \
	"src/transport/rdma/planted/new.c src/transport/shm: not allowed"

renew_copy || exit
echo '#include "core/batch.h"' >"$copy/tools/planted.c"
sees "planted: a tool includes the core" includes "tools/planted.c src/core: not allowed"

renew_copy || exit
echo 'int planted = WH_TRANSPORT_TCP;' >>"$copy/src/core/queue.c"
sees "planted: the core names a transport" names "src/core/queue.c 1: not allowed"

renew_copy || exit
echo '/* tcp, "rdma" */ static const char *planted = "sent by tcp";' >>"$copy/src/core/queue.c"
python3 "$layers" names "$copy"
verdict "comments and messages name what they like" $?

exit $failed
