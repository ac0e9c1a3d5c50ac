# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# How ./check runs a step: with a time limit, in its turn or in the background.
#
# Builds and static analysis need nothing but processors, which most tests leave idle. They run in
# the background, one after the other, at the lowest priority. When the turn of such a step comes,
# step_run waits for it and reports it.

records=$logs/steps # a file for each step that ended in the background: its verdicts
background=()       # the steps that run there
background_pid=     # the process that runs them
child=              # the command that runs now
launcher=()         # the command that lowers the priority of background steps
patience=1          # factor of all time limits: a background step may have to wait

# Run a command with a time limit. An interrupt ends it with all its children.
run_limited() # SECONDS COMMAND...
{
	local seconds=$(($1 * patience)) status

	shift
	"${launcher[@]}" timeout --kill-after=10 "$seconds" "$@" </dev/null &
	child=$!
	wait $child
	status=$?
	child=
	return $status
}

interrupted()
{
	local pid

	[ -z "$child" ] || kill "$child" 2>/dev/null
	if [ -n "$background_pid" ]; then
		for pid in "$background_pid" $(background_children); do
			kill "$pid" 2>/dev/null
		done
	fi
	echo
	exit 130
}
trap interrupted INT TERM

# Run a command and print the verdicts of its cases.
command_verdicts() # STEP SECONDS COMMAND...
{
	local name=$1 log="$logs/${1// /-}.log" status

	run_limited "${@:2}" >"$log" 2>&1
	status=$?
	[ $status != 124 ] || echo "not done in time" >>"$log"
	"$top/scripts/tally" output $status "$name" "$log"
}

# Run one command as a step, now.
step_command() # STEP SECONDS COMMAND...
{
	step_begin "$1"
	command_verdicts "$@" >"$records/$1"
	step_report "$1"
}

# Run a step of named_step now, or wait for it if it is in the background. False: a case failed or
# was skipped.
step_run() # STEP
{
	step_begin "$1"
	if ! background_has "$1"; then
		named_step "$1" >"$records/$1"
	else
		while [ ! -e "$records/$1" ] && kill -0 "$background_pid" 2>/dev/null; do
			background_hurry
			sleep 0.5
		done
		[ -e "$records/$1" ] || printf 'failed\t%s\tit ended early\n' "$1" >"$records/$1"
	fi
	step_report "$1"
}

step_report() # STEP
{
	step_end <"$records/$1"
	! grep -q -v -E '^(passed|took)' "$records/$1"
}

background_has() # STEP
{
	local name

	for name in "${background[@]}"; do
		[ "$name" != "$1" ] || return 0
	done
	return 1
}

# Run `background`, one step after the other.
background_start()
{
	# The kernel may divide processors between sessions first (autogroup), so a step gets its
	# own.
	# shellcheck disable=SC2016 # expanded by the inner shell
	local lowest='{ echo 19 >/proc/self/autogroup || :
		chrt --idle --pid 0 $$ || renice -n 19 $$; } >/dev/null 2>&1; exec "$@"'

	(
		trap 'exit 143' TERM
		patience=4
		launcher=(setsid sh -c "$lowest" sh)
		for name in "${background[@]}"; do
			step_begun=$(now)
			named_step "$name" >"$records/$name.part"
			printf 'took\t%s\n' "$(since "$step_begun") behind" >>"$records/$name.part"
			mv "$records/$name.part" "$records/$name"
		done
	) &
	background_pid=$!
}

# The processes of the background step that runs now.
background_children()
{
	cat "/proc/$background_pid/task/$background_pid/children" 2>/dev/null
}

# Give the background step that step_run waits for the normal priority.
background_hurry()
{
	local leader member

	for leader in $(background_children); do
		{ echo 0 >"/proc/$leader/autogroup"; } 2>/dev/null
		for member in $(pgrep --session "$leader"); do
			chrt --other --pid 0 "$member"
			renice -n 0 "$member"
		done
	done >/dev/null 2>&1
}
