# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# How ./check runs a step: with a time limit, in its turn or in a lane beside it.
#
# Most tests wait and leave processors idle. A lane is a process that runs steps one after the other
# meanwhile. When the turn of such a step comes, step_run waits for it and reports it. Lanes of the
# kind "idle", for builds and static analysis, have the lowest priority.

records=$logs/steps # a file for each step that ended in a lane: its verdicts
declare -A lane_of  # the process of the lane that runs a step, by the step
busy_lanes=()       # those of the kind "normal"
child=              # the command that runs now
launcher=()         # the command that lowers the priority of steps in an idle lane
patience=1          # factor of all time limits: a step in a lane may have to wait

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
	local lane pid

	[ -z "$child" ] || kill "$child" 2>/dev/null
	for lane in $(printf '%s\n' "${lane_of[@]}" | sort -u); do
		for pid in "$lane" $(lane_children "$lane"); do
			kill "$pid" 2>/dev/null
		done
	done
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

# Run a step of named_step now, or wait for it if it is in a lane. False: a case failed or was
# skipped.
step_run() # STEP
{
	local lane=${lane_of[$1]-}

	step_begin "$1"
	if [ -z "$lane" ]; then
		named_step "$1" >"$records/$1"
	else
		while [ ! -e "$records/$1" ] && kill -0 "$lane" 2>/dev/null; do
			lane_hurry "$lane"
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

# Run steps of named_step beside the caller, one after the other.
lane_start() # idle|normal STEP...
{
	local kind=$1 name lowest

	shift
	# The kernel may divide processors between sessions first (autogroup), so a step gets its
	# own.
	# shellcheck disable=SC2016 # expanded by the inner shell
	lowest='{ echo 19 >/proc/self/autogroup || :
		chrt --idle --pid 0 $$ || renice -n 19 $$; } >/dev/null 2>&1; exec "$@"'
	(
		trap 'exit 143' TERM
		patience=4
		[ "$kind" = normal ] || launcher=(setsid sh -c "$lowest" sh)
		for name; do
			step_begun=$(now)
			named_step "$name" >"$records/$name.part"
			printf 'took\t%s\n' "$(since "$step_begun") beside" >>"$records/$name.part"
			mv "$records/$name.part" "$records/$name"
		done
	) &
	for name; do
		lane_of[$name]=$!
	done
	[ "$kind" = idle ] || busy_lanes+=($!)
}

# Wait until only idle lanes run.
lanes_rest()
{
	local lane

	for lane in "${busy_lanes[@]}"; do
		while kill -0 "$lane" 2>/dev/null; do
			sleep 0.5
		done
	done
}

# Wait for a step of another lane. False: it failed.
step_await() # STEP
{
	while [ ! -e "$records/$1" ] && kill -0 "${lane_of[$1]}" 2>/dev/null; do
		sleep 0.5
	done
	grep -q '^passed' "$records/$1"
}

# The processes of the step that a lane runs now.
lane_children() # LANE
{
	cat "/proc/$1/task/$1/children" 2>/dev/null
}

# Give the step that step_run waits for the normal priority.
lane_hurry() # LANE
{
	local leader member

	for leader in $(lane_children "$1"); do
		{ echo 0 >"/proc/$leader/autogroup"; } 2>/dev/null
		for member in $(pgrep --session "$leader"); do
			chrt --other --pid 0 "$member"
			renice -n 0 "$member"
		done
	done >/dev/null 2>&1
}
