#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: weights
# wherry spread, and what goes wrong in the middle: receivers and senders that die, cancelling, two
# senders at once, a file that changes.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
# shellcheck source=tests/serving.sh
. "${BASH_SOURCE[0]%/*}/../../serving.sh" || exit
# shellcheck source=tests/integration/lib/spreading.sh
. "${BASH_SOURCE[0]%/*}/../lib/spreading.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"

head -c 12000017 /dev/urandom >one
head -c 11000000 /dev/urandom >two

# So slow that there is a middle: 100 MB in small pieces, over TCP.
head -c 100000000 /dev/zero >long
printf x | dd of=long bs=1 seek=99999999 conv=notrunc status=none
slow=(--chunk 256KiB --piece 32KiB --separate-hosts --json)
start --weights host:400MiB:model --require tcp -- r1 r2 r3 r4
spread one "${urls[@]}"

# The background process is the command itself, so that signals reach it; a shell ignores SIGINT for
# what it starts there.
begin() # ARGUMENTS...
{
	env --default-signal=INT "$wherry" spread "$@" >out 2>err &
	spreading=$!
}

is_member() # PROCESS: it has opened the weights, so bytes come, or are about to
{
	grep -q -s wh-weights "/proc/$1/task/"*/comm || ! kill -0 "$spreading"
}

# Beside load it may have ended when the signal comes: then once more.
for _ in $(seq 10); do
	begin long "${urls[@]}" "${slow[@]}"
	until_so is_member "${receivers[1]}"
	kill -KILL "${receivers[1]}"
	wait $spreading
	status=$?
	[ $status != 0 ] && break
	end
	start --weights host:400MiB:model --require tcp -- r1 r2 r3 r4
	spread one "${urls[@]}"
done
if [ "$status" = 69 ] && [ "$(grep -c '^wherry spread: wherry' err)" = 1 ] &&
	grep -q "^wherry spread: ${urls[1]}: " err; then
	result=0
else
	result=1
	echo "status $status"
	cat err out
fi
if [ -s out ]; then # it was in the middle: the others have the file
	[ "$(value receivers_done)" = 3 ] && [ "$(value receivers 1 "done")" = False ] &&
		all_have long "${urls[0]}/model" "${urls[2]}/model" "${urls[3]}/model" || result=1
else # it was before: nobody has
	all_have one "${urls[0]}/model" "${urls[2]}/model" "${urls[3]}/model" || result=1
fi
verdict "a receiver that is killed delays nobody" $result
end

# Two are killed and two stand still in the middle, and the time without bytes ends before the
# others see whom they wait for in vain.
has_part() # PROCESS: some of its memory is there
{
	awk '/^VmRSS/ { exit !($2 > 30000) }' "/proc/$1/status" || ! kill -0 "$spreading"
}
for _ in $(seq 10); do
	start --weights host:400MiB:model --require tcp -- r1 r2 r3 r4 r5 r6 r7 r8
	begin long "${urls[@]}" "${slow[@]}" --stall-timeout 2
	until_so has_part "${receivers[1]}"
	kill -STOP "${receivers[1]}" "${receivers[4]}"
	kill -KILL "${receivers[2]}" "${receivers[7]}"
	wait $spreading
	status=$?
	kill -KILL "${receivers[1]}" "${receivers[4]}"
	[ $status != 0 ] && break
	end
done
if [ "$status" = 69 ] && [ "$(value receivers_done)" = 4 ] &&
	all_have long "${urls[0]}/model" "${urls[3]}/model" "${urls[5]}/model" \
		"${urls[6]}/model"; then
	result=0
else
	result=1
	echo "status $status"
	cat err out
fi
verdict "four of eight that fail take nobody with them" $result
end

start --weights host:400MiB:model --require tcp -- r1 r2 r3 r4
for _ in $(seq 10); do
	spread one "${urls[@]}"
	begin long "${urls[@]}" "${slow[@]}"
	until_so is_member $spreading
	kill -INT $spreading
	wait $spreading
	status=$?
	[ $status != 0 ] && break
done
[ "$status" = 130 ] && grep -q "^wherry spread: cancelled: [0-4] of 4 receivers have the file" err
verdict "SIGINT cancels" $?
# Each has one file or the other, and takes the next.
result=0
for at in "${urls[@]}"; do
	all_have one "$at/model" >/dev/null || all_have long "$at/model" || result=1
done
[ $result = 0 ] && spread two "${urls[@]}" && all_have two "${urls[@]/%//model}"
verdict "the receivers keep whole files, and take the next one" $?

# The sender dies: the receivers notice, and let go.
begin long "${urls[@]}" "${slow[@]}"
until_so is_member $spreading
kill -KILL $spreading
wait $spreading 2>/dev/null
until_so spread one "${urls[@]}" && all_have one "${urls[@]/%//model}"
verdict "after a sender that was killed, the next one succeeds" $?

# Two at once: one of them is refused, or comes behind the other.
begin long "${urls[@]}" "${slow[@]}"
until_so is_member "${receivers[0]}"
timeout 200 "$wherry" spread two "${urls[@]}" >out2 2>err2
second=$?
wait $spreading
first=$?
if [ $second != 0 ]; then
	[ $second = 2 ] && grep -q "'model' is receiving a file from" err2 && [ $first = 0 ] &&
		all_have long "${urls[@]/%//model}"
else
	[ $first = 0 ] && all_have two "${urls[@]/%//model}"
fi
verdict "two senders at once do not mix their files" $?

# The file changes while it is read.
cp one changing
begin changing "${urls[@]}" --chunk 256KiB --piece 32KiB
until_so is_member $spreading
touch -d '2001-02-03' changing
wait $spreading
status=$?
# It may have been read before.
[ $status = 0 ] || { [ $status = 2 ] && grep -q "changing was changed meanwhile" err; }
verdict "a file that changes is reported" $?

if end && ! grep -e "cannot free" -e "cannot withdraw" -e "cannot leave" ./*.err; then
	result=0
else
	result=1
	cat r?.err
fi
verdict "the receivers end well" $result

exit $failed
