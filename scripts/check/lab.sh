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

# The lab itself comes first: a machine starts, ends, and reports what went wrong.
lab_steps=(lab lab-driver lab-network lab-files lab-rdma)

# A step of the lab, and its verdicts.
lab_verdicts() # STEP
{
	case $1 in
	lab) command_verdicts "$1" 300 "$top/tests/lab/check" self ;;
	lab-rdma) command_verdicts "$1" 1300 "$top/tests/lab/check" rdma "$build" ;;
	*) command_verdicts "$1" 600 "$top/tests/lab/check" "${1#lab-}" "$build" ;;
	esac
}

check_lab() # STEP...
{
	local name

	if [ -n "$lacks_lab" ]; then
		step_lacks lab "$lacks_lab"
		return
	fi
	for name in "$@"; do
		is_built plain "$name" && step_run "$name"
	done
}
