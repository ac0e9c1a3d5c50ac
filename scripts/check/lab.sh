# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The tests of ./check in a virtual machine: the kernel module, networks, files, RDMA.

lacks_lab=   # why there is no virtual machine

find_lab()
{
	local why

	if ! why=$( (install_packages lab) 2>&1) || ! why=$("$top/tests/lab/run" --check 2>&1); then
		lacks_lab=${why##*$'\n'}
	fi
}

# The lab itself: a machine starts, ends, and reports what went wrong.
check_lab_smoke()
{
	if [ -n "$lacks_lab" ]; then
		step_lacks lab "$lacks_lab"
		return
	fi
	step_command lab 300 "$top/tests/lab/check" self
}

check_lab()
{
	check_lab_smoke
	[ -z "$lacks_lab" ] || return
	is_built plain lab-driver && step_command lab-driver 600 "$top/tests/lab/check" driver \
		"$build"
	is_built plain lab-network && step_command lab-network 300 "$top/tests/lab/check" network \
		"$build"
	is_built plain lab-files && step_command lab-files 300 "$top/tests/lab/check" files "$build"
	is_built plain lab-rdma && step_command lab-rdma 1300 "$top/tests/lab/check" rdma "$build"
}
