# SPDX-License-Identifier: Apache-2.0
# For tests that are scripts, which source this in a network namespace of their own: a second one,
# that of the process $other, and a cable between them. 10.79.0.1 is here, 10.79.0.2 there.
# shellcheck shell=bash
unshare --net sleep 1000 &
other=$!
for _ in {1..1200}; do
	[ "$(readlink "/proc/$other/ns/net")" = "$(readlink /proc/self/ns/net)" ] || break
	sleep 0.05
done
{
	ip link set lo up && ip link add c0 type veth peer name c1 netns "$other" &&
		ip address add 10.79.0.1/24 dev c0 && ip link set c0 up &&
		nsenter --net="/proc/$other/ns/net" sh -ec \
			'ip link set lo up; ip address add 10.79.0.2/24 dev c1; ip link set c1 up'
} || exit 1
